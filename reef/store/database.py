"""Store: the database file, its one writing connection and its read-only ones.

Knows nothing of what the tables mean. Opened by daemon.app for a home, by RecordStore() in memory for tests and scripts.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from reef.core.histogram import Histogram
from reef.errors import ReefError, Unavailable
from reef.store.bodies import Segments
from reef.store.schema import migrate
from reef.store.writer import Work, Writer, store_error

T = TypeVar("T")

_JOURNAL_LIMIT_BYTES = 64 * 2**20
_READERS = 4


class Store:
    """One SQLite file: ``write`` and ``submit`` go through the writer, ``reading`` lends a read-only connection.

    ``path`` None keeps everything in memory with the same behaviour, minus durability.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.segments = Segments()
        self.files = threading.Lock()
        """Held while the chain goes back to a release whose files must stay, and while retention removes files."""
        self._lock = threading.RLock()
        self._idle_readers: list[sqlite3.Connection] = []
        self._readers = threading.Semaphore(_READERS)
        self._connection = self._open_writer()
        self._writer: Writer | None = None
        self.submit: Callable[[Work[Any]], Future[Any]] = self._submit_in_memory
        """Hand ``work`` to the writer: the one thread crossing of a request. An event loop awaits it with wrap_future."""
        if path is not None:
            self._writer = Writer(self._connection, on_rollback=self.segments.forget)
            self.submit = self._writer.submit

    def write(self, work: Work[T]) -> T:
        """Run ``work(connection)`` in a transaction; returns when it is on disk."""
        result: T = self.submit(work).result()
        return result

    def _submit_in_memory(self, work: Work[T]) -> Future[T]:
        """As the writer's ``submit``, at once, on the caller's thread."""
        future: Future[T] = Future()
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                future.set_result(work(self._connection))
            except Exception as error:  # the edge: the caller's work raises what it likes
                self._connection.execute("ROLLBACK")
                self.segments.forget()
                future.set_exception(error)
            else:
                self._connection.execute("COMMIT")
        return future

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that cannot write. Read pages, close soon: a long read keeps the log from being reset."""
        if self.path is None:
            with self._lock:
                yield self._connection
            return
        with self._readers:
            with self._lock:
                connection = self._idle_readers.pop() if self._idle_readers else None
            connection = connection or self._open_reader()
            try:
                yield connection
            except sqlite3.Error as error:
                raise store_error(error) from error
            finally:
                with self._lock:
                    self._idle_readers.append(connection)

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for the next commit."""
        return self._writer.waiting if self._writer is not None else 0

    @property
    def commits(self) -> int:
        """Transactions committed since the start."""
        return self._writer.commits if self._writer is not None else 0

    @property
    def fsync_ms(self) -> float:
        """How long the last commit took to be on disk."""
        return self._writer.fsync_ms if self._writer is not None else 0.0

    @property
    def commit_times(self) -> Histogram:
        """How long the commits since the start took."""
        return self._writer.commit_times if self._writer is not None else Histogram()

    def size_bytes(self) -> int:
        """Size of the database and its log on disk."""
        if self.path is None:
            return 0
        names = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(name.stat().st_size for name in names if name.exists())

    def checkpoint(self) -> None:
        """Move the log into the database and shrink it. On the writer's thread, between two transactions."""
        if self._writer is not None:
            self._writer.submit(
                lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone(), between=True
            ).result()

    def close(self) -> None:
        """Commit what waits, checkpoint, close. Calling it twice does nothing."""
        if self._writer is not None:
            self._writer.close()
        with self._lock:
            for reader in self._idle_readers:
                reader.close()
            self._idle_readers.clear()
            if self._writer is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()

    def __del__(self) -> None:
        if self.path is None and hasattr(self, "_connection"):
            self._connection.close()

    def _open_writer(self) -> sqlite3.Connection:
        if self.path is None:
            memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            migrate(memory)
            return memory
        fresh = not self.path.exists()
        if fresh:
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA journal_size_limit={_JOURNAL_LIMIT_BYTES}")
            connection.execute("PRAGMA temp_store=MEMORY")
            migrate(connection)
            return connection
        except ReefError:
            if connection is not None:
                connection.close()
            raise
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            raise Unavailable(
                f"{self.path} cannot be opened: {error}",
                hint="nothing was changed; keep a copy of the file, then run: reef doctor",
                code="store_damaged",
            ) from error

    def _open_reader(self) -> sqlite3.Connection:
        assert self.path is not None
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=5.0,
        )
        connection.execute("PRAGMA query_only=1")
        return connection
