"""Other programs at the database: a reader that stays, a lock that is held, and twenty writers beside both."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.records import RecordStore
from tests.faults.test_kill import asking, sound
from tests.faults.world import Echo
from tests.faults.writing import row
from tests.support import Daemon, eventually, on_thread

WRITES, THREADS = 5000, 16
RECEIPT = "x-reef-agent-record-id"


@contextlib.contextmanager
def other_program(
    path: Path, statement: str, then: str = "SELECT COUNT(*) FROM records"
) -> Iterator[subprocess.Popen[str]]:
    """A database shell in a process of its own that has begun a transaction and does not end it."""
    code = (
        "import sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute(sys.argv[2]); db.execute(sys.argv[3]).fetchone()\n"
        "print('ready', flush=True); sys.stdin.readline(); db.execute('ROLLBACK')"
    )
    command = [sys.executable, "-c", code, str(path), statement, then]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    try:
        yield child
    finally:
        child.communicate("\n", timeout=30)


def write_many(records: RecordStore, first: int, count: int) -> None:
    def some(start: int) -> None:
        for number in range(start, first + count, THREADS):
            records.append(row(number * 4))  # inferences only

    threads = [threading.Thread(target=some, args=(first + start,)) for start in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_reader_that_stays_open_is_reported_and_the_log_shrinks_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "reef.store")
    records = RecordStore(tmp_path / "reef.db")
    write_many(records, 0, WRITES)
    alone = records.store.log_bytes()
    assert alone <= 64 * 2**20, "nobody is in the way"
    assert not caplog.records
    with other_program(tmp_path / "reef.db", "BEGIN") as child:
        before = records.store.size_bytes()
        write_many(records, WRITES, WRITES)
        grown = records.store.size_bytes() - before
        with records.store.reading() as db:
            assert db.execute("SELECT COUNT(*) FROM records").fetchone()[0] == 2 * WRITES, "reads and writes go on"
        if records.store.log_bytes() > 80 * 2**20:
            warned = [said for said in caplog.messages if "has grown to" in said]
            assert warned and (not Path("/proc/locks").exists() or f"pid {child.pid}" in warned[0])
        assert grown < 10 * before
    eventually(lambda: records.store.log_bytes() <= 8 * 2**20, 30)
    records.close()


def test_a_lock_of_another_program_delays_and_loses_nothing(tmp_path: Path) -> None:
    with on_thread(Echo()) as upstream:
        one = Daemon(tmp_path, {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        one.start()
        try:
            with one.client() as client, one.client() as second:
                client.call(asking("before"))
                with other_program(tmp_path / "reef.db", "BEGIN IMMEDIATE") as child:
                    answered: list[str] = []
                    waiting = threading.Thread(
                        target=lambda: answered.append(client.call(asking("meanwhile")).headers[RECEIPT])
                    )
                    waiting.start()
                    said = eventually(lambda: second.status()["store"]["degraded"], 30)
                    assert "another program" in said and f"holds {tmp_path}" in said
                    if Path("/proc/locks").exists():
                        assert f"pid {child.pid}) holds" in said
                    assert not answered
                    assert child.stdin is not None
                waiting.join()
                assert second.record(answered[0])["state"] == "complete"
                assert second.status()["store"]["degraded"] is None
        finally:
            one.stop()
    assert "locked" not in (tmp_path / "logs" / "reef.jsonl").read_text()


def test_twenty_writers_a_listing_cli_and_an_open_shell(tmp_path: Path) -> None:
    stop = threading.Event()
    heard: list[str] = []
    receipts: list[str] = []

    def ask(one: Daemon, name: int) -> None:
        with one.client() as client:
            for number in range(15):
                body = {**asking(f"writer {name} call {number}"), "stream": number % 3 == 0}
                response = client.http.post("/v1/chat/completions", json=body)
                assert response.status_code == 200
                receipts.append(response.headers[RECEIPT])
                reported = client.http.post("/reef/report", json={"score": 1, "references": [receipts[-1]]})
                assert reported.status_code == 200, reported.text

    def listing() -> None:
        while not stop.is_set():
            command = [sys.executable, "-m", "reef.cli.main", "records", "--json", "--home", str(tmp_path)]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
            heard.append(ran.stderr)
            assert ran.returncode == 0, ran.stderr

    def shell() -> None:
        while not stop.is_set():
            with contextlib.closing(sqlite3.connect(tmp_path / "reef.db", isolation_level=None)) as db:
                db.execute("BEGIN")
                db.execute("SELECT COUNT(*) FROM records").fetchone()
                time.sleep(0.05)

    with on_thread(Echo()) as upstream:
        one = Daemon(tmp_path, {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        one.start()
        try:
            with one.client() as client:
                client.call(asking("first"))
            with other_program(tmp_path / "reef.db", "BEGIN"):
                readers = [threading.Thread(target=work) for work in (listing, shell, shell)]
                writers = [threading.Thread(target=ask, args=(one, name)) for name in range(20)]
                for thread in [*readers, *writers]:
                    thread.start()
                for thread in writers:
                    thread.join()
                stop.set()
                for thread in readers:
                    thread.join()
            with one.client() as client:
                counts = client.get("/reef/scenarios/s")["counts"]
                assert counts["inference"] == {"complete": 301} and sum(counts["report"].values()) == 300
        finally:
            one.stop()
    assert len(set(receipts)) == 300 and heard
    everything = [*heard, (tmp_path / "logs" / "reef.jsonl").read_text(), (tmp_path / "logs" / "start.log").read_text()]
    assert not any("locked" in text for text in everything)
    assert sound(tmp_path)
