"""The tools that a coding agent gets over MCP: it reads what Reef holds, and reports or promotes once a person has agreed.

Knows only the client. Made by reef.cli.mcp; needs the extra mcp. Annotations are evaluated here, because the server reads them
and they name functions of a function.
"""

import functools
import shlex
from collections.abc import Callable
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from reef import __version__
from reef.client import ReefClient, path_part
from reef.errors import ReefError

_INSTRUCTIONS = (
    "Reef stands between an agent and its model: it records every call, pairs reports with calls, and makes releases of"
    " weights or of a harness from them. Begin with status. A record's id is its receipt. report and promote ask the person"
    " first; where your client cannot ask, tell the person the command that the error names."
)
_READ = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_BODY_CHARS = 20_000
"""Characters of a text in a record that an agent is shown: a conversation can be longer than what an agent can read."""

Page = Annotated[int, Field(ge=1, le=200, description="how many rows, newest first")]
ScenarioName = Annotated[str, Field(description="a scenario's name, as status lists them")]


class Agreed(BaseModel):
    """What the person answers."""

    agreed: bool = Field(description="yes, do it")


def server(connect: Callable[[str | None], ReefClient]) -> MCPServer:
    """The MCP server; ``connect(scenario)`` gives a client of the daemon, fresh for each tool call."""
    made: MCPServer = MCPServer("reef", version=__version__, instructions=_INSTRUCTIONS)

    def reads(tool: Callable[..., Any]) -> Callable[..., Any]:
        return made.tool(annotations=_READ)(_told(tool))

    @reads
    def status() -> dict[str, Any]:
        """The daemon, its model, its store, and each scenario with what it serves, its state and what it waits for."""
        with connect(None) as client:
            return client.status()

    @reads
    def records(scenario: ScenarioName, limit: Page = 20, session: str | None = None) -> dict[str, Any]:
        """The newest records of a scenario (calls, reports, requests) without their bodies."""
        with connect(None) as client:
            return {"records": client.records(scenario, limit=limit, session=session)}

    @reads
    def record(record_id: Annotated[str, Field(description="a receipt, or a report's id")]) -> dict[str, Any]:
        """One record whole: request, answer, its reports, and which step it trained. Long texts are cut, and say so."""
        with connect(None) as client:
            found: dict[str, Any] = _shortened(client.record(record_id))
            return found

    @reads
    def releases(scenario: ScenarioName, limit: Page = 20) -> dict[str, Any]:
        """The chain of versions, newest first: what is served, what is held for review, what was rejected and why."""
        with connect(None) as client:
            return {"releases": client.releases(scenario, limit=limit)}

    @reads
    def release(scenario: ScenarioName, release_id: str) -> dict[str, Any]:
        """One release: verdict, metrics, the records it learned from, and what it changes against its parent."""
        with connect(None) as client:
            found = client.release(scenario, release_id)
            changes = client.get(f"/reef/scenarios/{path_part(scenario)}/releases/{path_part(release_id)}/diff")
            return {**found, "diff": _shortened(changes)}

    @reads
    def proposals(scenario: ScenarioName, limit: Page = 10) -> dict[str, Any]:
        """Proposed changes of a harness, newest first, and what became of each."""
        with connect(None) as client:
            found: dict[str, Any] = _shortened(
                client.get(f"/reef/scenarios/{path_part(scenario)}/proposals", limit=limit)
            )
            return found

    @reads
    def knobs() -> dict[str, Any]:
        """Every key of the deployment: value, default, where it is from, and when a change applies."""
        with connect(None) as client:
            return client.knobs()

    def may_report(
        context: Context, scenario: str, references: list[str], score: float | None, feedback: str | None
    ) -> Elicit[Agreed]:
        words = ["reef", "report", "-s", scenario, *([] if score is None else ["--score", f"{score:g}"])]
        _can_ask(context, [*words, *(["--feedback", feedback] if feedback else []), *references])
        said = [f"score {score:g}"] if score is not None else []
        said += [f"feedback {feedback!r}"] if feedback else []
        return Elicit(f"Report on {', '.join(references)} of {scenario}: {', '.join(said) or 'nothing'}?", Agreed)

    @made.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False))
    @_told
    def report(
        scenario: ScenarioName,
        references: Annotated[list[str], Field(min_length=1, description="receipts that the report is about")],
        answer: Annotated[ElicitationResult[Agreed], Resolve(may_report)],
        score: Annotated[float | None, Field(description="how good it was, as the recipe counts: often 0 to 1")] = None,
        feedback: Annotated[str | None, Field(description="what was good or bad, in words")] = None,
    ) -> dict[str, Any]:
        """Report how good answers were. The person is asked first. Report only what has been seen, never a guess."""
        _agreed(answer)
        with connect(scenario) as client:
            return client.report(score=score, feedback=feedback, references=references)

    def may_promote(context: Context, scenario: str, release_id: str) -> Elicit[Agreed]:
        _can_ask(context, ["reef", "promote", "-s", scenario, release_id])
        return Elicit(f"Serve {release_id} of {scenario} from now on? It waits for review.", Agreed)

    @made.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False))
    @_told
    def promote(
        scenario: ScenarioName, release_id: str, answer: Annotated[ElicitationResult[Agreed], Resolve(may_promote)]
    ) -> dict[str, Any]:
        """Serve a release that is held for review. The person is asked first."""
        _agreed(answer)
        with connect(scenario) as client:
            return client.act(scenario, "promote", {"release_id": release_id})

    return made


def _told(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """``tool`` with our errors as an agent can read them: what is wrong, and what to do."""

    @functools.wraps(tool)
    def told(*given: Any, **named: Any) -> dict[str, Any]:
        try:
            return tool(*given, **named)
        except ReefError as error:
            raise ToolError(f"{error.message}\ntry: {error.hint}" if error.hint else error.message) from error

    return told


def _can_ask(context: Context, words: list[str]) -> None:
    """Raise, with what the person may type, where the client has no way to ask a person."""
    able = context.client_capabilities
    if able is None or able.elicitation is None:
        raise ToolError(f"this client cannot ask the person, so nothing was done\ntry: {shlex.join(words)}")


def _agreed(answer: Any) -> None:
    if not isinstance(answer, AcceptedElicitation) or not answer.data.agreed:
        raise ToolError("nothing was done: the person did not agree")


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _BODY_CHARS:
        return f"{value[:_BODY_CHARS]}… ({len(value) - _BODY_CHARS:,} more characters: reef records show)"
    if isinstance(value, dict):
        return {key: _shortened(one) for key, one in value.items()}
    return [_shortened(one) for one in value] if isinstance(value, list) else value
