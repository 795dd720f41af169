"""Private directories beside what is being made, each held by a lock while it is worked in.

One whose lock is free was left by a process that was killed: it holds what was copied, and nobody else removes it. Called by
backup and by doctor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from reef.errors import Conflict

_NAME = re.compile(r"\..+\.reef-(backup|restore)")


@contextlib.contextmanager
def workplace(made: Path, kind: str) -> Iterator[Path]:
    """An empty directory beside ``made``, gone at the end; Conflict while another process makes the same. ``kind`` is backup
    or restore."""
    clear_leftovers(made.parent)
    work = made.with_name(f".{made.name}.reef-{kind}")
    with contextlib.suppress(FileExistsError):
        work.mkdir(mode=0o700)
    held = _hold(work)
    if held is None:
        raise Conflict(f"another {kind} to {made} is under way", hint="wait for it to end", code="under_way")
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(held)


def leftovers(folder: Path) -> list[Path]:
    """What killed processes left in ``folder``."""
    found: list[Path] = []
    for path in _workplaces(folder):
        held = _hold(path)
        if held is not None:
            os.close(held)
            found.append(path)
    return found


def clear_leftovers(folder: Path) -> None:
    """Remove what killed processes left in ``folder``."""
    for path in _workplaces(folder):
        held = _hold(path)
        if held is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(held)


def _workplaces(folder: Path) -> list[Path]:
    try:
        return [path for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name)]
    except OSError:  # not there, or not for us
        return []


def _hold(path: Path) -> int | None:
    """The lock of a workplace; None when somebody else has it, or has just removed the directory."""
    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), os.stat(path)):
            return held
    except OSError:
        pass
    os.close(held)
    return None
