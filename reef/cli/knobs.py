"""knob list, set and reset: the keys of the running deployment, and changing its recipe's numbers while it runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reef.cli.common import HomeOption, JsonOption, client_of, cut, goes_on, print_json, say, table
from reef.client import ReefClient

knob_app = typer.Typer(no_args_is_help=False, help="The keys of the deployment that runs.")

NameArgument = Annotated[str, typer.Argument(help="A key of the recipe; reef. may be left out.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(knob_app, name="knob")


@knob_app.callback(invoke_without_command=True)
def knob_root(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List every key with its value and where that is from. Example: reef knob"""
    if not goes_on(context):
        knob_list(home, as_json)


@knob_app.command("list")
def knob_list(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List every key; the same as reef knob. Example: reef knob list --json"""
    with client_of(home) as client:
        found = client.knobs()
    if as_json:
        print_json("knobs", found)
        return
    _show(found, {row["name"] for row in found["knobs"]})


@knob_app.command("set")
def knob_set(
    name: NameArgument,
    value: Annotated[str, typer.Argument(help="The new value.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a number of the recipe from the next batch on, until the daemon stops. Example: reef knob set batch_size 16"""
    with client_of(home) as client:
        _changed(client, name, value, as_json)


@knob_app.command("reset")
def knob_reset(name: NameArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Go back to what the daemon was started with. Example: reef knob reset batch_size"""
    with client_of(home) as client:
        _changed(client, name, None, as_json)


def _changed(client: ReefClient, name: str, value: str | None, as_json: bool) -> None:
    full = name if "." in name else f"reef.{name}"
    found = client.change_knobs({full: value})
    if as_json:
        print_json("knobs", found)
        return
    _show(found, {full})
    if value is not None:
        place = found["file"] or "a file for reef up -c"
        say(f"it lasts until the daemon stops; to keep it, set it in {place}")


def _show(found: dict[str, Any], names: set[str]) -> None:
    table(
        ("knob", "value", "default", "from", "applies", "what it is"),
        (
            (
                row["name"],
                _text(row["value"]),
                _text(row["default"]),
                row["origin"],
                row["applies"].replace("_", " "),
                cut(row["help"], 60),
            )
            for row in found["knobs"]
            if row["name"] in names
        ),
        empty="no keys: see reef config show",
    )


def _text(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
