"""Which state directory a command acts on, and hints that name it where it is not the one a bare command would find."""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import typer

from reef.config import default_home

_placed: Path | None = None
_commands: re.Pattern[str] | None = None


def place(value: Path | None) -> Path | None:
    """What --home was given, as an absolute path; a group's is also its commands'."""
    global _placed
    if value is not None:
        _placed = _absolute(value)
    return _placed


def home_of(home: Path | None) -> Path:
    """The state directory of a command."""
    return _absolute(default_home() if home is None else home)


def learn(app: typer.Typer) -> None:
    """Take note of the commands that have --home."""
    global _commands
    paths = sorted(_paths(app, ""), key=len, reverse=True)
    _commands = re.compile(rf"\breef (?:{'|'.join(paths)})(?![\w-])")


def here(text: str) -> str:
    """``text`` with --home behind each command in it that would otherwise act on another state directory."""
    if _placed is None or _commands is None or _placed == home_of(None):
        return text
    flag = f" --home {shlex.quote(str(_placed))}"

    def named(found: re.Match[str]) -> str:
        rest = re.split(r"[,;|&]|\breef ", text[found.end() :], maxsplit=1)[0]
        return found[0] if "--home" in rest else found[0] + flag

    return _commands.sub(named, text)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser()))


def _paths(app: typer.Typer, above: str) -> Iterator[str]:
    """Commands that have --home, as they are typed behind ``reef``."""
    for command in app.registered_commands:
        if command.callback is not None and "home" in inspect.signature(command.callback).parameters:
            yield f"{above}{command.name or command.callback.__name__}"
    for group in app.registered_groups:
        assert group.typer_instance is not None
        alone = group.typer_instance.registered_callback
        if alone is not None and alone.callback is not None and "home" in inspect.signature(alone.callback).parameters:
            yield f"{above}{group.name}"
        yield from _paths(group.typer_instance, f"{above}{group.name} ")
