"""A disk that fills up and empties, becomes read-only or fails, and limits of the process: clear words, no half record,
reads go on, and recording resumes without a restart."""

from __future__ import annotations

import base64
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from reef.client import ReefClient, RemoteError
from reef.errors import DaemonUnreachable
from tests.cli.test_cli import reef, refused
from tests.faults.machine import disk
from tests.faults.test_kill import asking, sound
from tests.faults.world import Echo
from tests.support import Daemon, eventually, on_thread

RECEIPT, UNRECORDED = "x-reef-agent-record-id", "x-reef-unrecorded"


class Caller:
    """Calls with bodies that do not get smaller; keeps every receipt with its text."""

    def __init__(self) -> None:
        self.receipts: dict[str, str] = {}
        self._chance = random.Random(1)

    def ask(self, client: ReefClient, size_bytes: int = 100_000) -> httpx.Response:
        text = base64.b64encode(self._chance.randbytes(size_bytes * 3 // 4)).decode()
        response = client.http.post("/v1/chat/completions", json=asking(text))
        if RECEIPT in response.headers:
            assert response.status_code == 200
            self.receipts[response.headers[RECEIPT]] = text
        return response

    def until(self, client: ReefClient, header: str, calls: int = 2000) -> httpx.Response:
        """Call until ``header`` is in the answer."""
        for _ in range(calls):
            response = self.ask(client)
            assert response.status_code == 200, response.text
            if header in response.headers:
                return response
        raise AssertionError(f"{calls} calls, and no {header}")

    def check(self, client: ReefClient) -> None:
        for receipt, text in self.receipts.items():
            record = client.record(receipt)
            assert record["state"] == "complete"
            assert record["request"]["messages"][0]["content"] == text
            assert record["response"]["choices"][0]["message"]["content"] == text


def degraded(client: ReefClient) -> str | None:
    return client.status()["store"]["degraded"]


def records_again(client: ReefClient, caller: Caller) -> bool:
    return RECEIPT in caller.ask(client, 1000).headers and degraded(client) is None


@contextmanager
def on_a_disk(folder: Path, size_mb: int = 32, **settings: str) -> Iterator[tuple[Any, Daemon]]:
    with on_thread(Echo()) as upstream, disk(folder, size_mb) as plugged:
        given = {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"}
        one = Daemon(plugged.path / "home", given | {f"reef.{name}": value for name, value in settings.items()})
        one.start()
        try:
            yield plugged, one
        finally:
            one.kill()


def test_a_disk_that_is_full_and_emptied_again(tmp_path: Path) -> None:
    with on_a_disk(tmp_path) as (plugged, one), one.client() as client:
        caller = Caller()
        caller.until(client, RECEIPT)
        reserve = one.home / "reef.db-reserve"
        assert reserve.stat().st_blocks * 512 >= 4 * 2**20
        filler = plugged.fill(leave_bytes=8 * 2**20)
        assert caller.until(client, UNRECORDED).headers[UNRECORDED] == "store_full"
        assert len(caller.receipts) > 10, "it was recorded as long as there was room"
        assert "full" in str(eventually(lambda: degraded(client), 20))
        assert not reserve.exists()
        with pytest.raises(RemoteError) as refused:
            client.report(score=1, references=[next(iter(caller.receipts))])
        assert (refused.value.status, refused.value.code) == (507, "store_full")
        assert client.http.get("/healthz").json()["status"] == "degraded"
        cli = [sys.executable, "-m", "reef.cli.main", "status", "--home", str(one.home)]
        assert subprocess.run(cli, capture_output=True).returncode == 6
        caller.check(client)
        client.post("/reef/scenarios", {"name": "other"})  # bookkeeping has the room that was reserved
        filler.unlink()
        eventually(lambda: records_again(client, caller), 30)
        eventually(reserve.exists, 30)
        assert client.report(score=1, references=[next(iter(caller.receipts))])["state"] == "parked"
        caller.check(client)
        assert sound(one.home)


def test_a_daemon_starts_on_a_full_disk_and_says_so(tmp_path: Path) -> None:
    with on_a_disk(tmp_path) as (plugged, one):
        caller = Caller()
        with one.client() as client:
            caller.until(client, RECEIPT)
        one.kill()
        filler = plugged.fill()
        one.start()
        with one.client() as client:
            assert "full" in str(degraded(client))
            assert caller.ask(client).headers[UNRECORDED] == "store_full"
            caller.check(client)
            filler.unlink()
            eventually(lambda: records_again(client, caller), 30)
            caller.check(client)


def test_a_call_that_was_not_recorded_says_so_and_a_report_has_nothing_to_name(tmp_path: Path) -> None:
    with on_a_disk(tmp_path, upstream_model="m") as (plugged, one), one.client() as client:
        words = ("call", "hi", "--no-stream", "-s", "s")
        assert "receipt" in reef(one.home, *words).err
        plugged.fill()
        Caller().until(client, UNRECORDED)
        for more in ((), ("--json",)):
            ran = reef(one.home, *words, *more)
            assert ran.code == 0 and ran.out
            assert ran.document["agent_record_id"] is None if more else "was not recorded" in ran.err
            refused(reef(one.home, "report", "--score", "1", "-s", "s"), 4, "no earlier reef call")


def test_retention_frees_room_inside_the_database_of_a_full_disk(tmp_path: Path) -> None:
    """Even a deletion needs room: the reserve gives it, and what is free inside the file is used again."""
    with on_a_disk(tmp_path, retention_gb="0.006") as (plugged, one), one.client() as client:
        caller = Caller()
        while len(caller.receipts) < 60:
            caller.until(client, RECEIPT)
        plugged.fill(leave_bytes=6 * 2**20)
        caller.until(client, UNRECORDED)
        eventually(lambda: records_again(client, caller), 60)
        first, *_, last = caller.receipts
        assert client.record(first)["purged_at"] is not None
        assert client.record(last)["state"] == "complete"
        assert sound(one.home)


def test_a_deployment_that_wants_no_unrecorded_answers_refuses_them(tmp_path: Path) -> None:
    with on_a_disk(tmp_path, on_store_failure="refuse") as (plugged, one), one.client() as client:
        caller = Caller()
        assert caller.ask(client).status_code == 200
        filler = plugged.fill()
        refused = eventually(lambda: (got := caller.ask(client)).status_code != 200 and got, 30)
        assert refused.status_code == 507 and RECEIPT not in refused.headers
        filler.unlink()
        eventually(lambda: caller.ask(client).status_code == 200, 30)
        caller.check(client)


def test_a_disk_that_dies_is_survived_and_what_was_promised_is_on_it(tmp_path: Path) -> None:
    with on_a_disk(tmp_path) as (plugged, one):
        caller = Caller()
        with one.client() as client:
            for _ in range(5):
                caller.until(client, RECEIPT)
            plugged.remount("abort")  # as the kernel does when it meets an error: nothing can be written any more
            response = caller.until(client, UNRECORDED)
            assert response.headers[UNRECORDED] in ("store_io_error", "store_read_only")
            assert degraded(client) is not None
            with pytest.raises(RemoteError) as refused:
                client.report(score=1, references=[next(iter(caller.receipts))])
            assert refused.value.status == 503
            assert one.child is not None and one.child.poll() is None
        one.kill()
        plugged.unmount()
        plugged.mount()
        one.start()
        with one.client() as client:
            caller.check(client)
            assert RECEIPT in caller.ask(client).headers


def test_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    with on_a_disk(tmp_path) as (plugged, one):
        caller = Caller()
        with one.client() as client:
            caller.until(client, RECEIPT)
        one.stop()
        plugged.remount("ro")
        cli = [sys.executable, "-m", "reef.cli.main", "serve", "--quiet", "--yes", "--home", str(one.home)]
        ran = subprocess.run(
            [*cli, "--upstream-url", "http://127.0.0.1:9", "--port", "0"], capture_output=True, text=True, timeout=60
        )
        assert ran.returncode in (1, 6)
        assert ran.stderr.startswith("error: ") and "read-only" in ran.stderr.lower(), ran.stderr
        plugged.remount("rw")
        one.start()
        with one.client() as client:
            caller.check(client)


@contextmanager
def limited(pid: int, what: int, soft: int) -> Iterator[None]:
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, before)


LIMITS = pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="limits of another process can only be set on Linux"
)


@pytest.fixture
def small_daemon(tmp_path: Path) -> Iterator[Daemon]:
    with on_thread(Echo()) as upstream:
        one = Daemon(tmp_path / "home", {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        one.start()
        try:
            yield one
        finally:
            one.kill()


@LIMITS
def test_a_file_that_may_not_grow_any_more(small_daemon: Daemon) -> None:
    one, caller = small_daemon, Caller()
    assert one.child is not None
    with one.client() as client:
        for _ in range(5):
            caller.until(client, RECEIPT)
        grown = max(path.stat().st_size for path in one.home.glob("reef.db*"))
        with limited(one.child.pid, resource.RLIMIT_FSIZE, grown + 100_000):
            assert caller.until(client, UNRECORDED).headers[UNRECORDED] == "store_io_error"
            assert degraded(client) is not None
            caller.check(client)
        eventually(lambda: records_again(client, caller), 60)
        caller.check(client)
    assert sound(one.home)


@LIMITS
def test_no_more_files_may_be_opened(small_daemon: Daemon) -> None:
    one, caller = small_daemon, Caller()
    assert one.child is not None
    pid = one.child.pid
    with one.client() as client:
        caller.until(client, RECEIPT)
        with limited(pid, resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{pid}/fd"))):
            for _ in range(20):  # on the connections that are there; whatever is answered is true
                response = caller.ask(client, 1000)
                assert response.status_code == 200 or response.status_code >= 500
            with pytest.raises(DaemonUnreachable), one.client(timeout_s=2) as stranger:
                stranger.status()
        eventually(lambda: records_again(client, caller), 30)
        caller.check(client)
    assert sound(one.home)
    assert one.child.poll() is None
