"""The one writer: a thread that owns the read-write connection and commits whatever waited during the last fsync.

Knows nothing of tables. Callers hand in a function of the connection; each runs in its own savepoint, so one bad item
does not fail its neighbours, and each gets its own result after the commit is on disk.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from reef import failpoints
from reef.core.histogram import BOUNDS_S, Histogram
from reef.errors import ReefError, StoreFull, Unavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
_Item = tuple[Work[Any], "Future[Any]", bool]
"""Work, its future, and whether it must run between transactions."""

_MAX_ITEMS = 256


class Writer:
    """Group commit over one connection. ``capacity`` bounds the queue; beyond it callers get Unavailable (503)."""

    def __init__(
        self, connection: sqlite3.Connection, *, on_rollback: Callable[[], None], capacity: int = 4096
    ) -> None:
        self._connection = connection
        self._on_rollback = on_rollback
        self._capacity = capacity
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reef-writer", daemon=True)
        self._closed = False
        self._door = threading.Lock()
        self.commits = 0
        self.fsync_ms = 0.0
        self.commit_times = Histogram()
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait for the next transaction."""
        return self._queue.qsize()

    def submit(self, work: Work[T], *, between: bool = False) -> Future[T]:
        """Run ``work`` in a transaction; the future has its result once that is on disk. Cancelling it changes nothing.

        ``between`` runs it outside any transaction instead (checkpoints). Raises Unavailable when the queue is full or closed.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from here on nobody can cancel it: the row is written in any case
        with self._door:  # nothing may get behind the mark that ends the thread: nobody would ever answer it
            if self._closed:
                raise Unavailable("the store is closed", hint="the daemon is stopping; call again after reef up")
            if self._queue.qsize() >= self._capacity:
                raise Unavailable("the store's queue is full", hint="slow down and retry", code="queue_full")
            self._queue.put((work, future, between))
        return future

    def close(self) -> None:
        """Commit what waits, then stop the thread; the connection stays open."""
        with self._door:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            batch: list[_Item] = []
            first = self._queue.get()
            while first is not None:
                batch.append(first)
                if len(batch) >= _MAX_ITEMS or self._queue.empty():
                    break
                first = self._queue.get()
            stopping = first is None
            for work, future, _ in (item for item in batch if item[2]):
                try:
                    future.set_result(work(self._connection))
                except sqlite3.Error as error:
                    future.set_exception(store_error(error))
            if batch := [item for item in batch if not item[2]]:
                self._commit(batch)

    def _commit(self, batch: list[_Item]) -> None:
        """One transaction for the whole batch; futures are settled only after it is on disk."""
        db = self._connection
        outcomes: list[tuple[Any, BaseException | None]] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            for work, _, _ in batch:
                db.execute("SAVEPOINT item")
                try:
                    outcomes.append((work(db), None))
                except Exception as error:  # the edge: whatever the caller's work raises is the caller's to see
                    if type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError):
                        raise  # a full disk, a lock, a damaged file: that concerns the whole transaction
                    db.execute("ROLLBACK TO item")
                    self._on_rollback()
                    outcomes.append((None, error))
                db.execute("RELEASE item")
            if "REEF_FAILPOINT" in os.environ:
                failpoints.hit("before-commit")
            started = time.perf_counter()
            db.execute("COMMIT")
            took_s = time.perf_counter() - started
            self.commits, self.fsync_ms = self.commits + 1, took_s * 1000
            self.commit_times.counts[bisect_left(BOUNDS_S, took_s)] += 1
            self.commit_times.total_s += took_s
            if "REEF_FAILPOINT" in os.environ:
                failpoints.hit("after-commit")
        except sqlite3.Error as error:
            if db.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                    db.execute("ROLLBACK")
            self._on_rollback()
            outcomes = [(None, store_error(error))] * len(batch)
        for (_, future, _), (result, failed) in zip(batch, outcomes, strict=True):
            if failed is not None:
                future.set_exception(failed)
            else:
                future.set_result(result)


def store_error(error: sqlite3.Error) -> ReefError:
    """The error a caller sees for what SQLite said."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return StoreFull("the disk is full", hint="free some space; recording resumes by itself")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return Unavailable(
            f"the database is damaged: {error}", hint="stop the daemon and run: reef doctor", code="store_damaged"
        )
    return Unavailable(f"the store cannot write: {error}", hint="see: reef doctor", code="store_unwritable")
