"""Retention: bodies go by age and by size, rows and hashes stay. Old releases' files go by number.

Runs on a thread of its own in small batches, so that nobody waits for it. Knows nothing of what a body means; a record is
only touched when no live report names it. Called by daemon.app.
"""

from __future__ import annotations

import logging
import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reef.errors import ReefError, Unavailable
from reef.store.bodies import segment_ids
from reef.store.clock import SteadyClock
from reef.store.database import Store

log = logging.getLogger("reef.retention")

_BATCH = 500
_BATCH_BYTES = 2**20
"""What is deleted goes through the log, and on a full disk the log has no more room than the reserve."""
_CHECKED_BYTES = 4 * 2**30
_EVERY_S, _SOON_S = 600.0, 30.0
_SETTLE_S = 5.0
_STEADY_S = 3600.0
"""So long the clock must have gone steadily since the start before anything is removed for its age."""
_ORPHAN_AGE_S = 24 * 3600.0
"""An artifact without a release may belong to a step that a crash interrupted and that is about to be found again."""

# What may lose its body: not open, not a report that is still to be judged or trained, not named by such a report.
_FREE = """purged_at IS NULL AND state NOT IN ('open','parked','accepted') AND NOT EXISTS (
    SELECT 1 FROM report_refs JOIN records live ON live.seq = report_seq
    WHERE reference = records.id AND live.state IN ('parked','accepted'))"""


@dataclass(frozen=True, slots=True)
class Limits:
    """0 switches a limit off. ``keep_releases`` counts per scenario, beside r0, the serving and held ones."""

    days: float
    size_gb: float
    keep_releases: int


@dataclass(frozen=True, slots=True)
class Purged:
    """What one sweep removed."""

    bodies: int
    segments: int
    artifacts: int


def sweep(
    store: Store,
    home: Path,
    limits: Limits,
    now_s: float,
    *,
    ages: bool = True,
    go_on: Callable[[], bool] = lambda: True,
) -> Purged:
    """One pass over everything that has a limit; it ends early, between two batches, once ``go_on`` says no.

    Without ``ages`` nothing is removed for being old: ``now_s`` may be wrong.
    """
    bodies = 0
    if limits.days and ages:
        before_s = now_s - limits.days * 86400
        first_young = _first_young(store, before_s, now_s)
        while go_on() and (done := store.write(partial(_purge_older, before_s, first_young, now_s))):
            bodies += done
    segments = _collect_segments(store) if bodies else 0
    while limits.size_gb and go_on() and (over := _body_bytes(store) - int(limits.size_gb * 1e9)) > 0:
        done = store.write(partial(_purge_oldest, over, now_s))
        if not done:
            log.warning("the store is over its size limit, and what is left still has to be judged or trained")
            break
        bodies += done
        segments += _collect_segments(store)
    orphans_before_s = now_s - _ORPHAN_AGE_S if ages else 0.0
    return Purged(bodies, segments, _collect_artifacts(store, home, limits.keep_releases, orphans_before_s))


class Retention:
    """Sweeps at the start and then every ten minutes until stopped; at once when the disk is full."""

    def __init__(self, store: Store, home: Path, limits: Limits) -> None:
        self._store, self._home, self._limits = store, home, limits
        self._clock = SteadyClock(_STEADY_S)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reef-retention", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Sweep soon: there is no room, or there is some again."""
        self._wake.set()

    def _run(self) -> None:
        self._guarded(self._sweep)
        if self._stop.wait(_SETTLE_S):  # a start has other things to do than to read the whole file
            return
        if self._store.size_bytes() <= _CHECKED_BYTES:
            self._guarded(self._store.check)
        else:
            log.info("the database is too big to be read whole at every start: reef verify --all does it")
        while True:
            self._wake.wait(_EVERY_S if self._store.trouble is None else _SOON_S)
            self._wake.clear()
            if self._stop.is_set():
                return
            self._guarded(self._sweep)

    def _sweep(self) -> None:
        purged = sweep(
            self._store,
            self._home,
            self._limits,
            time.time(),
            ages=self._clock.believed(),
            go_on=lambda: not self._stop.is_set(),
        )
        if purged != Purged(0, 0, 0):
            log.info("retention: %s", purged)
        self._store.checkpoint()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ReefError as error:  # the edge of the thread: a full disk must not end what can free it
            log.warning("housekeeping is tried again later: %s", error)


def _purge(db: sqlite3.Connection, seqs: list[int], now_s: float) -> int:
    db.executemany(
        "UPDATE records SET request = NULL, response = NULL, training = NULL, purged_at = ? WHERE seq = ?",
        [(now_s, seq) for seq in seqs],
    )
    return len(seqs)


def _first_young(store: Store, before_s: float, now_s: float) -> int:
    """The first record, in the order of arrival, that is younger than ``before_s`` and not from the future."""
    with store.reading() as db:
        found = db.execute(
            "SELECT MIN(seq) FROM records WHERE purged_at IS NULL AND created_at BETWEEN ? AND ?", (before_s, now_s)
        ).fetchone()[0]
        return int(found) if found is not None else 2**62


def _purge_older(before_s: float, first_young: int, now_s: float, db: sqlite3.Connection) -> int:
    """What arrived before ``first_young`` and says that it is old: what came later was stamped by a wrong clock."""
    rows = db.execute(
        f"SELECT seq FROM records WHERE {_FREE} AND created_at < ? AND seq < ? LIMIT ?", (before_s, first_young, _BATCH)
    )
    return _purge(db, [row[0] for row in rows], now_s)


def _purge_oldest(over: int, now_s: float, db: sqlite3.Connection) -> int:
    """What came first, ``over`` bytes of it or a twentieth of what is left: bodies are shared, and few rounds must do."""
    left = db.execute("SELECT COUNT(*) FROM records WHERE purged_at IS NULL").fetchone()[0]
    some = left // 20
    rows = db.execute(
        f"SELECT seq, size_bytes FROM records WHERE {_FREE} ORDER BY seq LIMIT ?", (max(_BATCH, some),)
    ).fetchall()
    seqs: list[int] = []
    for seq, size in rows:
        if over <= 0 and len(seqs) >= some:
            break
        seqs.append(seq)
        over -= size
    return _purge(db, seqs, now_s)


def _body_bytes(store: Store) -> int:
    """Bytes of all bodies as they are stored."""
    with store.reading() as db:
        shared = db.execute("SELECT COALESCE(SUM(LENGTH(data)), 0) FROM segments").fetchone()[0]
        own = db.execute(
            "SELECT COALESCE(SUM(COALESCE(LENGTH(request), 0) + COALESCE(LENGTH(response), 0) +"
            " COALESCE(LENGTH(training), 0)), 0) FROM records"
        ).fetchone()[0]
        return int(shared + own)


def _collect_segments(store: Store) -> int:
    """Remove segments that no body uses any more: mark over all manifests in pages, then delete what is not marked."""
    used: set[int] = set()
    with store.reading() as db:  # rows from here on may still get their answer while the marks are collected
        first_open = db.execute(
            "SELECT COALESCE(MIN(seq) - 1, (SELECT COALESCE(MAX(seq), 0) FROM records)) FROM records WHERE state = 'open'"
        ).fetchone()[0]
    at = 0
    while True:
        with store.reading() as db:
            rows = db.execute(
                "SELECT seq, request, response, training FROM records WHERE seq > ? AND purged_at IS NULL ORDER BY seq LIMIT ?",
                (at, _BATCH),
            ).fetchall()
        if not rows:
            break
        at = rows[-1][0]
        for _, *manifests in rows:
            for manifest in manifests:
                used |= _used_by(manifest)
    with store.reading() as db:
        newest = int(db.execute("SELECT COALESCE(MAX(id), 0) FROM segments").fetchone()[0])
        sizes = db.execute("SELECT id, LENGTH(data) FROM segments WHERE id <= ?", (newest,))
        unused = [(segment, size) for segment, size in sizes if segment not in used]
    removed = 0
    some: list[int] = []
    room = _BATCH_BYTES
    for at, (segment, size) in enumerate(unused, start=1):
        some.append(segment)
        room -= size
        if room <= 0 or len(some) == _BATCH or at == len(unused):
            removed += store.write(partial(_drop_segments, store, some, first_open))
            some, room = [], _BATCH_BYTES
    return removed


def _drop_segments(store: Store, unused: list[int], first_open: int, db: sqlite3.Connection) -> int:
    """Delete on the writer, where nothing can be appended meanwhile; what newer records use again is spared."""
    for manifests in db.execute(
        "SELECT request, response, training FROM records WHERE seq > ? AND purged_at IS NULL", (first_open,)
    ):
        for manifest in manifests:
            taken = _used_by(manifest)
            unused = [one for one in unused if one not in taken]
    db.executemany("DELETE FROM segments WHERE id = ?", [(one,) for one in unused])
    store.segments.forget()
    return len(unused)


def _used_by(manifest: bytes | None) -> set[int]:
    """The shared segments of a body. One that is garbled uses none: nobody can read it, and the others must find room."""
    try:
        return segment_ids(manifest)
    except Unavailable:
        return set()


def _collect_artifacts(store: Store, home: Path, keep: int, orphans_before_s: float) -> int:
    """Remove files of old releases beyond ``keep`` and of steps that never became one."""
    with store.files:  # no rollback to one of them meanwhile
        return _collect_files(store, home / "artifacts", keep, orphans_before_s)


def _collect_files(store: Store, artifacts: Path, keep: int, orphans_before_s: float) -> int:
    with store.reading() as db:
        rows = db.execute(
            "SELECT scenario_id, content_id, release_id, state FROM releases ORDER BY scenario_id, seq DESC"
        ).fetchall()
        heads = set(db.execute("SELECT id, head FROM scenarios"))
    kept: set[str] = set()
    counts: dict[int, int] = {}
    for scenario_id, content_id, release_id, state in rows:
        if state == "rejected":
            continue
        counts[scenario_id] = counts.get(scenario_id, 0) + 1
        if (
            not keep
            or counts[scenario_id] <= keep
            or state in ("serving", "held")
            or (scenario_id, release_id) in heads
        ):
            kept.add(content_id)
    known = {row[1] for row in rows}
    removed = 0
    for folder in artifacts.glob("*"):
        if folder.name.startswith(".") or folder.name in kept or not folder.is_dir():
            continue
        if folder.name not in known and _changed_at(folder) >= orphans_before_s:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        removed += 1
    return removed


def _changed_at(folder: Path) -> float:
    """When ``folder`` was last written; never when a step has just removed it."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return math.inf
