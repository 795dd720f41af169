"""A trial on a given disk: a process writes records and is killed, again and again; what it was promised must be there.

Both sides of it: ``python -m reef.records.trial DATABASE NAME`` writes until it dies, ``kill_loops`` starts it, kills it and
counts. Knows nothing of a home; called by ``reef verify``, never on a database that anybody uses.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reef.core.records_types import AgentRecord, Delivery, Finish, RecordState, RequestType
from reef.errors import NotFound, ReefError, Unavailable
from reef.records.store import RecordStore
from reef.records.values import Exchange
from reef.store.bodies import split_json

_THREADS = 8
_POINTS = ("before-commit", "after-commit")
_LONGEST_LIFE_S = 0.3


@dataclass(frozen=True, slots=True)
class Trial:
    """``lost`` are promised records that are not there or not whole; ``at_points`` of the kills were at named points."""

    kills: int
    at_points: int
    acknowledged: int
    lost: int


def kill_loops(
    database: Path, loops: int, *, until: float, seed: int, tell: Callable[[int], None] = lambda done: None
) -> Trial:
    """Kill a writer ``loops`` times, or until the monotonic clock reaches ``until``; all lives share one database.

    Every fourth dies at a named point of a commit, the others at a random moment.
    """
    chance = random.Random(seed)
    promised: list[str] = []
    lost: set[str] = set()
    kills = at_points = 0
    while kills < loops and time.monotonic() < until:
        point = f"{chance.choice(_POINTS)}:{chance.randint(1, 20)}" if kills % 4 == 3 else None
        fresh = _life(database, f"k{kills}", point, chance.uniform(0.0, _LONGEST_LIFE_S))
        lost |= _missing(database, fresh)
        promised += fresh
        kills, at_points = kills + 1, at_points + (point is not None)
        tell(kills)
    lost |= _missing(database, promised)
    return Trial(kills, at_points, len(promised), len(lost))


def _life(database: Path, name: str, point: str | None, life_s: float) -> list[str]:
    """One writer from its start to its end by kill -9; the ids that it was promised."""
    environ = {**os.environ, "REEF_FAILPOINT": point} if point is not None else dict(os.environ)
    writer = subprocess.Popen(
        [sys.executable, "-m", "reef.records.trial", str(database), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    assert writer.stdout is not None and writer.stderr is not None
    try:
        first = writer.stdout.readline()
        if point is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                writer.wait(life_s)
            writer.kill()
        rest = writer.stdout.read()
        errors = writer.stderr.read().decode(errors="replace").strip()
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
        writer.stderr.close()
    if writer.returncode != -signal.SIGKILL:
        raise ReefError(f"the trial's writer failed: {errors.splitlines()[-1] if errors else writer.returncode}")
    lines = (first + rest).decode().splitlines(keepends=True)
    return [line.strip() for line in lines if line.endswith("\n")]


def _missing(database: Path, promised: list[str]) -> set[str]:
    """Which of ``promised`` are not in the database, or not as they were written."""
    if not promised:
        return set()
    missing: set[str] = set()
    records = RecordStore(database)
    try:
        for record_id in promised:
            try:
                row = records.get(record_id)
                same = row.record.request_type is not RequestType.INFERENCE or (
                    row.record.state is RecordState.COMPLETE
                    and records.request_bytes(record_id) == _request(record_id)
                    and records.response_bytes(record_id) == _answer(record_id)
                )
            except (NotFound, Unavailable):
                same = False
            if not same:
                missing.add(record_id)
    finally:
        records.close()
    return missing


def _request(record_id: str) -> bytes:
    return b'{"messages":[{"role":"user","content":"%s"}]}' % (f"{record_id} asks " * 20).encode()


def _answer(record_id: str) -> bytes:
    return b'{"answer":"%s"}' % (f"{record_id} is answered " * 20).encode()


def _write(records: RecordStore, name: str) -> None:
    """Calls and reports until the process dies; an id is printed once it is acknowledged, in one piece."""
    number = 0
    while True:
        record_id = f"{name}-{number}"
        exchange = Exchange(record_id, "trial", split_json(_request(record_id))[1], time.time())
        delivery = Delivery(_answer(record_id), 200, {})
        records.submit_exchange(exchange, Finish(RecordState.COMPLETE), delivery).result()
        os.write(1, f"{record_id}\n".encode())
        if number % 4 == 3:
            payload = {"score": 1.0, "references": [record_id]}
            records.append(AgentRecord.create("trial", RequestType.REPORT, payload, f"{record_id}-report"))
            os.write(1, f"{record_id}-report\n".encode())
        number += 1


def main(database: Path, name: str) -> None:
    """Write from several threads at once, as a daemon under load does; whoever started it kills it."""
    records = RecordStore(database)
    threads = [threading.Thread(target=_write, args=(records, f"{name}-{one}")) for one in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
