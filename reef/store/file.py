"""DatabaseFile: one database on disk, how it is opened, how big it is, and how it is opened again after the disk failed.

Knows nothing of who writes what. Used by the writer on its thread, and by Store for readers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path

from reef.errors import ReefError, Unavailable
from reef.store.damage import read_only, torn, unsound
from reef.store.holders import holders
from reef.store.schema import migrate
from reef.store.space import FLOOR_BYTES, Room
from reef.store.trouble import damaged, store_error

log = logging.getLogger("reef.store")

BUSY_MS = 5000
_JOURNAL_LIMIT_BYTES = 64 * 2**20

Extent = tuple[int, ...]
"""What only grows: row numbers given out and records that are final. A file opened again has at least these."""


class DatabaseFile:
    """``path`` with its log, its marks and its room. One connection writes at a time; readers cannot."""

    def __init__(self, path: Path, reserve_bytes: int) -> None:
        self.path = path
        self.room = Room(path, reserve_bytes)
        self._log = path.with_name(f"{path.name}-wal")
        self._mark = path.with_name(f"{path.name}-damaged")
        self._kept: int | None = None
        """Open as long as any connection is: closing a descriptor of the file would drop all locks of the process on it."""

    def open(self) -> sqlite3.Connection:
        """The writing connection of a file that is whole, made when it is new. Raises Unavailable, and changes nothing then."""
        if self.room.free_bytes() < FLOOR_BYTES:
            self.room.give_up()  # even to open it takes room
        try:
            if not self.path.exists():
                self._make()
            elif (wrong := torn(self.path) or self._still_unsound()) is not None:
                raise damaged(self.path, wrong)
            self._kept = os.open(self.path, os.O_RDONLY)
            return self._connect(self.path)
        except OSError as error:
            self.close()
            raise Unavailable(
                f"{self.path} cannot be opened: {error.strerror or error}",
                hint="see the permissions and the disk of the state directory",
                code="store_unopenable",
            ) from error
        except (sqlite3.Error, ReefError) as error:
            self.close()
            if isinstance(error, ReefError):
                raise
            raise store_error(error, self.path) from error

    def open_reader(self) -> sqlite3.Connection:
        """A connection that cannot write."""
        return read_only(self.path)

    def reopen(self, known: Extent | None) -> sqlite3.Connection:
        """A new writing connection after the disk has failed; raises when the file cannot be trusted yet, or any more.

        A failed fsync is never repeated: the kernel may have dropped the pages and call them clean. So they are read from
        the disk again, everything committed is moved into the database and synced there, and one more commit is tried.
        """
        self._drop_cached()
        connection: sqlite3.Connection | None = None
        try:
            self._check_all(known)
            connection = self._connect(self.path)
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise Unavailable(
                    f"a program that reads {self.path}{holders(self.path)} keeps it from being checked",
                    hint="close it",
                    code="store_io_error",
                )
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA user_version = {connection.execute('PRAGMA user_version').fetchone()[0]}")
            connection.execute("COMMIT")
            return connection
        except (sqlite3.Error, ReefError) as error:
            if connection is not None:
                _close(connection)
            if isinstance(error, ReefError):
                raise
            raise store_error(error, self.path) from error

    def close(self) -> None:
        """After the last connection."""
        if self._kept is not None:
            os.close(self._kept)
            self._kept = None

    def log_bytes(self) -> int:
        """Size of the log."""
        return _size(self._log)

    def size_bytes(self) -> int:
        """Size of the database and its log."""
        return _size(self._log) + _size(self.path)

    def mark_damaged(self, what: str) -> None:
        """Have the next start look at the whole file before it takes anything."""
        with contextlib.suppress(OSError):
            self._mark.write_text(f"{what}\n", encoding="utf-8")

    def _check_all(self, known: Extent | None) -> None:
        """Read every page, and see that ``known`` is there; with readers only, which leave a damaged file as it is."""
        if (wrong := unsound(self.path)) is None and known is not None:
            with contextlib.closing(read_only(self.path)) as reader:
                found = extent(reader)
            if any(now < before for now, before in zip(found, known, strict=True)):
                wrong = f"it had {known} rows given out and final, and shows {found}: something acknowledged is missing"
        if wrong is not None:
            self.mark_damaged(wrong)
            raise damaged(self.path, wrong)

    def _still_unsound(self) -> str | None:
        """The damage that an earlier process found, when it is still there: the file may have been restored."""
        if not self._mark.exists():
            return None
        found = unsound(self.path)
        if found is None:
            self._mark.unlink()
        return found

    def _make(self) -> None:
        """A new file appears whole or not at all, so that an empty one is always a damaged one."""
        fresh = self.path.with_name(f"{self.path.name}-new")
        for leftover in ("", "-wal", "-shm"):
            fresh.with_name(fresh.name + leftover).unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_WRONLY, 0o600))
        connection = self._connect(fresh)
        try:  # a connection that ends does the same, and says nothing when it fails
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            _close(connection)
        fresh.rename(self.path)

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA journal_size_limit={_JOURNAL_LIMIT_BYTES}")
            connection.execute("PRAGMA temp_store=MEMORY")
            migrate(connection)
        except (sqlite3.Error, ReefError):
            _close(connection)
            raise
        return connection

    def _drop_cached(self) -> None:
        """What is read from here on is what the disk has, where the system can be told so."""
        if not hasattr(os, "posix_fadvise"):
            return
        with contextlib.suppress(OSError):
            if self._kept is not None:
                os.posix_fadvise(self._kept, 0, 0, os.POSIX_FADV_DONTNEED)
            with self._log.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def extent(connection: sqlite3.Connection) -> Extent:
    """What has been given out and made final so far."""
    given = connection.execute("SELECT COALESCE(SUM(seq), 0) FROM sqlite_sequence").fetchone()[0]
    final = connection.execute("SELECT COUNT(*) FROM records WHERE rev IS NOT NULL").fetchone()[0]
    return int(given), int(final)


def _size(path: Path) -> int:
    """0 where there is none, or the disk is too ill to say."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _close(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.close()
