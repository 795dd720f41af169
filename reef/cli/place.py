"""Which state directory a command acts on, and hints that name it where it is not the one a bare command would find."""

from __future__ import annotations

import os
import re
import shlex
from functools import cache
from pathlib import Path

from reef.cli.commands import everything
from reef.config import default_home

_placed: Path | None = None


def place(value: Path | None) -> Path | None:
    """What --home was given, as an absolute path; a group's is also its commands'."""
    global _placed
    if value is not None:
        _placed = _absolute(value)
    return _placed


def home_of(home: Path | None) -> Path:
    """The state directory of a command."""
    return _absolute(default_home() if home is None else home)


def here(text: str) -> str:
    """``text`` with --home behind each command in it that would otherwise act on another state directory."""
    if _placed is None or "reef " not in text or _placed == home_of(None):
        return text
    flag = f" --home {shlex.quote(str(_placed))}"

    def named(found: re.Match[str]) -> str:
        rest = re.split(r"[,;|&]|\breef ", text[found.end() :], maxsplit=1)[0]
        return found[0] if "--home" in rest else found[0] + flag

    return _with_home().sub(named, text)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser()))


@cache
def _with_home() -> re.Pattern[str]:
    """Finds the commands that have --home, as they are typed."""
    paths = [path for path, one in everything() if any(option.name == "home" for option in one.params)]
    return re.compile(rf"\breef (?:{'|'.join(sorted(paths, key=len, reverse=True))})(?![\w-])")
