"""scenarios: the workloads of a deployment."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.common import (
    HomeOption,
    JsonOption,
    ago,
    client_of,
    goes_on,
    out,
    print_json,
    say,
    size,
    table,
)
from reef.cli.complete import complete_scenarios
from reef.cli.pager import paged
from reef.cli.place import here
from reef.client import path_part

scenarios_app = typer.Typer(no_args_is_help=False, help="Workloads: their records, trainer and releases.")

NameArgument = Annotated[str, typer.Argument(help="The scenario's name.", autocompletion=complete_scenarios)]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(scenarios_app, name="scenarios")


@scenarios_app.callback(invoke_without_command=True)
def scenarios_root(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List scenarios."""
    if not goes_on(context):
        scenarios_list(home, as_json)


@scenarios_app.command("list")
@paged
def scenarios_list(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List scenarios; the same as reef scenarios. Example: reef scenarios"""
    with client_of(home) as client:
        rows = client.get("/reef/scenarios")["scenarios"]
    if as_json:
        print_json("scenarios", rows)
        return
    table(
        ("scenario", "recipe", "surface", "serves", "step", "state", "bodies"),
        ((row["name"], row["recipe"], row["surface"], row["release_id"] or "-", row["step"], row["state"],
          size(row["bytes"])) for row in rows),
        empty='there is no scenario yet; make a call: reef call "hello"',
    )  # fmt: skip


@scenarios_app.command("show")
@paged
def scenarios_show(name: NameArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """One scenario: what it holds, and what it waits for. Example: reef scenarios show my-agent"""
    with client_of(home) as client:
        found = client.get(f"/reef/scenarios/{path_part(name)}")
    if as_json:
        print_json("scenario", found)
        return
    counts = {f"{kind}s": _listed(by) for kind, by in found["counts"].items()}
    rows: dict[str, Any] = {
        **{key: found[key] for key in ("name", "recipe", "surface", "release_id", "step", "state")},
        "created": f"{ago(found['created_at'])} ago",
        "batch": f"{found['batch']['have']}/{found['batch']['need']}" if found["batch"]["need"] else "-",
        "waits for": here(found["detail"] or found["waiting_for"]),
        **counts,
        "do not train": _listed(found["reasons"]),
        "bodies": size(found["bytes"]),
    }
    for key, value in rows.items():
        out.print(Text(f"{key:14} {'-' if value in (None, '') else value}"))


@scenarios_app.command("new")
def scenarios_new(
    name: Annotated[str, typer.Argument(help="Letters, digits, '.', '_' and '-'.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a scenario. Example: reef scenarios new my-agent"""
    with client_of(home) as client:
        found = client.post("/reef/scenarios", {"name": name})
    if as_json:
        print_json("scenario", found)
    else:
        say(f"scenario {name} is there; use it with -s {name}, or the header x-reef-scenario: {name}")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
