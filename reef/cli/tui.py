"""tui: the dashboard. Textual is loaded here, and by no other command."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shlex
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from reef.cli.common import HomeOption, ScenarioOption, say
from reef.cli.place import home_of
from reef.core.reports import check_name
from reef.errors import BadConfig, BadRequest, NotFound


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
    web: Annotated[bool, typer.Option("--web", help="In a browser on this machine, with the daemon's token.")] = False,
    port: Annotated[int, typer.Option(help="Port of --web; 0 picks a free one.", min=0, max=65535)] = 8910,
) -> None:
    """Watch it work: calls, reports, steps and releases as they happen, and the keys to act on them.

    Examples: reef tui | reef tui --demo | reef tui --read-only -s my-agent | reef tui --web
    """
    check_name(scenario, "scenario")
    if web:
        _serve(home, url, demo, port)
        return
    drawn = os.environ.get("TEXTUAL_DRIVER")  # into a page of a browser, say
    streams = (sys.stdin, sys.stdout, sys.stderr)  # it draws on the last
    if not drawn and not all(stream is not None and stream.isatty() for stream in streams):
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
    made = ReefApp(
        connect, home=startable, scenario=scenario, read_only=read_only, demo=demo, ascii_only=ascii_only, theme=theme,
        keys=keys_file(),
    )  # fmt: skip
    made.run()
    if made.return_code:
        raise typer.Exit(made.return_code)


def _serve(home: Path | None, url: str | None, demo: bool, port: int) -> None:
    """The same in a browser: each one gets a process with the words that were typed here."""
    if importlib.util.find_spec("textual_serve") is None:
        raise BadConfig(
            "the dashboard in a browser needs textual-serve", hint="pip install 'reefd[web]'", code="no_web"
        )
    from reef.tui.web import WebServer

    token, where = _door(home_of(home), url, demo)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadConfig(
                f"cannot listen on 127.0.0.1:{port}: {error.strerror}", hint="choose one: --port 0"
            ) from error
        port = free.getsockname()[1]
    words = [word for at, word in enumerate(sys.argv[1:], 1) if word != "--web" and not _of_port(at)]
    command = shlex.join([sys.executable, "-m", "reef.cli.main", *words])

    def ready(address: str) -> None:
        say(f"the dashboard is at {address}")
        say(f"it asks for the token, which is {where}; Ctrl-C ends it")

    WebServer(command, port, token, ready).serve()


def _of_port(at: int) -> bool:
    return sys.argv[at].startswith("--port") or sys.argv[at - 1] == "--port"


def _door(home: Path, url: str | None, demo: bool) -> tuple[str, str]:
    """What a browser must give, and where a person finds it."""
    if demo:
        made = secrets.token_urlsafe(12)
        return made, made
    if url is not None and (given := os.environ.get("REEF_TOKEN")):
        return given, "that of REEF_TOKEN"
    path = home / "token"
    if not path.is_file() or not (found := path.read_text(encoding="utf-8", errors="replace").strip()):
        raise NotFound(f"there is no token at {path}", hint="a first start makes it: reef up")
    return found, f"in {path}"
