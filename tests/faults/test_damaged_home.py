"""A home with damaged files, as a person meets it: said once with the file and what to do, served as far as it can be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reef.client import RemoteError
from tests.faults.test_kill import SOAK, asking
from tests.faults.test_kill_training import BATCH, ask, feed
from tests.faults.world import Echo
from tests.support import Daemon, eventually, on_thread

RECEIPT = "x-reef-agent-record-id"


def reef(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reef.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_garbled_database_is_refused_once_with_advice(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with on_thread(Echo()) as upstream:
        one = Daemon(home, {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        one.start()
        with one.client() as client:
            client.call(asking("hello"))
        one.stop()
    path = home / "reef.db"
    garbled = b"\0" * 4096 + path.read_bytes()[4096:]
    path.write_bytes(garbled)
    for act in ("up", "serve"):
        ran = reef(act, "--home", str(home), "--upstream-url", "http://127.0.0.1:9", "--port", "0")
        assert ran.returncode == 6, ran.stderr
        assert f"{path} is damaged" in ran.stderr and "reef restore" in ran.stderr
        assert "Traceback" not in ran.stderr
        assert path.read_bytes() == garbled
    assert not (home / "daemon.json").exists()


def test_damage_in_the_middle_is_found_soon_after_the_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with on_thread(Echo()) as upstream:
        one = Daemon(home, {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        one.start()
        with one.client() as client:
            receipts = [client.call(asking(f"{number} " * 3000)).headers[RECEIPT] for number in range(40)]
        one.stop()
        path = home / "reef.db"
        whole = path.read_bytes()
        page = len(whole) // 4096 // 2
        path.write_bytes(whole[: page * 4096] + b"\xff" * 4096 + whole[(page + 1) * 4096 :])
        one.start()
        try:
            with one.client() as client:
                said = eventually(lambda: client.status()["store"]["degraded"], 60)
                assert "is damaged" in said
                response = client.call(asking("more"))
                assert response.headers["x-reef-unrecorded"] == "store_damaged" and RECEIPT not in response.headers
                readable = 0
                for receipt in receipts:
                    try:
                        client.record(receipt)
                        readable += 1
                    except RemoteError as error:
                        if error.code != "store_damaged":
                            raise
                assert readable >= len(receipts) - 8, "reads go on"
            assert reef("status", "--home", str(home)).returncode == 6
        finally:
            one.stop()
        ran = reef("up", "--home", str(home), "--upstream-url", upstream.url, "--port", "0")
        assert ran.returncode == 6 and "is damaged" in ran.stderr, "now that it is known, the next start looks first"


@SOAK
@pytest.mark.soak
def test_a_torn_artifact_is_not_served_and_says_so(tiny_model: Path, tmp_path: Path) -> None:
    one = Daemon(tmp_path, {"reef.model_path": str(tiny_model), "reef.recipe": "pg", "reef.batch_size": str(BATCH)})
    one.start()
    try:
        feed(one, 1)
        with one.client() as client:
            eventually(
                lambda: client.releases("s")[0]["release_id"] == "r1" and client.releases("s")[0]["state"] == "serving"
            )
        one.stop()
        manifest = next((tmp_path / "artifacts").glob("*/manifest.json"))
        name = next(name for name in json.loads(manifest.read_text())["files"] if name.startswith("adapter_model"))
        weights = manifest.parent / name
        torn = weights.read_bytes()[:-100]
        weights.write_bytes(torn)
        one.start()
        with one.client() as client:
            with pytest.raises(RemoteError) as refused:
                ask(client, 5)
            assert refused.value.code == "release_not_served"
            assert f"are damaged: {name}" in refused.value.message and "reef rollback" in refused.value.message
            assert weights.read_bytes() == torn
            client.act("s", "rollback", {"to": "r0"})
            assert client.record(ask(client, 6))["release_id"] == "r2"
    finally:
        one.kill()
