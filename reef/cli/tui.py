"""tui: the dashboard. Textual is loaded here, and by no other command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from reef.cli.common import HomeOption, ScenarioOption
from reef.cli.place import home_of
from reef.core.reports import check_name
from reef.errors import BadRequest


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(tui)


def tui(
    home: HomeOption = None,
    url: Annotated[
        str | None, typer.Option(help="The daemon's address; the token is then REEF_TOKEN.", show_default=False)
    ] = None,
    scenario: ScenarioOption = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Without the keys that change something.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Recorded data; needs no daemon.")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Without box lines, arrows and dots.")] = False,
    theme: Annotated[str | None, typer.Option(help="A theme of Textual, e.g. nord.", show_default=False)] = None,
) -> None:
    """Watch it work: calls, reports, steps and releases as they happen, and the keys to act on them.

    Examples: reef tui | reef tui --demo | reef tui --read-only -s my-agent
    """
    check_name(scenario, "scenario")
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # it draws on the last one
        raise BadRequest("the dashboard needs a terminal, and this is none", hint="for programs: reef status --json")
    from textual.theme import BUILTIN_THEMES

    from reef.tui.app import ReefApp
    from reef.tui.demo import Demo
    from reef.tui.keys import keys_file
    from reef.tui.source import of_home, of_url

    if theme is not None and theme not in BUILTIN_THEMES:
        raise BadRequest(f"there is no theme {theme!r}", hint=f"one of: {', '.join(sorted(BUILTIN_THEMES))}")
    folder = home_of(home)
    connect = (lambda: Demo()) if demo else of_home(folder) if url is None else of_url(url, folder)
    startable = folder if url is None and not demo else None
    ReefApp(
        connect, home=startable, scenario=scenario, read_only=read_only, demo=demo, ascii_only=ascii_only, theme=theme,
        keys=keys_file(),
    ).run()  # fmt: skip
