"""Writes what is exported into a new file of the folder the dashboard was started in. Never over one that is there."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from reef.tui.actions import Entry

if TYPE_CHECKING:
    from reef.tui.app import ReefApp

_PRIVATE = 0o600


def write_new(stem: str, suffix: str, at: float, lines: Iterable[str]) -> Path:
    """``lines`` into ``STEM-TIME.SUFFIX``, or the next name that is free; raises OSError where that cannot be written."""
    safe = re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII)[:80]
    name = f"{safe}-{datetime.fromtimestamp(at):%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        path = Path.cwd() / f"{name}{f'-{number}' if number > 1 else ''}.{suffix}"
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
        except FileExistsError:
            continue
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in lines)
        return path
    raise AssertionError


async def save(app: ReefApp, stem: str, suffix: str, lines: Iterable[str], twin: str, what: str) -> bool:
    """Write, say where or why not, and keep it for ``@``; True when it was written."""
    try:
        path = await asyncio.to_thread(write_new, stem, suffix, app.clock(), lines)
    except OSError as error:
        said, done = f"it cannot be written: {error}", False
    else:
        said, done = f"{what} are in {path}", True
    app.acted(Entry(app.clock(), twin, said, done))
    app.say(said, "information" if done else "error")
    return done
