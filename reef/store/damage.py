"""Finds out whether a database file is whole, before and while it is used. Reads only, repairs and deletes nothing.

SQLite opens a log with a hole in it as if what follows the hole had never been written: here that is an error. Called by
DatabaseFile when a file is opened, and by ``reef verify``.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_MAGIC = b"SQLite format 3\0"
_LOG_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_LOG_HEADER, _FRAME_HEADER, _INDEX_HEADER = 32, 24, 136


@dataclass(frozen=True, slots=True)
class _Index:
    """What the shared index of the log says: its generation, committed frames, and frames the database has as well."""

    salts: bytes
    frames: int
    moved: int


def torn(path: Path) -> str | None:
    """What is wrong with the file at a glance, None for nothing. Only while nobody else has it open.

    Reads two headers, so that a start costs nothing. A committed transaction is in the log as a whole, and the index that a
    killed process left behind knows how many frames that is: fewer of the same generation mean that something
    acknowledged is gone.
    """
    with path.open("rb") as file:
        head = file.read(100)
        size = file.seek(0, 2)
    if len(head) < 100:
        return f"it has {size} bytes, which is no database"
    if not head.startswith(_MAGIC):
        return "its first bytes are not those of a database"
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or log.stat().st_size == 0:
        page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
        page = 65536 if page == 1 else page
        if head[24:28] == head[92:96] and size < page * pages:
            return f"it ends after {size} of {page * pages} bytes"
        return None
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER)
    if len(header) < _LOG_HEADER or not any(header):
        return None  # a log whose first write was cut off: nothing had been committed to it
    if not _whole_header(header):
        return f"the first bytes of its log {log.name} are garbled"
    return _missing_frames(path, header[16:24])


def unsound(path: Path) -> str | None:
    """What SQLite finds wrong in the whole file, None for nothing. Reads every page: slow on a big one.

    Raises sqlite3.Error where the file cannot be looked at, which says nothing about it.
    """
    connection = read_only(path)
    try:
        said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if not getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise
        return str(error)
    finally:
        connection.close()
    return None if said == "ok" else " ".join(str(said).split())


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that can neither write nor, when it is closed, move the log into the database."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False, timeout=5.0
    )
    connection.execute("PRAGMA query_only=1")
    return connection


def _whole_header(header: bytes) -> bool:
    """True when the checksum that the log's header ends with is that of its first 24 bytes."""
    if header[:4] not in _LOG_MAGICS:
        return False
    order: Literal["big", "little"] = "big" if header[3] & 1 else "little"
    first = second = 0
    for at in range(0, 24, 8):
        one, two = int.from_bytes(header[at : at + 4], order), int.from_bytes(header[at + 4 : at + 8], order)
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return header[24:32] == first.to_bytes(4, "big") + second.to_bytes(4, "big")


def _missing_frames(path: Path, salts: bytes) -> str | None:
    index = path.with_name(f"{path.name}-shm")
    kept = index.read_bytes() if index.exists() else b""
    before = _index(kept)
    if before is None or before.salts != salts or before.frames <= before.moved:
        return None  # another generation, or all of it is in the database too
    connection = read_only(path)
    try:
        with contextlib.suppress(sqlite3.DatabaseError):  # the log is read before the first statement fails
            connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        after = _index(index.read_bytes())
    finally:
        connection.close()
    if after is None or after.salts != salts or after.frames >= before.frames:
        return None
    index.write_bytes(kept)  # as it was found, so that the next look finds the same
    return (
        f"its log {path.name}-wal can be read up to page {after.frames} of the {before.frames} that had been committed"
    )


def _index(raw: bytes) -> _Index | None:
    """The two copies of the header must agree; numbers are in the order of this machine, salts as they are in the log."""
    if len(raw) < _INDEX_HEADER or raw[:48] != raw[48:96] or not raw[12]:
        return None

    def number(at: int) -> int:
        return int.from_bytes(raw[at : at + 4], sys.byteorder)

    return _Index(raw[32:40], number(16), number(96))
