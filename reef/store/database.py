"""Store: the database file, its one writing connection and its read-only ones.

Knows nothing of what the tables mean. Opened by daemon.app for a home, by RecordStore() in memory for tests and scripts.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from reef.core.histogram import Histogram
from reef.errors import ReefError
from reef.store.bodies import Segments
from reef.store.damage import unsound
from reef.store.file import DatabaseFile
from reef.store.schema import migrate
from reef.store.trouble import damaged, store_error
from reef.store.writer import Trouble, Work, Writer

T = TypeVar("T")

_READERS = 4


class Store:
    """One SQLite file: ``write`` and ``submit`` go through the writer, ``reading`` lends a read-only connection.

    ``path`` None keeps everything in memory with the same behaviour, minus durability. ``reserve_bytes`` on the disk are
    held back for the day it is full.
    """

    def __init__(self, path: Path | None = None, *, reserve_bytes: int = 0) -> None:
        self.path = path
        self.segments = Segments()
        self.files = threading.Lock()
        """Held while the chain goes back to a release whose files must stay, and while retention removes files."""
        self.on_trouble: Trouble = lambda trouble: None
        """Called on the writer's thread with why no rows are taken, and with None after every failure that is over."""
        self._lock = threading.RLock()
        self._idle_readers: list[sqlite3.Connection] = []
        self._readers = threading.Semaphore(_READERS)
        self.submit: Callable[..., Future[Any]] = self._submit_in_memory
        """Hand ``work`` to the writer: the one thread crossing of a request. An event loop awaits it with wrap_future."""
        self._writer: Writer | None = None
        if path is None:
            self._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            migrate(self._memory)
            return
        self._file = DatabaseFile(path, reserve_bytes)
        self._writer = Writer(
            self._file,
            self._file.open(),
            on_rollback=self.segments.forget,
            on_reopen=self._close_idle,
            on_trouble=lambda trouble: self.on_trouble(trouble),
        )
        self.submit = self._writer.submit

    def write(self, work: Work[T]) -> T:
        """Run ``work(connection)`` in a transaction; returns when it is on disk. Bookkeeping: it may use reserved room."""
        result: T = self.submit(work, True).result()
        return result

    def _submit_in_memory(self, work: Work[T], spare: bool = False) -> Future[T]:
        """As the writer's ``submit``, at once, on the caller's thread."""
        future: Future[T] = Future()
        with self._lock:
            self._memory.execute("BEGIN")
            try:
                future.set_result(work(self._memory))
            except Exception as error:  # the edge: the caller's work raises what it likes
                self._memory.execute("ROLLBACK")
                self.segments.forget()
                future.set_exception(error)
            else:
                self._memory.execute("COMMIT")
        return future

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that cannot write. Read pages, close soon: a long read keeps the log from being reset."""
        if self.path is None:
            with self._lock:
                yield self._memory
            return
        with self._readers:
            with self._lock:
                connection = self._idle_readers.pop() if self._idle_readers else None
            try:
                connection = connection or self._file.open_reader()
                yield connection
            except sqlite3.Error as error:
                if connection is not None:
                    connection.close()
                    connection = None
                raise store_error(error, self.path, act="read") from error
            finally:
                if connection is not None:
                    with self._lock:
                        self._idle_readers.append(connection)

    @property
    def trouble(self) -> ReefError | None:
        """Why no rows are taken now, None while all is well."""
        return self._writer.trouble if self._writer is not None else None

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
        return self._file.size_bytes() if self.path is not None else 0

    def log_bytes(self) -> int:
        """Size of the log: it is small unless a reader keeps it from beginning anew."""
        return self._file.log_bytes() if self.path is not None else 0

    def checkpoint(self) -> None:
        """Move the log into the database and shrink it, as far as no reader needs it. Between two transactions."""
        if self._writer is not None:
            self._writer.checkpoint()

    def check(self) -> None:
        """Read the whole file; one that is damaged takes no more rows. Slow on a big one, and nobody waits for it."""
        if self._writer is None or self.path is None:
            return
        try:
            wrong = unsound(self.path)
        except sqlite3.Error as error:
            raise store_error(error, self.path, act="read") from error
        if wrong is not None:
            self._writer.stop_writing(damaged(self.path, wrong))

    def close(self) -> None:
        """Commit what waits, checkpoint, close. Calling it twice does nothing."""
        if self._writer is None:
            self._memory.close()
            return
        self._close_idle()  # before the writer's: the last connection to go takes the log along
        self._writer.close()
        self._close_idle()
        self._file.close()

    def __del__(self) -> None:
        if self.path is None and hasattr(self, "_memory"):
            self._memory.close()

    def _close_idle(self) -> None:
        with self._lock:
            for reader in self._idle_readers:
                reader.close()
            self._idle_readers.clear()
