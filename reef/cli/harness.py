"""agent, harness adapters, install, update, uninstall: bring an agent and the harness it runs on."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Any

import typer

from reef.cli import harness_use, tasks
from reef.cli.agent_options import (
    AgentArgument,
    ScenarioOption,
    daemon_of,
    home_at,
    installed_view,
    start_command,
    token_of,
)
from reef.cli.common import HomeOption, JsonOption, YesOption, confirm, counted, out, print_json, say, table, talk
from reef.cli.place import home_of

harness_app = typer.Typer(no_args_is_help=True, help="Agents that run on a harness which Reef serves.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    harness_use.add_to(harness_app)
    tasks.add_to(harness_app)
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
    """The agents that can be installed, and for which scenarios they are. Example: reef harness adapters"""
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
    known = home_at(client.url, home_of(home))
    place.write(served.installs.BINDING, {**binding.as_dict(), "home": known, "own_model": model is not None})
    if as_json:
        print_json("install", installed_view(place) | {"changed": done.changed or fresh, "kept": done.kept})
        return
    version = f" {one.program.version}" if one.program.version else ""
    if not (done.changed or fresh):
        say(f"already current: {agent}{version} on {done.release_id} of {found.scenario}")
    else:
        say(f"installed {agent}{version} on {done.release_id} of {found.scenario}, in {place.root}")
    served.say_done(done, place)
    choice = f"REEF_SCENARIO={found.scenario} " if len(served.installed(agents, agent)) > 1 else ""
    say(f"  start it with: {choice}{start_command(agent)}", style="dim")


@harness_app.command()
def update(agent: AgentArgument, scenario: ScenarioOption = None, as_json: JsonOption = False) -> None:
    """Bring an install to the release that is served now. A run does this by itself. Example: reef harness update pi"""
    from reef.cli import served

    one, place = served.adapter(agent), served.chosen(served.agents_dir(), agent, scenario)
    client, binding = served.reach(place)
    with client:
        fresh = served.bring_program(place.agents, one)
        done = served.bring(place, one, client, binding)
    if as_json:
        print_json("update", installed_view(place) | {"changed": done.changed or fresh, "kept": done.kept})
        return
    if not (done.changed or fresh):
        say(f"already current: {done.release_id}")
    else:
        say(f"{agent} is on {done.release_id} now" + (f" (was {done.before})" if done.before else ""))
    served.say_done(done, place)


@harness_app.command()
def uninstall(
    agent: AgentArgument,
    scenario: ScenarioOption = None,
    purge: Annotated[bool, typer.Option("--purge", help="Remove sessions and your own files there as well.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove exactly what an install wrote; your own files and the agent's sessions stay, and it says where.

    Example: reef harness uninstall pi
    """
    from reef.cli import served

    one, place = served.adapter(agent), served.chosen(served.agents_dir(), agent, scenario)
    if purge:
        confirm(f"remove everything in {place.root}, sessions too?", yes)
    undone = served.installs.uninstall(place)
    kept = undone.kept
    if purge and place.root.is_dir():
        shutil.rmtree(place.root)
        kept = []
    programs = 0
    if not served.installed(place.agents, agent):
        with talk.status(f"removing the program of {agent}"):  # some are hundreds of megabytes in small files
            programs = served.remove_programs(place.agents, one)
    for folder in (place.root.parent, place.agents):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    if as_json:
        print_json(
            "uninstall", {"removed": undone.removed, "kept": kept, "folder": str(place.root), "programs": programs}
        )
        return
    say(f"uninstalled {agent} for {place.scenario}" + (", and its program" if programs else ""))
    if kept:
        say(f"  {counted(len(kept), 'file')} of yours or of the agent's own stay in {place.root}, e.g. {kept[0]}")
