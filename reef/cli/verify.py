"""verify: tries on this disk what Reef promises, and looks through what it keeps."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from reef.cli.bar import bar
from reef.cli.common import HomeOption, JsonOption, out, print_json, say
from reef.cli.place import here, home_of
from reef.errors import NotFound

_STYLES = {"ok": "green", "lost": "bold red", "skipped": "yellow"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(verify)


def verify(
    home: HomeOption = None,
    loops: Annotated[int, typer.Option("--loops", help="Writers to kill; 0 kills none.", min=0, max=10_000)] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Do all loops and read everything, however long it takes.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the moments at which writers are killed.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Kill writers on this disk and count what was acknowledged and what is lost; look through database and artifacts.

    Writers are killed in a scratch folder; what the daemon keeps is only read, and the daemon may run. Takes up to half a
    minute. Leaves with 1 when anything is lost or damaged.

    Examples: reef verify | reef verify --loops 200 --all
    """
    from reef.daemon.verify import verify as run

    folder = home_of(home)
    if not folder.is_dir():
        raise NotFound(f"there is no state directory at {folder}", hint="name another one with --home")
    parts = []
    with bar(bytes=False) as progress:
        for part in run(folder, loops=loops, everything=everything, seed=seed, progress=progress):
            parts.append(part)
            if not as_json:
                counts = f"{part.checked} {'acknowledged' if part.id == 'kills' else 'checked'}, {part.lost} lost"
                said = Text.assemble((f"{part.state:8}", _STYLES[part.state]), f"{part.id:10}")
                if part.id != "disk" and part.state != "skipped":
                    said.append(f"{counts}; ")
                out.print(said.append(part.message))
                if part.fix:
                    out.print(Text(f"        try: {here(part.fix)}", "dim"))
    lost = any(part.state == "lost" for part in parts)
    if as_json:
        print_json("verify", {"ok": not lost, "parts": [{**part.as_dict(), "fix": here(part.fix)} for part in parts]})
    elif not lost:
        say("nothing that was acknowledged is lost")
    if lost:
        raise typer.Exit(1)
