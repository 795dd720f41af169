"""The one writer: a thread that owns the read-write connection and commits whatever waited during the last fsync.

Knows nothing of tables. Callers hand in a function of the connection; each runs in its own savepoint, so one bad item
does not fail its neighbours, and each gets its own result after the commit is on disk. When the disk is full, rows are
refused and bookkeeping goes on; when it fails, nothing is written until the file has been opened again and checked.
"""

from __future__ import annotations

import contextlib
import logging
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
from reef.store.file import BUSY_MS, DatabaseFile, Extent, extent
from reef.store.trouble import again, needs_reopening, store_error
from reef.store.upkeep import Upkeep

log = logging.getLogger("reef.store")

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
Trouble = Callable[[ReefError | None], None]
"""Told, on the writer's thread, why rows are refused from now on, and None once they are taken again."""
_Item = tuple[Work[Any], "Future[Any]", bool]
"""Work, its future, and whether it must run between transactions."""

_MAX_ITEMS = 256
_LOOK_EVERY = 64
"""Transactions between two looks at the disk's room and the log's size."""
_QUIET_S, _STARVED_S, _POLL_S = 2.0, 5.0, 1.0
"""Idle for so long, the log is moved into the database; when a reader was in the way; when the disk is full."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 30.0
_BUSY_TRIES = 6


class Writer:
    """Group commit over one file. ``capacity`` bounds the queue; beyond it callers get Unavailable (503)."""

    def __init__(
        self,
        file: DatabaseFile,
        connection: sqlite3.Connection,
        *,
        on_rollback: Callable[[], None],
        on_reopen: Callable[[], None],
        on_trouble: Trouble,
        capacity: int = 4096,
    ) -> None:
        self._file, self._connection, self._upkeep = file, connection, Upkeep(file)
        self._on_rollback, self._on_reopen, self._on_trouble = on_rollback, on_reopen, on_trouble
        self._capacity = capacity
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reef-writer", daemon=True)
        self._door = threading.Lock()
        self._refusal: ReefError | None = None
        self._held_up: ReefError | None = None
        self._closed = self._broken = self._hurt = False
        self._quiet_s: float | None = None
        self.commits = 0
        self.fsync_ms = 0.0
        self.commit_times = Histogram()
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait for the next transaction."""
        return self._queue.qsize()

    @property
    def trouble(self) -> ReefError | None:
        """Why rows are refused or held up now, None while all is well."""
        return self._held_up if self._closed or self._refusal is None else self._refusal

    def submit(self, work: Work[T], spare: bool = False, *, between: bool = False) -> Future[T]:
        """Run ``work`` in a transaction; the future has its result once that is on disk. Cancelling it changes nothing.

        ``spare`` work may use the room that is reserved, on disk and in the queue: small bookkeeping, which frees space or
        ends what has begun.
        ``between`` runs it outside any transaction instead (checkpoints). The future fails with Unavailable when the queue
        is full or closed or the disk has failed, with StoreFull when the disk is full.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from here on nobody can cancel it: the row is written in any case
        with self._door:  # nothing may get behind the mark that ends the thread: nobody would ever answer it
            if self._refusal is not None and not (spare and type(self._refusal) is StoreFull):
                future.set_exception(again(self._refusal))
            elif self._queue.qsize() >= self._capacity and not spare:
                future.set_exception(
                    Unavailable("the store's queue is full", hint="slow down and retry", code="queue_full")
                )
            else:
                self._queue.put((work, future, between))
        return future

    def stop_writing(self, error: ReefError) -> None:
        """Take nothing more: a reader has seen that the file is damaged."""
        self.submit(lambda _: self._failed(error), True, between=True).result()

    def close(self) -> None:
        """Commit what waits, stop the thread, move the log into the database, close the connection."""
        with self._door:
            if not self._closed:
                self._closed = True
                self._refusal = Unavailable("the store is closed", hint="the daemon is stopping; call after reef up")
                self._queue.put(None)
        self._thread.join()
        with contextlib.suppress(sqlite3.Error):  # what is left in the log is moved by the next start
            self._upkeep.move_log(self._connection, shrink=True)
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def checkpoint(self) -> None:
        """Move the log into the database and shrink it, as far as no reader needs it."""
        self.submit(lambda db: self._upkeep.move_log(db, shrink=True), True, between=True).result()

    # -- on the writer's thread

    def _run(self) -> None:
        stopping = False
        if not self._file.room.reserved():  # a first start, or one on a disk that is full
            self._tend(lambda: self._look(full=True))
        while not (stopping or (self._broken and self._mend())):
            batch: list[_Item] = []
            try:
                first = self._queue.get(timeout=self._quiet_s)
            except queue.Empty:
                self._tend(self._rest)
                continue
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
                    future.set_exception(self._failed(store_error(error, self._file.path)))
                except Exception as error:  # the edge: it is the caller's to see, and this thread must go on
                    future.set_exception(error)
            batch = [item for item in batch if not item[2]]
            if self._broken:  # by what ran just now: nothing more is committed on this connection
                self._decline(batch)
            elif batch:
                self._commit(batch)
            if not self._broken and (self._hurt or self._refusal is not None or self.commits % _LOOK_EVERY == 0):
                self._tend(self._look)

    def _commit(self, batch: list[_Item], tries: int = 1) -> None:
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
                    told: Exception = error
                    whole = (sqlite3.OperationalError, sqlite3.DatabaseError)
                    if isinstance(error, sqlite3.Error) and type(error) in whole:
                        if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_ERROR"):
                            raise  # a full disk, a lock, a damaged file: that concerns the whole transaction
                        told = store_error(error, self._file.path)  # a statement that is wrong in itself
                    db.execute("ROLLBACK TO item")
                    self._on_rollback()
                    outcomes.append((None, told))
                db.execute("RELEASE item")
            if "REEF_FAILPOINT" in os.environ:
                failpoints.hit("before-commit")
            started = time.perf_counter()
            db.execute("COMMIT")
            took_s = time.perf_counter() - started
            self.commits, self.fsync_ms = self.commits + 1, took_s * 1000
            self.commit_times.counts[bisect_left(BOUNDS_S, took_s)] += 1
            self.commit_times.total_s += took_s
            self._quiet_s, self._held_up = _QUIET_S, None
            if "REEF_FAILPOINT" in os.environ:
                failpoints.hit("after-commit")
        except (sqlite3.Error, MemoryError) as error:
            if db.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                    db.execute("ROLLBACK")
            self._on_rollback()
            failed = self._failed(store_error(error, self._file.path))
            if self._worth_another(failed, tries):
                self._commit(batch, tries + 1)
                return
            outcomes = [(None, again(failed)) for _ in batch]
        for (_, future, _), (result, refused) in zip(batch, outcomes, strict=True):
            if refused is not None:
                future.set_exception(refused)
            else:
                future.set_result(result)

    def _worth_another(self, failed: ReefError, tries: int) -> bool:
        """A lock delays, and nothing is lost. A disk that is full has room again when the log has been moved, or it has none."""
        if failed.code == "store_busy" and tries < _BUSY_TRIES:
            self._held_up = failed
            log.warning("%s, for %.0f s by now: writes wait", failed.message, tries * BUSY_MS / 1000)
            return True
        if type(failed) is StoreFull and tries == 1:
            self._tend(self._look)
            return self._refusal is None
        return False

    def _failed(self, error: ReefError) -> ReefError:
        """Draw the consequence: after a disk error or damage this connection is used no more."""
        self._hurt = True
        if needs_reopening(error):
            self._broken = True
            if error.code == "store_damaged":
                self._file.mark_damaged(error.message)
            self._refuse(error)
        return error

    def _refuse(self, error: ReefError | None) -> None:
        """From here on rows are refused with ``error``; None: they are taken again."""
        with self._door:
            if self._closed:
                return
            before = self._refusal
            if before is None or error is None or before.code != error.code:
                self._refusal = error
        if error is not None:
            self._quiet_s = _POLL_S
            if self._refusal is error:
                log.error("no rows are taken: %s", error.message)
                self._tell(error)
        elif before is not None or self._hurt:
            self._hurt, self._held_up = False, None
            if before is not None:
                log.warning("rows are taken again")
            self._tell(None)

    def _tell(self, trouble: ReefError | None) -> None:
        try:
            self._on_trouble(trouble)
        except Exception:  # the edge to code that is not ours: this thread must go on, everybody waits for it
            log.exception("nobody could be told about the store")

    def _tend(self, act: Callable[[], None]) -> None:
        try:
            act()
        except sqlite3.Error as error:
            self._failed(store_error(error, self._file.path))

    def _look(self, full: bool = False) -> None:
        self._refuse(self._upkeep.look(self._connection, full=full or type(self._refusal) is StoreFull))

    def _rest(self) -> None:
        """Nobody waits: move the log, and wait longer next time."""
        moved = self._upkeep.move_log(self._connection)
        self._quiet_s = None if moved else _STARVED_S
        self._look()  # which shortens it again while the disk is full

    def _mend(self) -> bool:
        """Write nothing until the file has been opened again and checked; True when the store closes before."""
        known: Extent | None = None
        with contextlib.suppress(sqlite3.Error):
            known = extent(self._connection)
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        pause_s = _FIRST_PAUSE_S
        while self._broken:
            lost = self._refusal is not None and self._refusal.code == "store_damaged"
            if self._closes_within(None if lost else pause_s):
                return True
            try:
                self._on_reopen()
                self._connection = self._file.reopen(known)
                self._broken = False
            except (ReefError, OSError) as error:
                told = error if isinstance(error, ReefError) else Unavailable(str(error), code="store_io_error")
                self._refuse(told)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        log.warning("%s has been opened again and checked", self._file.path)
        self._refuse(None)
        return False

    def _closes_within(self, pause_s: float | None) -> bool:
        """Refuse what has been handed in already; True as soon as the mark comes that ends the thread."""
        end = time.monotonic() + pause_s if pause_s is not None else None
        while True:
            try:
                item = self._queue.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                return False
            if item is None:
                return True
            self._decline([item])

    def _decline(self, items: list[_Item]) -> None:
        assert self._refusal is not None
        for _, future, _ in items:
            future.set_exception(again(self._refusal))
