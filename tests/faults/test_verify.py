"""``reef verify``: what it tries, what it finds, that it can be stopped, and that it changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reef.records import RecordStore
from reef.records.trial import kill_loops
from reef.store.bodies import unpack
from tests.faults.test_damaged_home import reef
from tests.faults.test_kill import SOAK
from tests.faults.world import ROOT
from tests.faults.writing import row
from tests.support import daemon, eventually

ROWS = 40


def verify(home: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the parts by their ids."""
    ran = reef("verify", "--home", str(home), "--json", *arguments)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, {part["id"]: part for part in json.loads(ran.stdout)["parts"]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    records = RecordStore(tmp_path / "reef.db")
    for number in range(ROWS):
        records.append(row(number))
    records.close()
    return tmp_path


def test_a_sound_home_is_told_so_and_left_alone(home: Path) -> None:
    before = (home / "reef.db").read_bytes()
    code, parts = verify(home, "--loops", "4")
    assert code == 0
    assert parts["kills"]["checked"] > 0 and parts["kills"]["lost"] == 0
    assert "4 writers were killed, 1 of them inside a commit" in parts["kills"]["message"]
    assert (parts["records"]["checked"], parts["records"]["lost"]) == (ROWS, 0)
    assert {part["state"] for part in parts.values()} == {"ok"}
    assert (home / "reef.db").read_bytes() == before
    assert not list(home.glob(".verify*"))


def test_what_a_killed_verify_left_is_removed_and_what_another_needs_is_not(home: Path) -> None:
    (home / ".verify-999999999").mkdir()
    (home / f".verify-{os.getpid()}").mkdir()
    assert verify(home, "--loops", "0")[0] == 0
    assert [path.name for path in home.glob(".verify*")] == [f".verify-{os.getpid()}"]


def test_it_may_run_beside_the_daemon(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one:
        code, parts = verify(tmp_path, "--loops", "1")
        assert code == 0 and parts["database"]["state"] == "ok"
        with one.client() as client:
            assert client.status()["store"]["degraded"] is None


def test_a_home_that_is_none_is_refused_and_not_made(tmp_path: Path) -> None:
    ran = reef("verify", "--home", str(tmp_path / "none"), "--loops", "1")
    assert (ran.returncode, ran.stdout) == (4, "") and "there is no state directory" in ran.stderr
    assert not (tmp_path / "none").exists()


def test_a_garbled_database_is_found(home: Path) -> None:
    whole = (home / "reef.db").read_bytes()
    page = len(whole) // 4096 - 2
    (home / "reef.db").write_bytes(whole[: page * 4096] + b"\xff" * 4096 + whole[(page + 1) * 4096 :])
    code, parts = verify(home, "--loops", "0")
    assert code == 1
    assert parts["database"]["state"] == "lost" and "restore" in parts["database"]["fix"]
    (home / "reef.db").write_bytes(whole[:5000])
    code, parts = verify(home, "--loops", "0")
    assert code == 1 and "ends after 5000" in parts["database"]["message"]


def test_a_body_that_is_gone_or_garbled_is_found_by_its_record(home: Path) -> None:
    with closing(sqlite3.connect(home / "reef.db")) as db, db:
        rows = db.execute("SELECT id, data FROM segments ORDER BY id LIMIT 7").fetchall()
        (first, _), (second, _), _, (third, _), _, (fourth, data), (_, other) = rows
        db.execute("DELETE FROM segments WHERE id = ?", (first,))
        db.execute("UPDATE segments SET data = X'00' || CAST('something else' AS BLOB) WHERE id = ?", (second,))
        db.execute("UPDATE segments SET data = ? WHERE id = ?", (other, third))
        foreign = hashlib.blake2b(unpack(data), digest_size=16).digest()  # any key but the one of today
        db.execute("UPDATE segments SET hash = ? WHERE id = ?", (foreign, fourth))
    code, parts = verify(home, "--loops", "0")
    assert code == 1 and parts["database"]["state"] == "ok"
    assert parts["records"]["lost"] == 4 and "of p3, i2, i1, i0" in parts["records"]["message"]


def test_a_torn_artifact_is_found(home: Path) -> None:
    folder = home / "artifacts" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"weights" * 100)
    hashes = {"adapter_model.safetensors": hashlib.sha256(b"weights" * 100).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"step_id": "x", "files": hashes}))
    assert verify(home, "--loops", "0")[0] == 0
    (folder / "adapter_model.safetensors").write_bytes(b"weights" * 99)
    code, parts = verify(home, "--loops", "0")
    assert code == 1
    assert "adapter_model.safetensors is not what was written" in parts["artifacts"]["message"]
    assert (folder / "adapter_model.safetensors").exists()


def test_what_a_disk_forgets_is_counted(tmp_path: Path) -> None:
    """A disk that loses rows is played by somebody who deletes them between two lives."""
    database = tmp_path / "trial.db"

    def forget(done: int) -> None:
        with closing(sqlite3.connect(database)) as db, db:
            db.execute("PRAGMA foreign_keys=OFF")
            db.execute("DELETE FROM records WHERE seq = (SELECT MIN(seq) FROM records WHERE type = 'inference')")

    until = time.monotonic() + 60
    assert kill_loops(database, 3, until=until, seed=1).lost == 0
    assert kill_loops(tmp_path / "other.db", 1, until=until, seed=1).acknowledged > 0
    database = tmp_path / "other2.db"
    assert kill_loops(database, 2, until=until, seed=1, tell=forget).lost == 2


def test_ctrl_c_leaves_nothing_behind(home: Path) -> None:
    command = [sys.executable, "-m", "reef.cli.main", "verify", "--home", str(home), "--loops", "10000", "--all"]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: list(home.glob(".verify-*/trial.db")), 60)
    os.kill(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in said
    assert not list(home.glob(".verify*"))


@SOAK
@pytest.mark.soak
def test_two_hundred_kills(tmp_path: Path) -> None:
    trial = kill_loops(tmp_path / "trial.db", 200, until=time.monotonic() + 3600, seed=3)
    print(trial)
    assert trial.kills == 200 and trial.acknowledged > 200 and trial.lost == 0
