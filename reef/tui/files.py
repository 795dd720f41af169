"""Writes what is exported into a new file of the folder the dashboard was started in. Never over one that is there."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

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
