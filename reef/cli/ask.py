"""train: a change of the harness, asked for in words."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from reef.cli.common import HomeOption, JsonOption, ScenarioOption, client_of, print_json, read_stdin, say


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(train)


def train(
    request: Annotated[str, typer.Argument(help="What should be different, in words; - reads standard input.")],
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for a change in words: it is proposed, compared and judged as the next step.

    Example: reef train "check your work before you answer" -s my-agent
    """
    words = read_stdin() if request == "-" else request
    with client_of(home, scenario) as client:
        found = client.post("/reef/train", {"request": words})
    if as_json:
        print_json("train", found)
        return
    name, record_id = found["scenario"], found["agent_record_id"]
    sys.stdout.write(f"{record_id}\n")
    say(f"asked for in {name}; what becomes of it: reef status, and then: reef why {record_id} -s {name}")
