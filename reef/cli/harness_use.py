"""harness status, diff, versions, rollback, report, ask: what is done with an agent that is installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from reef.cli.agent_options import AgentArgument, FeedbackOption, ScenarioOption, agent_command, installed_view
from reef.cli.common import JsonOption, YesOption, ago, confirm, counted, cut, out, print_json, say, table
from reef.cli.complete import complete_releases
from reef.cli.pager import paged
from reef.errors import BadRequest, NotFound, ReefError

if TYPE_CHECKING:
    from reef.harness.place import Place


def add_to(app: typer.Typer) -> None:
    """Register the commands with ``harness``."""
    app.command()(status)
    app.command("diff")(show_diff)
    app.command()(versions)
    app.command()(rollback)
    app.command()(report)
    app.command()(ask)


def status(agent: AgentArgument, scenario: ScenarioOption = None, as_json: JsonOption = False) -> None:
    """What is installed, what is served, and which files you changed. Example: reef harness status pi"""
    from reef.cli import served

    one, place = served.adapter(agent), served.chosen(served.agents_dir(), agent, scenario)
    view = installed_view(place) | {
        "edited": served.installs.edits(place),
        "sessions": len(_transcripts(place, one.run.transcripts)),
    }
    try:
        served.start_of(place.agents, one)
        view["program"] = "ready"
    except ReefError as error:
        view["program"] = error.message
    try:
        client, _ = served.reach(place)
        with client:
            view["served"] = served.fetch(client, place.scenario).served.release_id
    except ReefError as error:
        view["served"], view["trouble"] = None, f"{error.message}; {error.hint}" if error.hint else error.message
    if as_json:
        print_json("harness", view)
        return
    for key in (
        "agent",
        "version",
        "program",
        "scenario",
        "release_id",
        "served",
        "url",
        "model",
        "folder",
        "sessions",
    ):
        out.print(Text(f"{key:12} {view[key] if view[key] is not None else '-'}"))
    for path in view["edited"]:
        out.print(Text(f"{'edited':12} {path}"))
    if view.get("trouble"):
        say(f"  {view['trouble']}")
    elif view["served"] != view["release_id"]:
        say(f"  {view['served']} is served: the next run takes it up, or: reef harness update {agent}")


@paged
def show_diff(agent: AgentArgument, scenario: ScenarioOption = None, as_json: JsonOption = False) -> None:
    """What an update would change in the harness that is installed. Example: reef harness diff pi"""
    from reef.cli import served

    place = served.chosen(served.agents_dir(), agent, scenario)
    client, _ = served.reach(place)
    with client:
        now = served.fetch(client, place.scenario).served
    mine = served.Tree.from_dict(place.read(served.FILE))
    said, at = served.diff(mine, now.tree), (place.read(served.installs.MANIFEST) or {}).get("release_id")
    if as_json:
        print_json("diff", {"installed": at, "served": now.release_id, "diff": said})
    elif said:
        out.print(Text(said))
    else:
        say(f"no difference: {at} is installed, {now.release_id} is served")


@paged
def versions(agent: AgentArgument, scenario: ScenarioOption = None, as_json: JsonOption = False) -> None:
    """The releases of the harness, newest first. Example: reef harness versions pi"""
    from reef.cli import served

    place = served.chosen(served.agents_dir(), agent, scenario)
    client, _ = served.reach(place)
    with client:
        rows = client.releases(place.scenario)
    at = (place.read(served.installs.MANIFEST) or {}).get("release_id")
    if as_json:
        print_json("versions", {"installed": at, "releases": rows})
        return
    table(
        ("", "release", "state", "age", "content", "why"),
        (
            (
                "●" if row["release_id"] == at else "",
                row["release_id"],
                row["state"],
                ago(row["created_at"]),
                row["content_id"][:12],
                cut(row["verdict"].get("reason", "") if row["verdict"] else "the seed", 60),
            )
            for row in rows
        ),
        empty="no releases",
    )


def rollback(
    agent: AgentArgument,
    to: Annotated[
        str | None,
        typer.Argument(help="Release to go back to; default: the parent.", autocompletion=complete_releases),
    ] = None,
    scenario: ScenarioOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve an earlier harness again, for everybody who uses it, and take it up here. Example: reef harness rollback pi r2"""
    from reef.cli import served
    from reef.cli.releases import restorable

    one, place = served.adapter(agent), served.chosen(served.agents_dir(), agent, scenario)
    client, binding = served.reach(place)
    with client:
        confirm(f"serve {restorable(client, place.scenario, to)} of {place.scenario} again?", yes)
        made = client.act(place.scenario, "rollback", {"to": to} if to else {})
        done = served.bring(place, one, client, binding)
    if as_json:
        print_json("rollback", made)
        return
    say(f"{made['release_id']} restores {made['restored_from']}, and is installed")
    served.say_done(done, place)


def report(
    agent: AgentArgument,
    score: Annotated[float | None, typer.Option(help="How good it was, e.g. 0 or 1.")] = None,
    feedback: FeedbackOption = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Another run than the last one of this folder.")
    ] = None,
    scenario: ScenarioOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how the last run in this folder went. Example: reef-pi report --score 0 --feedback "missed the empty case" """
    from reef.cli import served

    if score is None and not feedback:
        raise BadRequest("a report needs a score or feedback", hint='--score 0 --feedback "what was wrong"')
    place = served.chosen(served.agents_dir(), agent, scenario)
    if session is None:
        last = (place.read(served.installs.RUNS) or {}).get(os.path.realpath(os.getcwd()))
        if last is None:
            raise NotFound(
                f"{agent} has not been run in this folder yet, so there is nothing to report on",
                hint=f"run it here first, or name a run: {agent_command(agent)} report --session ID",
                code="no_session",
            )
        session = str(last["session"])
    client, _ = served.reach(place)
    with client:
        try:
            found = client.report(score=score, feedback=feedback, session=session)
        except ReefError as error:
            if error.code == "no_session":
                raise NotFound(
                    f"run {session} of {agent} made no model call that ended well: there is nothing to report on",
                    hint="look at its calls: reef records",
                    code="no_session",
                ) from error
            raise
    if as_json:
        print_json("report", {**found, "session": session})
    else:
        say(f"reported on {counted(len(found['references']), 'call')} of run {session}")


def ask(
    agent: AgentArgument,
    request: Annotated[str, typer.Argument(help="What should be different, in words.")],
    scenario: ScenarioOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for a change of the harness; it is proposed, compared and judged. Example: reef-pi harness "check your work" """
    from reef.cli import served

    place = served.chosen(served.agents_dir(), agent, scenario)
    client, _ = served.reach(place)
    with client:
        found = client.post("/reef/train", {"request": request, "scenario": place.scenario})
    if as_json:
        print_json("ask", found)
    else:
        say(
            f"asked for; what becomes of it: reef status, and then: reef why {found['agent_record_id']} -s {place.scenario}"
        )


def _transcripts(place: Place, pattern: str) -> list[str]:
    found = [path for folder in (place.config, place.data) if pattern for path in folder.glob(pattern)]
    return [str(path) for path in found]
