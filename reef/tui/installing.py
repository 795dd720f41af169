"""The action that installs an agent: which one, what that writes and how it is undone, then the command, as a child."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from reef.errors import Conflict, ReefError
from reef.tui.child import run_child
from reef.tui.dialogs import Form, YesNo
from reef.tui.text import Line, one

if TYPE_CHECKING:
    from reef.tui.app import ReefApp


def folder_of(agent: str, scenario: str) -> Path:
    """Where the command puts an install: the same rule as its own, which no client may load."""
    home = os.environ.get("REEF_HOME")
    return (
        (Path(home).expanduser() if home else platformdirs.user_data_path("reef")).absolute()
        / "agents"
        / agent
        / scenario
    )


async def install(app: ReefApp) -> None:
    """Install an agent with the harness that is shown, on this machine."""
    name = app.store.snapshot.scenario
    if name is None or app.store.snapshot.chosen.get("surface") != "harness":
        app.say("this scenario has no harness to install: reef up --recipe harness has one", "warning")
        return
    try:
        found = (await app.store.source.get("/reef/harness/adapters"))["adapters"]
    except ReefError as error:
        app.tell(error)
        return
    adapters: Mapping[str, Any] = {str(row["name"]): row for row in found}
    question = f"agent: one of {', '.join(adapters)}"
    values = await app.push_screen_wait(
        Form("Install an agent", [("agent", question, next(iter(adapters), ""))], "Go on")
    )
    if values is None:
        return
    if (row := adapters.get(values["agent"])) is None:
        app.say(f"there is no agent {values['agent']!r}; {question}", "warning")
    elif await app.push_screen_wait(YesNo(f"Install {row['name']} for {name}", _said(row, name))):
        await _install(app, row["name"], name)


def _said(row: Mapping[str, Any], scenario: str) -> list[Line]:
    """What will be written, and how it is undone."""
    agent = str(row["name"])
    program = " ".join(str(row[key]) for key in ("package", "version") if row.get(key))
    lines = [
        one(str(row["summary"])), (),
        one("It writes only below this folder, and none of your own files:", "dim"), one(f"  {folder_of(agent, scenario)}"),
        (("  config/  ", ""), (f"{', '.join(row['kinds'])} of the served release", "dim")),
        (("  *.json   ", ""), ("the address and token of this daemon, and what was written", "dim")),
    ]  # fmt: skip
    if program:
        lines.append((("  program  ", ""), (f"{program}, {row['size_mb']} MB, if it is not there", "dim")))
    return [*lines, (), one("It is undone with:", "dim"), one(f"  reef harness uninstall {agent} -s {scenario}")]


async def _install(app: ReefApp, agent: str, scenario: str) -> None:
    from reef.tui.actions import Entry

    if app.demo:
        app.tell(
            Conflict("this is demo data: nothing is installed", hint="start a daemon with: reef up --recipe harness")
        )
        return
    where = ["--home", str(app.home)] if app.home is not None else ["--url", app.store.snapshot.address]
    command = ["harness", "install", agent, "-s", scenario, *where]
    app.say(f"installing {agent}")
    done, told = await run_child(*command)
    undo = f"undo it with: reef harness uninstall {agent} -s {scenario}"
    app.acted(Entry(app.clock(), shlex.join(["reef", *command]), f"{told}\n{undo}" if done else told, done))
    app.say(f"{told[-300:]}  {undo}" if done else told[-400:], "information" if done else "error")
