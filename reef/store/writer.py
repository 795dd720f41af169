"""The one writer: a thread that owns the read-write connection and commits whatever waited during the last fsync.

Knows nothing of tables. Callers hand in a function of the connection; each runs in its own savepoint, so one bad item
does not fail its neighbours, and each gets its own result after the commit is on disk.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from reef import failpoints
from reef.errors import ReefError, StoreFull, Unavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_MAX_ITEMS = 256


class _Item:
    """One piece of work with the future it answers; ``loop`` is set when an event loop waits for it."""

    __slots__ = ("alone", "error", "future", "loop", "result", "work")

    def __init__(
        self, work: Work[Any], future: Future[Any] | asyncio.Future[Any], loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.work = work
        self.future = future
        self.loop = loop
        self.alone = False
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Hand the outcome to whoever waits; a cancelled waiter is left alone."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """Group commit over one connection. ``capacity`` bounds the queue; beyond it callers get Unavailable (503)."""

    def __init__(
        self, connection: sqlite3.Connection, *, on_rollback: Callable[[], None], capacity: int = 4096
    ) -> None:
        self._connection = connection
        self._on_rollback = on_rollback
        self._queue: queue.Queue[_Item | None] = queue.Queue(maxsize=capacity)
        self._thread = threading.Thread(target=self._run, name="reef-writer", daemon=True)
        self._closed = False
        self.commits = 0
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait for the next transaction."""
        return self._queue.qsize()

    def call(self, work: Work[T]) -> T:
        """Run ``work`` in a transaction and return its result once that is on disk; blocks the calling thread."""
        future: Future[T] = Future()
        self._put(_Item(work, future, None))
        return future.result()

    def submit(self, work: Work[T]) -> asyncio.Future[T]:
        """As ``call``, for an event loop: await the returned future."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(_Item(work, future, loop))
        return future

    def idle(self, work: Work[T]) -> T:
        """Run ``work`` on the writer thread outside any transaction (checkpoints); blocks the calling thread."""
        future: Future[T] = Future()
        item = _Item(work, future, None)
        item.alone = True
        self._put(item)
        return future.result()

    def close(self) -> None:
        """Commit what waits, then stop the thread; the connection stays open."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _put(self, item: _Item) -> None:
        if self._closed:
            raise Unavailable("the store is closed", hint="the daemon is stopping; call again after reef up")
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            raise Unavailable("the store's queue is full", hint="slow down and retry", code="queue_full") from None

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
            for alone in (item for item in batch if item.alone):
                self._alone(alone)
            batch = [item for item in batch if not item.alone]
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[_Item]) -> None:
        db = self._connection
        try:
            db.execute("BEGIN IMMEDIATE")
            for item in batch:
                self._one(db, item)
            failpoints.hit("before-commit")
            db.execute("COMMIT")
            self.commits += 1
            failpoints.hit("after-commit")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._on_rollback()
            translated = store_error(error)
            for item in batch:
                item.error = item.error or translated
        by_loop: dict[asyncio.AbstractEventLoop, list[_Item]] = {}
        for item in batch:
            if item.loop is None:
                item.settle()
            else:
                by_loop.setdefault(item.loop, []).append(item)
        for loop, items in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, items)

    def _alone(self, item: _Item) -> None:
        try:
            item.result = item.work(self._connection)
        except sqlite3.Error as error:
            item.error = store_error(error)
        item.settle()

    def _one(self, db: sqlite3.Connection, item: _Item) -> None:
        db.execute("SAVEPOINT item")
        try:
            item.result = item.work(db)
        except sqlite3.OperationalError:
            raise  # disk or lock trouble concerns the whole transaction
        except Exception as error:  # the edge: whatever the caller's work raises is the caller's to see
            db.execute("ROLLBACK TO item")
            self._on_rollback()
            item.error = error
        db.execute("RELEASE item")


def _settle(items: list[_Item]) -> None:
    for item in items:
        item.settle()


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
