"""Lives of daemons: SIGTERM drains, two on one home, what a dead one left behind, and a clock that jumps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.faults.test_damaged_home import reef
from tests.faults.test_kill import asking
from tests.faults.world import Echo
from tests.support import Daemon, daemon, eventually, on_thread

CALLS = 50
RECEIPT = "x-reef-agent-record-id"


def test_sigterm_ends_answers_in_order_and_keeps_them(tmp_path: Path) -> None:
    """Fifty calls, half of them streams, SIGTERM while they are under way, a new start, and a count."""
    answers: dict[int, tuple[str, bytes]] = {}
    with on_thread(Echo(pause_s=0.3)) as upstream:
        one = Daemon(tmp_path, {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        one.start()

        def ask(number: int) -> None:
            with one.client() as client:
                body = {**asking(f"call {number} is one of many"), "stream": number % 2 == 0}
                response = client.http.post("/v1/chat/completions", json=body)
                assert response.status_code == 200
                answers[number] = (response.headers[RECEIPT], response.content)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(CALLS)]
        for thread in threads:
            thread.start()
        eventually(lambda: upstream.begun == CALLS, 60)
        assert one.child is not None
        os.kill(one.child.pid, signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert one.died(30) and one.child.returncode == 0
        assert len(answers) == CALLS
        one.start()
        with one.client() as client:
            for number, (receipt, content) in answers.items():
                record = client.record(receipt)
                assert record["state"] == "complete"
                assert record["request"]["messages"][0]["content"] == f"call {number} is one of many"
                assert b"[DONE]" in content or number % 2
            counts = client.get("/reef/scenarios/s")["counts"]
            assert counts["inference"] == {"complete": CALLS}
        one.stop()


def test_a_second_daemon_on_the_same_home_names_the_first(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as first:
        assert first.child is not None
        arguments = ("--home", str(tmp_path), "--upstream-url", "http://127.0.0.1:9", "--port", "0")
        second = reef("serve", "--quiet", *arguments)
        assert second.returncode == 3
        assert f"pid {first.child.pid}" in second.stderr and str(tmp_path) in second.stderr
        again = reef("up", *arguments, "--json")
        assert again.returncode == 0
        assert json.loads(again.stdout)["pid"] == first.child.pid
        with first.client() as client:
            assert client.status()["daemon"]["pid"] == first.child.pid, "and the first goes on"


def test_what_a_killed_daemon_left_neither_blocks_nor_harms_anybody(tmp_path: Path) -> None:
    """Its number may belong to another program by now: that one is never signalled, and never stands in the way."""
    one = Daemon(tmp_path, {"reef.upstream_url": "http://127.0.0.1:9"})
    one.start()
    one.kill()
    left = json.loads((tmp_path / "daemon.json").read_text())
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        (tmp_path / "daemon.json").write_text(json.dumps({**left, "pid": stranger.pid}))
        assert reef("down", "--home", str(tmp_path)).returncode == 0
        assert stranger.poll() is None
        assert reef("status", "--home", str(tmp_path)).returncode == 3
        (tmp_path / "daemon.json").write_text(json.dumps({**left, "pid": stranger.pid}))
        one.start()
        with one.client() as client:
            assert client.ready()
        one.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
