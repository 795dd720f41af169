"""harness tasks: look at a folder of tasks before harnesses are compared on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reef.cli.bar import bar
from reef.cli.common import JsonOption, cut, print_json, say, table


def add_to(app: typer.Typer) -> None:
    """Register the command with ``harness``."""
    app.command()(tasks)


def tasks(
    folder: Annotated[Path, typer.Argument(help="Folder of tasks, as reef.tasks names it.")],
    sandbox: Annotated[str, typer.Option(help="Where checks run: auto, bwrap or none.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """The tasks of a folder, and what each check says when nothing is done. Exits 1 when a check is broken or gives a
    score away. Example: reef harness tasks examples/harness_evolve/tasks"""
    from reef.evolve.executors import in_child
    from reef.evolve.tasks import read_tasks

    found, rows = read_tasks(folder), list[dict[str, Any]]()
    with bar(bytes=False) as progress:
        for number, task in enumerate(found):
            progress("checks", number, len(found))
            result = in_child("untouched", {"task": task.as_dict(), "mode": sandbox}, lambda: True)
            rows.append(
                {
                    "name": task.name,
                    "protected": task.protected,
                    "graded": task.graded,
                    "timeout_s": task.timeout_s,
                    "untouched": result.score,
                    "trouble": result.trouble,
                    "prompt": task.prompt,
                }
            )
    if as_json:
        print_json("tasks", rows)
    else:
        table(
            ("task", "", "untouched", "prompt"),
            (
                (
                    row["name"],
                    "protected" if row["protected"] else "",
                    "broken" if row["untouched"] is None else f"{row['untouched']:g}",
                    cut(row["prompt"], 80),
                )
                for row in rows
            ),
            empty="",
        )
    for row in rows:
        if row["trouble"]:
            say(f"{row['name']}: {row['trouble']}")
        elif row["untouched"]:
            say(f"{row['name']} scores {row['untouched']:g} when nothing is done: it says little about a harness")
    if any(row["trouble"] or row["untouched"] for row in rows):
        raise typer.Exit(1)
