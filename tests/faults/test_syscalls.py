"""The n-th system call on the database fails, n = 1, 2, 3 ... until none is left: nothing acknowledged is lost.

The writer is a process of its own with the real store (tests.faults.writing); the daemon is a whole one, with strace
attached while it answers, and one that is started under strace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from reef.client import discovery
from reef.records import RecordStore
from reef.store import Store
from tests.faults.machine import ERRNOS, Strace, needs_strace, python
from tests.faults.test_kill import SOAK, asking, sound
from tests.faults.world import ROOT, Echo
from tests.faults.writing import row
from tests.support import Daemon, eventually, on_thread

ROWS = 12
CALLS = ("pwrite64", "fdatasync", "openat", "ftruncate", "rename,renameat", "unlink")


@pytest.fixture(autouse=True, scope="module")
def allowed() -> None:
    needs_strace()


def write(home: Path, call: str, errno: str, when: str, wait_s: float) -> tuple[subprocess.CompletedProcess[str], int]:
    """One writer with a fault; what it said, and how many calls failed."""
    home.mkdir()
    tracer = Strace(home, home.parent / f"{home.name}.strace", call, errno, when)
    command = [*tracer.command[:1], "--seccomp-bpf", *tracer.command[1:]]
    ran = python("tests.faults.writing", str(home / "reef.db"), str(ROWS), str(wait_s), under=command)
    return ran, tracer.injected()


def check(home: Path, ran: subprocess.CompletedProcess[str]) -> int:
    """Everything that was acknowledged comes back whole, in order; how many rows that is."""
    assert "Traceback" not in ran.stderr, ran.stderr
    acknowledged = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("ack ")]
    records = RecordStore(Store(home / "reef.db"))
    try:
        for number, record_id in enumerate(acknowledged):
            stored, sent = records.get(record_id).record, row(number)
            assert stored.agent_record_id == sent.agent_record_id
            assert dict(stored.payload.items()) == dict(sent.payload), record_id
        rows = records.pull("s", 0, 1000) if acknowledged else []
        assert [one.rev for one in rows] == sorted({one.rev for one in rows}), "revs are given once"
    finally:
        records.close()
    assert sound(home)
    return len(acknowledged)


def fail_once(tmp_path: Path, call: str, errno: str, turns: Iterator[int]) -> list[int]:
    """The n-th call fails, for every n that ``turns`` gives until there is no such call any more."""
    failed = []
    for turn in turns:
        home = tmp_path / f"{call}-{errno}-{turn}"
        ran, injected = write(home, call, errno, str(turn), 20.0)
        acknowledged = check(home, ran)
        if not injected:
            assert ran.returncode == 0 and acknowledged == ROWS
            break
        failed.append(turn)
        if ran.returncode == 6:
            assert ran.stdout.startswith("refused store_"), "a start that fails says why"
        else:
            assert (ran.returncode, acknowledged) == (0, ROWS), f"one failing {call} is got over: {ran}"
    return failed


@pytest.mark.parametrize(
    ("call", "errno", "turns"),
    [
        ("fdatasync", "EIO", (1, 2, 4, 7, 11)),
        ("fdatasync", "EINTR", (9,)),
        ("pwrite64", "EIO", (3, 19, 47, 80, 110)),
        ("pwrite64", "ENOSPC", (31, 64, 97)),
        ("openat", "EIO", (2, 5)),
        ("ftruncate", "EIO", (1,)),
        ("rename,renameat", "EIO", (1,)),
    ],
)
def test_a_call_that_fails_once_costs_nothing(tmp_path: Path, call: str, errno: str, turns: tuple[int, ...]) -> None:
    assert fail_once(tmp_path, call, errno, iter(turns)) == list(turns)


@SOAK
@pytest.mark.soak
@pytest.mark.parametrize("errno", ERRNOS)
@pytest.mark.parametrize("call", CALLS)
def test_every_call_that_fails_once_costs_nothing(tmp_path: Path, call: str, errno: str) -> None:
    failed = fail_once(tmp_path, call, errno, count(1))
    assert failed
    print(f"{len(failed)} of the writer's {call} failed with {errno}, one at a time: 0 rows lost")


@pytest.mark.parametrize(
    ("call", "errno", "turns"),
    [
        ("fdatasync", "EIO", range(8, 30)),
        ("pwrite64", "ENOSPC", range(96, 300, 8)),
        ("pwrite64", "EIO", range(98, 300, 8)),
    ],
)
def test_calls_that_go_on_failing_are_not_acknowledged(tmp_path: Path, call: str, errno: str, turns: range) -> None:
    """From the first turn on that is not one of the start's own (each migration adds some)."""
    for turn in turns:
        home = tmp_path / str(turn)
        ran, injected = write(home, call, errno, f"{turn}+", 2.0)
        acknowledged = check(home, ran)
        assert injected >= 1
        if ran.returncode != 6:
            break
        assert acknowledged == 0 and ran.stdout.startswith("refused store_"), "a start that fails says why"
    assert ran.returncode == 1 and acknowledged < ROWS


class Burst:
    """A few calls, streams and reports one after the other; keeps what was promised, and checks what was not."""

    def __init__(self, one: Daemon) -> None:
        self._daemon = one
        self.receipts: list[tuple[str, str]] = []
        self.reports: list[str] = []
        self.unrecorded = 0
        self._numbers = count()

    def run(self) -> None:
        with self._daemon.client(timeout_s=30) as client:
            for streamed in (False, True, False):
                text = f"turn {next(self._numbers)} " + "word " * 20
                body = {**asking(text), "stream": streamed}
                response = client.http.post("/v1/chat/completions", json=body)
                assert response.status_code == 200, "an answer that was paid for is passed on"
                receipt = response.headers.get("x-reef-agent-record-id")
                if receipt is None:
                    assert response.headers["x-reef-unrecorded"].startswith("store_")
                    self.unrecorded += 1
                else:
                    self.receipts.append((receipt, text))
            if self.receipts:
                body = {"score": 1, "references": [self.receipts[-1][0]]}
                response = client.http.post("/reef/report", json=body)
                if response.status_code == 200:
                    self.reports.append(response.json()["agent_record_id"])
                else:
                    assert response.status_code in (503, 507), response.text

    def check(self) -> None:
        with self._daemon.client() as client:
            for receipt, text in self.receipts:
                record = client.record(receipt)
                assert record["request"]["messages"][-1]["content"] == text
                assert record["state"] in ("complete", "aborted"), record
            for report in self.reports:
                assert client.record(report)["request_type"] == "report"
        assert sound(self._daemon.home)


def a_failing_call_while_it_answers(tmp_path: Path, call: str, errno: str, turns: Iterator[int]) -> list[int]:
    """One daemon through all of it: it degrades, never dies, never promises what it does not keep, and recovers."""
    failed = []
    with on_thread(Echo()) as upstream:
        one = Daemon(tmp_path / "home", {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        one.start()
        try:
            burst = Burst(one)
            burst.run()
            assert one.child is not None
            for turn in turns:
                tracer = Strace(one.home, tmp_path / f"{call}-{turn}.strace", call, errno, str(turn))
                with tracer.attached(one.child.pid):
                    burst.run()
                with one.client() as client:
                    eventually(lambda client=client: client.status()["store"]["degraded"] is None, 30)
                    eventually(lambda client=client: not client.records("s", state="open"), 30)
                if not tracer.injected():
                    break
                failed.append(turn)
                if call == "fdatasync":
                    assert reopened(one.home) >= len(failed), "what failed to reach the disk once is not tried again"
            burst.run()
            burst.check()
            assert one.child.poll() is None
            one.kill()
            one.start()
            burst.check()
            with one.client() as client:
                assert not client.records("s", state="open")
        finally:
            one.kill()
    return failed


def reopened(home: Path) -> int:
    return (home / "logs" / "reef.jsonl").read_text().count("has been opened again and checked")


@pytest.mark.parametrize(
    ("call", "errno", "turns"),
    [("fdatasync", "EIO", (1, 2, 4)), ("pwrite64", "ENOSPC", (2, 9)), ("pwrite64", "EIO", (5,))],
)
def test_a_call_fails_while_the_daemon_answers(tmp_path: Path, call: str, errno: str, turns: tuple[int, ...]) -> None:
    assert a_failing_call_while_it_answers(tmp_path, call, errno, iter(turns)) == list(turns)


@SOAK
@pytest.mark.soak
@pytest.mark.parametrize("errno", ERRNOS)
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
def test_every_call_fails_while_the_daemon_answers(tmp_path: Path, call: str, errno: str) -> None:
    failed = a_failing_call_while_it_answers(tmp_path, call, errno, count(1))
    assert failed
    print(f"{len(failed)} of the daemon's {call} failed with {errno} while it answered: 0 rows lost")


def start_with_a_failing_call(home: Path, call: str, errno: str, turn: int) -> int:
    """Start a daemon under strace until it is ready or has refused, end it; how many calls failed."""
    tracer = Strace(home, home.parent / f"{call}-{errno}-{turn}.strace", call, errno, str(turn))
    serve = ["-m", "reef.cli.main", "serve", "--quiet", "--yes", "--home", str(home), "--port", "0"]
    serve += ["--upstream-url", "http://127.0.0.1:9"]
    command = [*tracer.command[:1], "--seccomp-bpf", *tracer.command[1:], sys.executable, *serve]
    (home / "daemon.json").unlink()  # of the one that was killed
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def ready() -> bool:
        found = discovery(home)
        return child.poll() is not None or (found is not None and found["state"] == "ready")

    eventually(ready, 60)
    found = discovery(home)
    if found is not None and child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found["pid"], signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert "Traceback" not in said, said
    assert child.returncode == 0 or (child.returncode in (1, 6) and "error: " in said), (child.returncode, said)
    return tracer.injected()


def starts_with_failing_calls(tmp_path: Path, call: str, errno: str, turns: Iterator[int]) -> list[int]:
    """Starts on a killed daemon's home; in the end everything that had been promised is there."""
    failed = []
    with on_thread(Echo()) as upstream:
        one = Daemon(tmp_path / "home", {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        burst = Burst(one)
        try:
            for turn in turns:
                one.start()
                burst.check()
                burst.run()
                one.kill()
                if not start_with_a_failing_call(one.home, call, errno, turn):
                    break
                failed.append(turn)
            one.start()
            burst.check()
        finally:
            one.kill()
    assert burst.unrecorded == 0
    return failed


@pytest.mark.parametrize(("call", "errno", "turns"), [("openat", "EIO", (2,)), ("pwrite64", "ENOSPC", (1,))])
def test_a_call_fails_while_the_daemon_starts(tmp_path: Path, call: str, errno: str, turns: tuple[int, ...]) -> None:
    assert starts_with_failing_calls(tmp_path, call, errno, iter(turns)) == list(turns)


@SOAK
@pytest.mark.soak
@pytest.mark.parametrize("errno", ERRNOS)
@pytest.mark.parametrize("call", [*CALLS, "write", "fsync"])
def test_every_call_fails_while_the_daemon_starts(tmp_path: Path, call: str, errno: str) -> None:
    failed = starts_with_failing_calls(tmp_path, call, errno, count(1))
    assert failed
    print(f"{len(failed)} of the daemon's {call} failed with {errno} while it started: 0 rows lost")
