"""mcp: Reef's tools for a coding agent, over standard input and output."""

from __future__ import annotations

import importlib.util
import sys

import typer

from reef.cli.common import HomeOption, say
from reef.cli.place import home_of
from reef.client import ReefClient
from reef.errors import BadConfig, BadRequest


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(mcp)


def mcp(home: HomeOption = None) -> None:
    """Serve Reef's tools to a coding agent over MCP: reading, and report and promote after a person has agreed.

    The agent starts it; nothing is to be typed here. Examples: reef mcp --home .reef | claude mcp add reef -- reef mcp
    """
    if importlib.util.find_spec("mcp") is None:
        raise BadConfig("reef mcp needs the package mcp", hint="pip install 'reefd[mcp]'", code="no_mcp")
    if sys.stdin is None or sys.stdout is None:
        raise BadRequest(
            "MCP is spoken on standard input and output, and one of them is closed", hint="see: reef mcp --help"
        )
    if sys.stdin.isatty():
        say("this speaks MCP with an agent on standard input and output; Ctrl-C ends it")
    from reef.cli.mcp_server import server  # its libraries take longer to load than all of Reef

    folder = home_of(home)
    server(lambda scenario: ReefClient.from_home(folder, scenario=scenario, actor="mcp")).run("stdio")
