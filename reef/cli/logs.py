"""logs: the daemon's log for people, and as it is for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.common import HomeOption, LinesOption, out, since_of
from reef.cli.pager import paged
from reef.cli.place import home_of
from reef.errors import BadRequest, NotFound

_LEVELS = ("debug", "info", "warning", "error", "critical")
_STYLES = {"warning": "yellow", "error": "red", "critical": "red"}
_POLL_S = 0.2


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(logs)


@paged
def logs(
    home: HomeOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("-n", help="Lines to show.", min=0)] = 50,
    level: Annotated[
        str, typer.Option(help="Only this level and above: debug, info, warning, error, critical.")
    ] = "debug",
    since: Annotated[str | None, typer.Option(help="Only from then on: 10m, 2h, 3d, or 2026-01-31T08:00.")] = None,
    as_json: LinesOption = False,
) -> None:
    """The daemon's log, the newest lines, over all its files.

    Examples: reef logs -f | reef logs --level warning --since 2h
    """
    if level not in _LEVELS:
        raise BadRequest(f"no level {level!r}", hint=f"one of: {', '.join(_LEVELS)}")
    path = home_of(home) / "logs" / "reef.jsonl"
    if not path.exists():
        raise NotFound(f"there is no log at {path}", hint="start the daemon with: reef up")
    first = 0.0 if since is None else since_of(since)
    wanted = _LEVELS[_LEVELS.index(level) :]
    at = path.stat().st_size if follow else 0  # what comes from here on is shown by following
    kept = deque((entry for entry in _entries(path) if _is(entry, wanted, first)), maxlen=lines)
    for entry in kept:
        _show(entry, as_json)
    if follow:
        for line in _coming(path, at):
            if (found := _parsed(line)) is not None and _is(found, wanted, first):
                _show(found, as_json)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """All lines that can be read, oldest first."""
    older = sorted(
        path.parent.glob(f"{path.name}.*"), key=lambda one: -int(one.suffix[1:]) if one.suffix[1:].isdecimal() else 0
    )
    for one in (*older, path):
        try:
            with one.open(encoding="utf-8", errors="replace") as file:
                yield from (found for line in file if (found := _parsed(line)) is not None)
        except FileNotFoundError:  # rotated away meanwhile
            continue


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
        found["at"] = datetime.fromisoformat(found["time"]).timestamp()
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found.get("message"), str) and found.get("level") in _LEVELS else None


def _is(entry: dict[str, Any], levels: tuple[str, ...], first: float) -> bool:
    return entry["level"] in levels and entry["at"] >= first


def _coming(path: Path, at: int) -> Iterator[str]:
    """Lines as they are written, from byte ``at`` on; goes on with the new file where the old one was rotated or removed."""
    rest = ""
    while True:
        try:
            with path.open(encoding="utf-8", errors="replace", newline="") as file:
                file.seek(at)
                while True:
                    piece = file.readline()
                    if piece.endswith("\n"):
                        yield rest + piece
                        rest = ""
                        continue
                    rest += piece
                    if not piece and _replaced(path, os.fstat(file.fileno())):
                        break
                    time.sleep(_POLL_S)
        except FileNotFoundError:
            time.sleep(_POLL_S)
        at, rest = 0, ""


def _replaced(path: Path, opened: os.stat_result) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return True
    return (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino)


def _show(entry: dict[str, Any], as_json: bool) -> None:
    at = entry.pop("at")
    if as_json:
        sys.stdout.write(json.dumps(entry) + "\n")
        sys.stdout.flush()
        return
    shape = "%H:%M:%S" if time.time() - at < 86400 else "%Y-%m-%d %H:%M:%S"
    fields = "".join(f" {name}={value}" for name, value in entry.get("fields", {}).items())
    when = time.strftime(shape, time.localtime(at))
    out.print(Text(f"{when} {entry['level']:7} {entry['message']}{fields}", style=_STYLES.get(entry["level"], "")))
    if "exc" in entry:
        out.print(Text(entry["exc"], style="dim"))
