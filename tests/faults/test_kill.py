"""kill -9 at random times under eight clients: what was promised is there afterwards (issue 2, Show 4)."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from reef.client import ReefClient, RemoteError
from reef.errors import DaemonUnreachable
from reef.launch import spawn
from tests.faults.world import Echo
from tests.support import Daemon, on_thread

CLIENTS = 8
SOAK = pytest.mark.skipif(not os.environ.get("REEF_SOAK"), reason="long; set REEF_SOAK=1")
SEED = int(os.environ.get("REEF_SEED", "1"))


@dataclass
class Promises:
    """What clients were told. ``receipts`` maps a receipt to its prompt and whether the whole answer had come."""

    receipts: list[tuple[str, str, bool]] = field(default_factory=list)
    reports: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Client(threading.Thread):
    """Calls, streams and reports until the daemon is gone; keeps what it was promised.

    Where the store takes nothing any more, an answer must say so, and a report must be refused.
    """

    def __init__(self, one: Daemon, name: str) -> None:
        super().__init__(name=name)
        self.promises = Promises()
        self.promised = threading.Event()
        self.cut = threading.Event()
        """The power is being cut, which takes a file system some 12 ms here, and no time at all in life: in between a sync
        may be told that all is well and be dropped all the same. What is answered from here on has reached nobody."""
        self._daemon = one

    def run(self) -> None:
        turns: Sequence[Callable[[ReefClient, str], None]] = (self._call, self._stream, self._report)
        with self._daemon.client(timeout_s=30) as client:
            for number in count():
                try:
                    turns[number % len(turns)](client, f"{self.name} turn {number} " + "word " * (number % 7))
                except (DaemonUnreachable, httpx.TransportError):
                    return
                except RemoteError as error:
                    if not error.code.startswith("store_"):
                        raise
                    continue
                self.promised.set()

    def _call(self, client: ReefClient, text: str) -> None:
        response = client.call(asking(text))
        receipt = response.headers.get("x-reef-agent-record-id")
        assert receipt or response.headers["x-reef-unrecorded"].startswith("store_")
        if receipt is not None and not self.cut.is_set():
            self.promises.receipts.append((receipt, text, True))

    def _stream(self, client: ReefClient, text: str) -> None:
        with client.stream(asking(text)) as response:
            receipt = response.headers.get("x-reef-agent-record-id")
            assert receipt or response.headers["x-reef-unrecorded"].startswith("store_")
            counted = receipt is not None and not self.cut.is_set()
            if counted:
                self.promises.receipts.append((str(receipt), text, False))
            if b"[DONE]" in response.read() and counted and not self.cut.is_set():
                self.promises.receipts[-1] = (str(receipt), text, True)

    def _report(self, client: ReefClient, text: str) -> None:
        references = [receipt for receipt, _, _ in self.promises.receipts[-2:]]
        found = client.report(score=1, feedback=text, references=references)
        if not self.cut.is_set():
            self.promises.reports[found["agent_record_id"]] = tuple(references)


def asking(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def check(client: ReefClient, promises: Promises) -> None:
    """Everything that was promised can be read, whole where the client saw the end."""
    for receipt, text, whole in promises.receipts:
        record = client.record(receipt)
        assert record["request"]["messages"][-1]["content"] == text
        assert record["state"] == "complete" or (not whole and record["state"] == "aborted"), record
        if record["state"] == "complete":
            answer = record["response"]["choices"][0]["message"]["content"]
            assert answer.split() == text.split()
        else:
            assert record["reason"]["code"] == "daemon_stopped"
    for report_id, references in promises.reports.items():
        record = client.record(report_id)
        assert record["request_type"] == "report"
        assert tuple(record["references"]) == references


def sound(home: Path) -> bool:
    connection = sqlite3.connect(f"{(home / 'reef.db').as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


def one_life(one: Daemon, chance: random.Random, before: Promises) -> Promises:
    """Start, check what the last life promised, let eight clients work, kill -9 at a random moment.

    Now and then a start is killed too.
    """
    if chance.random() < 0.25:
        one.child = spawn(one.home, one.settings)
        one.died(chance.uniform(0.2, 2.0))
        one.kill()
    one.start()
    with one.client() as client:
        check(client, before)
        assert not before.receipts or not client.records("s", state="open")
    assert sound(one.home)
    clients = [Client(one, f"c{number}") for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        assert client.promised.wait(60)
    one.died(chance.uniform(0.0, 0.6))
    one.kill()
    for client in clients:
        client.join()
    promises = Promises()
    for client in clients:
        promises.receipts += client.promises.receipts
        promises.reports |= client.promises.reports
    return promises


def kill_at_random(home: Path, loops: int) -> None:
    chance = random.Random(SEED)
    everything, last = Promises(), Promises()
    with on_thread(Echo(pause_s=0.01)) as upstream:
        one = Daemon(home, {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        for _ in range(loops):
            last = one_life(one, chance, last)
            everything.receipts += last.receipts
            everything.reports |= last.reports
        one.start()
        with one.client() as client:
            check(client, everything)
            counts = client.status()["scenarios"][0]["counts"]
        assert sum(counts["inference"].values()) >= len(everything.receipts)
        assert sum(counts["report"].values()) >= len(everything.reports)
        assert sound(home)
        one.stop()
    print(
        f"{loops} kills: {len(everything.receipts)} receipts and {len(everything.reports)} reports acknowledged, 0 lost"
    )
    receipts = [receipt for receipt, _, _ in everything.receipts]
    assert len(set(receipts)) == len(receipts) > loops * CLIENTS


def test_kill_at_random_times_under_eight_clients(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 4)


@SOAK
@pytest.mark.soak
def test_kill_at_random_times_two_hundred_times(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 200)
