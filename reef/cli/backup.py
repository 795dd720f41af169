"""backup, restore: a state directory as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reef.cli.bar import bar
from reef.cli.common import HomeOption, JsonOption, print_json, say, size
from reef.cli.place import home_of
from reef.errors import NotFound


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(backup)
    app.command()(restore)


def backup(
    file: Annotated[Path, typer.Argument(help="File to write, e.g. reef.tar.zst; it must not exist yet.")],
    home: HomeOption = None,
    with_token: Annotated[bool, typer.Option("--with-token", help="Put the access token in it too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write everything that was recorded and trained into one file, also while the daemon runs.

    Example: reef backup reef-monday.tar.zst
    """
    from reef.daemon.backup import backup as write

    with bar() as progress:
        made = write(home_of(home), file, with_token=with_token, progress=progress)
    if as_json:
        print_json("backup", made)
        return
    say(f"{file}: {made['records']:,} records, {len(made['scenarios'])} scenarios, {size(made['size_bytes'])}")
    for content_id in made["missing_artifacts"]:
        say(f"  warning: the files of release {content_id[:12]} are gone from the state directory", "yellow")
    say(f"  it holds prompts and answers as they are; back with: reef restore {file} --home DIR", "dim")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that reef backup wrote.")],
    home: HomeOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Move a directory that is in use aside and take its place.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a state directory of a backup; everything is checked before anything is touched.

    Example: reef restore reef-monday.tar.zst --home ~/reef-again
    """
    from reef.daemon.backup import restore as read

    folder = home_of(home)
    if not file.is_file():
        said = "is a directory" if file.is_dir() else "is not there"
        raise NotFound(f"{file} {said}", hint="name a file that a backup made")
    with bar() as progress:
        made = read(file, folder, force=force, progress=progress)
    if as_json:
        print_json("restore", made)
        return
    say(f"{made['home']}: {made['records']:,} records, {len(made['scenarios'])} scenarios")
    if made["moved_to"]:
        say(f"  what was there before lies in {made['moved_to']}")
    if "token" not in made["files"]:
        say("  the backup holds no token: the next start makes a new one, and clients need it")
    say(f"  next: reef up --home {folder}, with the settings it was run with", "dim")
