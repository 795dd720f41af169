"""Looks through a database that may be in use: is the file sound, is every stored body whole. Reads only.

Both may take long on a big store, so both end at a deadline and say how far they came. Called by ``reef verify``.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from reef.errors import Unavailable
from reef.store.bodies import segment_ids, unpack
from reef.store.damage import read_only

_PAGE = 200
_SYNCS = 100
_LOOK_S = 0.1

Tell = Callable[[int, int], None]
"""``(done, total)``."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """``damaged`` are ids of records a body of which is gone or garbled; ``checked`` of ``total`` were looked at."""

    total: int
    checked: int
    damaged: tuple[str, ...]


def sync_times_ms(folder: Path) -> list[float]:
    """How long the disk takes to keep 4 KiB, a hundred times, fastest first."""
    times: list[float] = []
    path = folder / "sync"
    with path.open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(b"x" * 4096)
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    path.unlink()
    return sorted(times)


def integrity(database: Path, until: float) -> str | None:
    """``ok``, or the first things that SQLite finds wrong; None when it is not done by ``until`` (monotonic).

    A thread reads, so that a person's Ctrl-C is heard at once. Raises sqlite3.Error where the file cannot be read.
    """
    said: list[str | sqlite3.Error] = []
    with closing(read_only(database)) as connection:

        def look() -> None:
            try:
                rows = connection.execute("PRAGMA integrity_check(5)").fetchall()
                said.append("; ".join(" ".join(str(row[0]).split()) for row in rows))
            except sqlite3.Error as error:
                said.append(error)

        reading = threading.Thread(target=look, daemon=True)
        reading.start()
        try:
            while reading.is_alive() and time.monotonic() < until:
                reading.join(_LOOK_S)
        finally:
            late = reading.is_alive()
            connection.interrupt()
            reading.join()
    match said[0]:
        case sqlite3.DatabaseError() as error if _is_damage(error):
            return str(error)
        case sqlite3.Error() as error:
            if late:
                return None
            raise error
        case text:
            return str(text)


def bodies(database: Path, until: float, tell: Tell) -> Bodies:
    """Read every body, newest first: all of its parts must be there, and each must be what its hash and checksum say."""
    damaged: list[str] = []
    checked, good = 0, set[int]()
    with closing(read_only(database)) as connection:
        total, before = connection.execute("SELECT COUNT(*), COALESCE(MAX(seq), 0) + 1 FROM records").fetchone()
        while time.monotonic() < until:
            rows = connection.execute(
                "SELECT seq, id, request, response, training FROM records WHERE seq < ? ORDER BY seq DESC LIMIT ?",
                (before, _PAGE),
            ).fetchall()
            if not rows:
                break
            before = rows[-1][0]
            for _, record_id, *manifests in rows:
                if not all(_whole(connection, manifest, good) for manifest in manifests):
                    damaged.append(record_id)
            checked += len(rows)
            tell(checked, total)
    return Bodies(total, checked, tuple(damaged))


def _whole(connection: sqlite3.Connection, manifest: bytes | None, good: set[int]) -> bool:
    """True when a body can be put together, and its shared parts are what they were stored as; ``good`` ones are known."""
    try:
        for segment in segment_ids(manifest) - good:
            row = connection.execute("SELECT hash, data FROM segments WHERE id = ?", (segment,)).fetchone()
            if row is None or row[0] != hashlib.sha256(unpack(row[1])).digest()[:16]:
                return False
            good.add(segment)
    except (Unavailable, ValueError):
        return False
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        return False
    return True


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
