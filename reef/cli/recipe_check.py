"""recipe check and bench: is a recipe right, and how much does it take?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.bar import bar
from reef.cli.common import JsonOption, out, print_json, say, size, table

TargetArgument = Annotated[
    str | None, typer.Argument(help="Kind, or package.module:Class; or give -c.", show_default=False)
]
FileOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file that names the recipe.", show_default=False)
]
SeedOption = Annotated[int, typer.Option("--seed", help="What the sample records and their orders are drawn from.")]

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Register the commands with ``recipe``."""
    app.command("check")(recipe_check)
    app.command("bench")(recipe_bench)


def recipe_check(
    target: TargetArgument = None,
    config: FileOption = None,
    examples: Annotated[int, typer.Option("--examples", help="Sets of sample records that are played.", min=1)] = 100,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Prove a recipe without a model: objective, keys, and its processor over records in every order, with a crash at each point.

    A rule that does not hold is shown with the fewest events that break it. Exits 1 when there is one.

    Examples: reef recipe check -c concise/serve.yaml | reef recipe check concise.recipe:ConciseRecipe --examples 1000
    """
    from reef.authoring.check import as_dict, check
    from reef.authoring.subject import named

    cls, loaded = named(target, config, os.environ)
    with bar(bytes=False) as progress:
        found = check(
            cls, loaded, seed=seed, examples=examples, tick=lambda done, total: progress("examples", done, total)
        )
    if as_json:
        print_json("recipe_check", as_dict(found))
    else:
        out.print(Text(found.target, "bold"))
        for one in found.findings:
            out.print(Text.assemble("  ", (f"{one.state:<8}", _COLOURS[one.state]), f"{one.id}: {one.message}"))
            for line in one.detail:
                out.print(Text(f"            {line}"))
            if one.hint:
                out.print(Text(f"            {one.hint}", "dim"))
    if not found.ok:
        raise typer.Exit(1)


def recipe_bench(
    target: TargetArgument = None,
    config: FileOption = None,
    records: Annotated[int, typer.Option("--records", help="Calls, each with a report.", min=100)] = 5000,
    as_json: JsonOption = False,
) -> None:
    """Measure a recipe's own code without a model or a store: records per second, batches, memory, a restart, the preparer.

    Ctrl-C ends it with what has been measured. Example: reef recipe bench -c concise/serve.yaml
    """
    from reef.authoring.bench import bench
    from reef.authoring.subject import named

    cls, loaded = named(target, config, os.environ)
    rows: list[dict[str, Any]] = []
    stopped = False
    with bar(bytes=False) as progress:
        try:
            for row in bench(cls, loaded, records, progress, os.environ):
                rows.append(row)
        except KeyboardInterrupt:
            stopped = True
    if as_json:
        told = {"target": f"{cls.__module__}:{cls.__qualname__}", "records": records, "stopped": stopped, "rows": rows}
        print_json("recipe_bench", told)
    else:
        table(
            ("what", "", "of"),
            ((row["what"], _figure(row["value"], row["unit"]), row["of"]) for row in rows),
            empty="stopped before anything was measured",
        )
        if stopped:
            say("stopped: this is what had been measured")
    if stopped:
        raise typer.Exit(130)


def _figure(value: float, unit: str) -> str:
    if unit == "bytes":
        return size(value)
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value:,.0f} {unit}"
