"""Where steps run: the daemon of a home, called as any client calls it, the agent's program, and an executor for episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from reef.client import ReefClient, content_text
from reef.core.texts import writable
from reef.errors import NotFound, ReefError
from reef.evolve.drafts import first_prompt
from reef.evolve.episode import Result, Spec
from reef.evolve.executors import Executor, in_child
from reef.evolve.propose import cut_middle, message_text, objects, run_text
from reef.evolve.sandbox import bubblewrap, wants_bubblewrap
from reef.evolve.tasks import TaskFolder
from reef.evolve.values import Outage, Transcript
from reef.harness.adapters import adapter
from reef.harness.place import agents_dir
from reef.harness.program import ensure, start_of
from reef.harness.tree import Tree

_ASK_S = 600.0
_SAID_CHARS = 4000
_LONGEST_ANSWER = 256 * 1024


class DaemonMachine:
    """The Machine of a running daemon. Address and token are read from its home, as the command line does."""

    def __init__(
        self, home: Path, scenario: str, agent: str, executor: Executor, *, sandbox: str, calls: int, model: str | None
    ) -> None:
        self._home, self._scenario, self._agent, self._executor = home, scenario, agent, executor
        self._sandbox, self._calls, self._named = sandbox, calls, model
        self._start: list[str] = []

    def spec(self, episode: str, tree: Tree, task: TaskFolder, seed: int) -> Spec:
        """An episode on this daemon; the agent's program is installed when it is not there."""
        start, programs = self._program()
        return Spec(
            episode,
            task.as_dict(),
            tree.as_dict(),
            self._agent,
            start,
            programs,
            seed,
            self._served[0],
            self._token(),
            self._scenario,
            self._served[1],
            str(self._home / "episodes" / episode.replace("-", "/", 1)),
            self._calls,
            self._sandbox,
        )

    def preflight(self, go_on: Callable[[], bool]) -> None:
        """Start the agent's program once, and no more of it; raises ReefError with what the program says."""
        start, programs = self._program()
        found = in_child("preflight", {"start": start, "programs": programs, "mode": self._sandbox}, go_on)
        if found.trouble is not None:
            said = f"{self._agent} does not start here: {found.trouble}"
            raise ReefError(said, hint=f"reef harness install {self._agent}")

    def unboxed(self) -> str | None:
        """Why episodes run without a sandbox, None when they are in one."""
        return None if wants_bubblewrap(self._sandbox) else bubblewrap() or "sandbox: none"

    def untouched(self, task: TaskFolder, go_on: Callable[[], bool]) -> Result:
        """The task's check on what nobody has touched, in a process of its own: it may hang as any other."""
        return in_child("untouched", {"task": task.as_dict(), "mode": self._sandbox}, go_on)

    def run(self, spec: Spec, go_on: Callable[[], bool]) -> Result:
        """Through the executor."""
        return self._executor.run(spec, go_on)

    def ask(self, session: str, system: str, prompt: str) -> str:
        """One call of the deployment's model, recorded like any other and never learned from."""
        import httpx  # what calls the daemon loads it when it does

        said = (("system", writable(system)), ("user", writable(prompt)))
        messages = [{"role": role, "content": text} for role, text in said]
        headers = {"x-reef-session": session, "x-reef-tag-episode": session}
        try:
            with self._client() as client:
                answer = client.http.post(
                    "/v1/chat/completions", json={"model": self._served[1], "messages": messages}, headers=headers
                )
        except (httpx.HTTPError, ReefError) as error:
            raise Outage(f"the model could not be asked: {type(error).__name__}: {error}") from error
        if answer.status_code != 200:
            raise Outage(f"the model answered {answer.status_code}: {answer.text[:300]}")
        try:
            text = content_text(answer.json())
        except (ValueError, NotFound) as error:  # what stands between us and the model answered, and not the model
            raise Outage(f"the model's server answered with no message: {answer.text[:300]!r}") from error
        if not isinstance(text, str):
            raise Outage(f"the model's server answered with {type(text).__name__} in place of text")
        return text if len(text) <= _LONGEST_ANSWER else cut_middle(text, _LONGEST_ANSWER)

    def transcripts(self, runs: Sequence[Mapping[str, Any]], limit: int) -> list[Transcript]:
        """What the last call of each run holds: an agent sends its whole conversation with every call."""
        found: list[Transcript] = []
        share = limit // max(len(runs), 1)
        with self._client() as client:
            for run in runs:
                text, said = self._conversation(client, run["references"], share), run["feedback"] or ""
                said = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
                found.append(Transcript(run["report_id"], run["score"], cut_middle(said, _SAID_CHARS), text))
        return found

    def prompt(self, run: Mapping[str, Any]) -> str:
        """From the first call of the run that is kept."""
        with self._client() as client:
            for reference in run["references"]:
                try:
                    return first_prompt(client.record(reference).get("request") or {}, message_text)
                except NotFound:
                    continue
                except ReefError as error:  # the daemon is on its way down, or up
                    raise Outage(error.message) from error
        return ""

    def _conversation(self, client: ReefClient, references: Sequence[str], limit: int) -> str:
        for reference in reversed(references):
            try:
                record = client.record(reference)
            except NotFound:
                continue
            except ReefError as error:  # the daemon is on its way down, or up
                raise Outage(error.message) from error
            for request in objects([record.get("request")]):
                system = request.get("system")
                head = [{"role": "system", "content": system}] if isinstance(system, str) else []
                messages = request.get("messages") or request.get("input")
                if isinstance(messages, str):
                    messages = [{"role": "user", "content": messages}]
                if found := objects(messages):
                    return run_text([*head, *found], _said(record.get("response")), limit)
        return "(its calls are not kept any more)"

    def _token(self) -> str:
        return (self._home / "token").read_text(encoding="utf-8").strip()

    @cached_property
    def _served(self) -> tuple[str, str]:
        """Address and model of the daemon, which this is a part of: both stay as they are while it lives."""
        with self._client() as client:
            return client.url, self._named or str(client.status()["inference"].get("model") or "default")

    def _program(self) -> tuple[list[str], list[str]]:
        """The agent's command, and the folders it needs; installed, or found, when it is not where it was."""
        start = self._start
        if not start or not all(Path(word).exists() for word in start if word.startswith("/")):
            agents, agent = agents_dir(), adapter(self._agent)
            ensure(agents, agent, lambda stage, done, total: None)
            start = self._start = start_of(agents, agent)
        return start, _folders(agents_dir(), start)

    def _client(self) -> ReefClient:
        try:
            return ReefClient.from_home(self._home, scenario=self._scenario, actor="evolve", timeout_s=_ASK_S)
        except ReefError as error:
            raise Outage(error.message) from error


def _said(response: Any) -> str:
    """The text of an answer of any route."""
    found: list[str] = []
    for answer in objects([response]):
        for message in objects([choice.get("message") for choice in objects(answer.get("choices"))]):
            calls = message.get("tool_calls")
            found += [str(message.get("content") or ""), json.dumps(calls) if calls else ""]
        blocks = [part for item in objects(answer.get("output")) for part in objects(item.get("content")) or [item]]
        for block in [*objects(answer.get("content")), *blocks]:
            found.append(str(block.get("text") or json.dumps(block, ensure_ascii=False)))
    return "\n".join(text for text in found if text) or "(no answer)"


def _folders(agents: Path, start: Sequence[str]) -> list[str]:
    """Folders the agent's program needs, beside the system's."""
    programs = agents / "programs"
    needed = [programs] if programs.is_dir() else []
    first = Path(start[0]).resolve()
    if not first.is_relative_to("/usr") and not first.is_relative_to(programs) and first.parent.name == "bin":
        needed.append(first.parents[1])  # a Node.js of the user's own
    return [str(one) for one in needed]
