"""What a database needs now and then: its log moved into it and kept small, and an eye on the room that is left.

Knows nothing of who waits. Called by the writer on its thread, between two transactions.
"""

from __future__ import annotations

import logging
import sqlite3

from reef.errors import StoreFull
from reef.store.file import BUSY_MS, DatabaseFile
from reef.store.holders import holders
from reef.store.space import FLOOR_BYTES

log = logging.getLogger("reef.store")

_KEPT_BYTES = 8 * 2**20
"""A log up to this size keeps its place on disk: to write over it is faster than to let it grow again."""
_LONG_BYTES = 64 * 2**20
_SCARCE_BYTES = 512 * 2**20


class Upkeep:
    """Of one file. Raises sqlite3.Error when the disk fails."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._warn_bytes = _LONG_BYTES
        self._scarce = False

    def move_log(self, connection: sqlite3.Connection, *, shrink: bool = False) -> bool:
        """Move the log into the database and let it begin anew; False while a reader needs a part of it, or without room.

        Readers are never waited for: everybody who wants to write would wait with us.
        """
        mode = "TRUNCATE" if shrink or self._file.log_bytes() > _KEPT_BYTES else "PASSIVE"
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            busy, pages, moved = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL")):
                raise
            return False
        finally:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        return not busy and pages == moved

    def look(self, connection: sqlite3.Connection, *, full: bool) -> StoreFull | None:
        """Why no more rows can be taken, None while there is room. ``full`` is what the last look found."""
        room, free = self._file.room, self._file.room.free_bytes()
        if full or free < FLOOR_BYTES:
            self.move_log(connection, shrink=True)
            free = room.free_bytes()
            wanted = room.enough_bytes if full else FLOOR_BYTES
            if free < FLOOR_BYTES or free + _unused_bytes(connection) < wanted:
                room.give_up()
                return StoreFull(
                    f"the disk of {self._file.path.parent} is full ({free / 1e6:.0f} MB are free)",
                    hint="free some space; recording resumes by itself",
                )
        room.reserve()
        self._say(free)
        return None

    def _say(self, free: int) -> None:
        if free < _SCARCE_BYTES and not self._scarce:
            log.warning("only %.0f MB are free on the disk of %s", free / 1e6, self._file.path.parent)
        self._scarce = free < _SCARCE_BYTES
        size = self._file.log_bytes()
        if size >= self._warn_bytes:
            log.warning(
                "the log of %s has grown to %.0f MB: a program that reads it%s keeps it from beginning anew",
                self._file.path,
                size / 1e6,
                holders(self._file.path),
            )
            self._warn_bytes = 2 * size
        elif size < _LONG_BYTES:
            self._warn_bytes = _LONG_BYTES


def _unused_bytes(connection: sqlite3.Connection) -> int:
    """What deletions have left free inside the file."""
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size"))
    return int(pages * size)
