"""recipe list, show, new: what there is, what it can be told, and a first package of one's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli import recipe_check
from reef.cli.common import JsonOption, YesOption, out, print_json, say, table, talk
from reef.errors import BadRequest

recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: what feedback becomes.")

TargetArgument = Annotated[str, typer.Argument(help="Kind, or package.module:Class.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(recipe_app, name="recipe")
    recipe_check.add_to(recipe_app)


@recipe_app.command("list")
def recipe_list(as_json: JsonOption = False) -> None:
    """Every recipe that --recipe takes: bundled, of the cookbook, and those that packages bring. Example: reef recipe list"""
    from reef.authoring.facts import WORKS, listed

    rows, broken = listed()
    if as_json:
        print_json("recipes", {"recipes": rows, "broken": [asdict(one) for one in broken]})
        return
    table(
        ("recipe", "updates", "work", "state", "needs", "from", "what it does"),
        (
            (
                row["kind"],
                row["surface"],
                WORKS.get(row["work"], row["work"]),
                "yes" if row["stateful"] else "no",
                ", ".join(row["needs"]) or "-",
                row["origin"],
                row["summary"] if row["implemented"] else f"(not implemented yet) {row['summary']}",
            )
            for row in rows
        ),
        empty="",
    )
    for one in broken:
        say(f"broken: {one.kind} ({one.path}, from {one.origin}): {one.error}", "red")


@recipe_app.command("show")
def recipe_show(target: TargetArgument, as_json: JsonOption = False) -> None:
    """What a recipe is made of, and every key it takes in a configuration. Example: reef recipe show grpo"""
    from reef.authoring.facts import WORKS, shown
    from reef.dotted import reachable_from

    reachable_from(target, Path.cwd())
    found = shown(target)
    if as_json:
        print_json("recipe", found)
        return
    out.print(Text(f"{found['kind']}: {found['summary']}", "bold"))
    state = "stateful" if found["stateful"] else "stateless"
    facts = {
        "updates": found["surface"],
        "work": f"{WORKS.get(found['work'], found['work'])}, {state}",
        "needs": ", ".join(found["needs"]) or "-",
        "class": found["path"],
        **{name.replace("_", " "): found.get(name) for name in ("processor", "preparer", "loss_family", "backend")},
    }
    for name, value in facts.items():
        if value:
            out.print(Text(f"  {name:<12} {value}"))
    out.print()
    table(
        ("key", "type", "default", "variable", "what it says"),
        (
            (
                f"reef.{one['name']}",
                one["type"],
                "-" if one["default"] is None else one["default"],
                one["env"] or "-",
                one["help"] + _bounds(one),
            )
            for one in found["knobs"]
        ),
        empty="it has no keys of its own",
    )


@recipe_app.command("new")
def recipe_new(
    name: Annotated[str, typer.Argument(help="Name of the package, and of the recipe.", show_default=False)],
    surface: Annotated[
        str | None, typer.Option(help="What is updated: weights, harness or nothing.", show_default=False)
    ] = None,
    work: Annotated[
        str | None, typer.Option(help="How work arrives: stream, chat or research.", show_default=False)
    ] = None,
    stateful: Annotated[
        bool | None,
        typer.Option("--stateful/--stateless", help="Whether steps remember something.", show_default=False),
    ] = None,
    into: Annotated[Path, typer.Option("--into", help="Folder that the package is put into.")] = Path(),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files and write nothing.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the package of a recipe of your own: it trains, boots and passes its tests as it stands, and says what to edit.

    What is not given is asked for; with --yes it is weights, stream, stateless.

    Examples: reef recipe new concise | reef recipe new tidy --surface harness --work chat --stateful
    """
    from reef.authoring import scaffold
    from reef.authoring.cells import STATES, SURFACES, WORKS, Cell

    scaffold.check_name(name, into)
    chosen = Cell(
        surface=(picked := _choice("surface", surface, SURFACES, yes)),
        work=_choice("work", work, WORKS, yes),
        stateful=_stateful(stateful, picked, STATES, yes),
    )
    made, folder = scaffold.package(name, chosen, into), into / name
    if not dry_run:
        scaffold.write(folder, made)
    if as_json:
        texts = made if dry_run else list(made)
        print_json(
            "recipe_new", {"folder": str(folder), "cell": asdict(chosen), "files": texts, "written": not dry_run}
        )
    elif dry_run:
        for path, text in made.items():
            out.print(Text(f"==> {folder / path}", "bold"))
            out.print(Text(text))
    else:
        say(f"{folder}: {chosen.words}; {len(made)} files, the first to read is {folder / 'README.md'}")
        say(f"  next: python -m pytest {folder}   reef recipe check -c {folder / 'serve.yaml'}", "dim")


# -- inside


def _choice(flag: str, given: str | None, choices: Mapping[str, str], yes: bool) -> str:
    """The given one, or what a person answers on a terminal, or with --yes the first."""
    if given is not None:
        if given not in choices:
            raise BadRequest(f"--{flag} is {given!r}", hint=f"it is one of: {', '.join(choices)}", field=flag)
        return given
    if yes:
        return next(iter(choices))
    _need_terminal()
    talk.print(Text(f"{flag}?", "bold"))
    for number, (word, meaning) in enumerate(choices.items(), start=1):
        talk.print(Text.assemble(f"  {number} ", (f"{word:<8}", "bold"), f" {meaning}"))
    while True:
        answer = typer.prompt(flag, default=next(iter(choices)), err=True).strip().lower()
        for number, word in enumerate(choices, start=1):
            if answer and (answer == str(number) or word.startswith(answer)):
                return word
        say(f"{answer!r} is none of them: give a number or a word", "yellow")


def _stateful(given: bool | None, surface: str, states: Mapping[str, str], yes: bool) -> bool:
    if surface == "nothing":
        if given:
            raise BadRequest(
                "--stateful: surface nothing makes no steps, so there is no state to carry", hint="leave it out"
            )
        return False
    if given is not None:
        return given
    return _choice("stateful", None, states, yes) == "yes"


def _need_terminal() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadRequest(
            "which cell of the grid is asked for on a terminal, and this is none",
            hint="give --surface, --work and --stateful or --stateless, or --yes for weights, stream, stateless",
        )


def _bounds(knob: Mapping[str, Any]) -> str:
    words = {"gt": "above", "ge": "at least", "le": "at most"}
    said = [f"{word} {knob[name]:g}" for name, word in words.items() if name in knob]
    if knob["choices"]:
        said.append(f"one of {', '.join(knob['choices'])}")
    return f" ({'; '.join(said)})" if said else ""
