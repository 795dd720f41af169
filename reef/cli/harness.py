"""harness install, update, status, diff, versions, ask, report, rollback, uninstall: an agent on a served harness."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.text import Text

from reef.cli.common import (
    HomeOption,
    JsonOption,
    YesOption,
    ago,
    client_of,
    confirm,
    cut,
    out,
    print_json,
    say,
    table,
)
from reef.cli.place import home_of
from reef.client import ReefClient, discovery
from reef.errors import BadRequest, NotFound, ReefError

if TYPE_CHECKING:
    from reef.harness.place import Place

harness_app = typer.Typer(no_args_is_help=True, help="Agents that run on a harness which Reef serves.")

AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="See: reef harness adapters.", autocompletion=lambda: _agents())
]
ScenarioOption = Annotated[
    str | None,
    typer.Option(
        "--scenario", "-s", envvar="REEF_SCENARIO", help="Scenario; default: the deployment's.", show_default=False
    ),
]
FeedbackOption = Annotated[str | None, typer.Option(help="What was good or wrong, in words.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(harness_app, name="harness")
    everything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(context_settings=everything, add_help_option=False)(agent)


def agent(context: typer.Context, name: AgentArgument) -> None:
    """Run an installed agent, as reef-AGENT does. Example: reef agent pi -p "fix the failing test" """
    if name in ("-h", "--help"):
        out.print(context.get_help())
        return
    from reef.cli.agent import run

    raise typer.Exit(run(name, sys.argv[sys.argv.index("agent") + 2 :]))  # as they were typed: a parser would take --


@harness_app.command("adapters")
def list_adapters(as_json: JsonOption = False) -> None:
    """The agents that can be installed, and for which scenarios they are."""
    from reef.cli import served

    agents = served.agents_dir()
    rows: list[dict[str, Any]] = []
    good, bad = served.readable()
    for one in good:
        rows.append(
            {
                "name": one.name,
                "summary": one.summary,
                "version": one.program.version or None,
                "size_mb": one.program.size_mb,
                "installed_for": served.installed(agents, one.name),
            }
        )
    if as_json:
        print_json("adapters", rows)
        return
    table(
        ("agent", "version", "size", "installed for", "what it is"),
        (
            (
                row["name"],
                row["version"] or "-",
                f"{row['size_mb']} MB" if row["size_mb"] else "-",
                ", ".join(row["installed_for"]) or "-",
                row["summary"],
            )
            for row in rows
        ),
        empty="",
    )
    for error in bad:
        say(f"left out: {error.message}")


@harness_app.command()
def install(
    agent: AgentArgument,
    scenario: ScenarioOption = None,
    url: Annotated[
        str | None, typer.Option("--url", help="The daemon's address; the token is then taken from REEF_TOKEN.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model id the agent asks for; default: the daemon's.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Install an agent and the harness it runs on, into Reef's own directory. Example: reef harness install pi"""
    from reef.cli import served

    one, agents = served.adapter(agent), served.agents_dir()
    with daemon_of(url, home) as client:
        found = served.fetch(client, scenario)
        place = served.Place(agents, agent, found.scenario)
        binding = served.Binding(client.url, token_of(client), found.scenario, served.model_of(model, found))
        fresh = served.bring_program(agents, one)
        done = served.installs.sync(place, one, found.served, binding)
    known = _home_at(client.url, home_of(home))
    place.write(served.installs.BINDING, {**binding.as_dict(), "home": known, "own_model": model is not None})
    if as_json:
        print_json("install", _installed(place) | {"changed": done.changed or fresh, "kept": done.kept})
        return
    version = f" {one.program.version}" if one.program.version else ""
    if not (done.changed or fresh):
        say(f"already current: {agent}{version} on {done.release_id} of {found.scenario}")
    else:
        say(f"installed {agent}{version} on {done.release_id} of {found.scenario}, in {place.root}")
    served.say_done(done, place)
    say(f"  start it with: {_command(agent)}", style="dim")


@harness_app.command()
def update(agent: AgentArgument, scenario: ScenarioOption = None, as_json: JsonOption = False) -> None:
    """Bring an install to the release that is served now. A run does this by itself."""
    from reef.cli import served

    one, place = served.adapter(agent), served.chosen(served.agents_dir(), agent, scenario)
    client, binding = served.reach(place)
    with client:
        fresh = served.bring_program(place.agents, one)
        done = served.bring(place, one, client, binding)
    if as_json:
        print_json("update", _installed(place) | {"changed": done.changed or fresh, "kept": done.kept})
        return
    if not (done.changed or fresh):
        say(f"already current: {done.release_id}")
    else:
        say(f"{agent} is on {done.release_id} now" + (f" (was {done.before})" if done.before else ""))
    served.say_done(done, place)


@harness_app.command()
def status(agent: AgentArgument, scenario: ScenarioOption = None, as_json: JsonOption = False) -> None:
    """What is installed, what is served, and which files you changed."""
    from reef.cli import served

    one, place = served.adapter(agent), served.chosen(served.agents_dir(), agent, scenario)
    view = _installed(place) | {
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
        view["served"], view["trouble"] = None, error.message
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


@harness_app.command("diff")
def show_diff(agent: AgentArgument, scenario: ScenarioOption = None, as_json: JsonOption = False) -> None:
    """What an update would change in the harness that is installed."""
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


@harness_app.command()
def versions(agent: AgentArgument, scenario: ScenarioOption = None, as_json: JsonOption = False) -> None:
    """The releases of the harness, newest first."""
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


@harness_app.command()
def rollback(
    agent: AgentArgument,
    to: Annotated[str | None, typer.Argument(help="Release to go back to; default: the parent.")] = None,
    scenario: ScenarioOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve an earlier harness again, for everybody who uses it, and take it up here."""
    from reef.cli import served

    one, place = served.adapter(agent), served.chosen(served.agents_dir(), agent, scenario)
    client, binding = served.reach(place)
    with client:
        confirm(f"serve {to or 'the parent release'} of {place.scenario} again?", yes)
        made = client.act(place.scenario, "rollback", {"to": to} if to else {})
        done = served.bring(place, one, client, binding)
    if as_json:
        print_json("rollback", made)
        return
    say(f"{made['release_id']} restores {made['restored_from']}, and is installed")
    served.say_done(done, place)


@harness_app.command()
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
        say(f"reported on {len(found['references'])} calls of run {session}")


@harness_app.command()
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


@harness_app.command()
def uninstall(
    agent: AgentArgument,
    scenario: ScenarioOption = None,
    purge: Annotated[bool, typer.Option("--purge", help="Remove sessions and your own files there as well.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove exactly what an install wrote; your own files and the agent's sessions stay, and it says where."""
    from reef.cli import served

    one, place = served.adapter(agent), served.chosen(served.agents_dir(), agent, scenario)
    if purge:
        confirm(f"remove everything in {place.root}, sessions too?", yes)
    undone = served.installs.uninstall(place)
    kept = undone.kept
    if purge and place.root.is_dir():
        shutil.rmtree(place.root)
        kept = []
    programs = 0 if served.installed(place.agents, agent) else served.remove_programs(place.agents, one)
    for folder in (place.root.parent, place.agents):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    if as_json:
        print_json(
            "uninstall", {"removed": undone.removed, "kept": kept, "folder": str(place.root), "programs": programs}
        )
        return
    say(f"uninstalled {agent} for {place.scenario}")
    if kept:
        say(f"  {len(kept)} files that are yours or the agent's own stay in {place.root}, e.g. {kept[0]}")


# -- inside


def _agents() -> list[str]:
    from reef.cli import served

    return list(served.adapters())


def agent_command(agent: str) -> str:
    """What is typed to run an agent."""
    return f"reef-{agent}" if shutil.which(f"reef-{agent}") else f"reef agent {agent}"


def _command(agent: str) -> str:
    beside = Path(sys.executable).with_name(f"reef-{agent}")
    return (
        f"reef-{agent}" if shutil.which(f"reef-{agent}") else str(beside) if beside.exists() else agent_command(agent)
    )


def daemon_of(url: str | None, home: Path | None) -> ReefClient:
    """The daemon to install from: the one at ``url`` with the token of the environment, or the one of a state directory."""
    if url is None:
        return client_of(home)
    token = os.environ.get("REEF_TOKEN", "")
    if not token:
        raise BadRequest("REEF_TOKEN is not set", hint="export REEF_TOKEN=... (the daemon's access token)")
    return ReefClient(url, token, actor="cli")


def _home_at(url: str, near: Path) -> str | None:
    """The state directory of the daemon at ``url``, if it is ``near``; by its port, because this machine has many names."""
    found = discovery(near)
    same = found is not None and urlsplit(str(found["url"])).port == urlsplit(url).port
    return str(near) if same else None


def token_of(client: ReefClient) -> str:
    return str(client.http.headers["x-reef-token"])


def _installed(place: Place) -> dict[str, Any]:
    from reef.cli import served

    manifest, kept = place.read(served.installs.MANIFEST) or {}, served.remembered(place)
    return {
        "agent": place.adapter,
        "version": manifest.get("program") or None,
        "scenario": place.scenario,
        "release_id": manifest.get("release_id"),
        "content_id": manifest.get("content_id"),
        "url": kept.get("url"),
        "model": kept.get("model"),
        "folder": str(place.root),
    }


def _transcripts(place: Place, pattern: str) -> list[str]:
    found = [path for folder in (place.config, place.data) if pattern for path in folder.glob(pattern)]
    return [str(path) for path in found]
