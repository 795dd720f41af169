"""reef backup and reef restore: one file, consistent under load, checked before anything is touched."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zstandard

from reef.daemon.backup import backup
from reef.errors import ReefError
from reef.inference.testing import Script
from tests.cli.test_cli import reef, refused, schema
from tests.e2e.test_publish import learn, probe
from tests.faults.world import ROOT, STUB, Echo, imported
from tests.support import Daemon, daemon, eventually, on_thread, provider

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def digests(home: Path, upto: int | None = None) -> dict[str, str]:
    """A hash of the rows of each table; of the records only those up to a seq."""
    found = {}
    db = sqlite3.connect(f"{(home / 'reef.db').as_uri()}?mode=ro", uri=True)
    try:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
        for name in names:
            where = f" WHERE seq <= {upto}" if upto is not None and name == "records" else ""
            rows = db.execute(f"SELECT * FROM {name}{where} ORDER BY 1, 2").fetchall()
            found[name] = hashlib.sha256(repr(rows).encode()).hexdigest()
    finally:
        db.close()
    return found


def unpacked(path: Path) -> dict[str, bytes]:
    """The members of a backup, as any other program would read them."""
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as reader:
        whole = reader.read()
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}


def packed(path: Path, members: dict[str, bytes]) -> Path:
    """A backup with other members."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    path.write_bytes(zstandard.ZstdCompressor().compress(raw.getvalue()))
    return path


def test_a_backup_under_load_holds_what_was_acknowledged_before_it_began(tmp_path: Path) -> None:
    home, again = tmp_path / "home", tmp_path / "again"
    stop, receipts = threading.Event(), list[str]()

    def call(one: Daemon) -> None:
        with one.client() as client:
            while not stop.is_set():
                receipts.append(client.call(HELLO).headers["x-reef-agent-record-id"])

    with (
        on_thread(Echo()) as upstream,
        daemon(home, reef_upstream_url=upstream.url) as one,
        ThreadPoolExecutor(4) as pool,
    ):
        calls = [pool.submit(call, one) for _ in range(4)]
        try:
            eventually(lambda: len(receipts) > 50 or any(one_call.done() for one_call in calls))
            before = list(receipts)
            made = schema(reef(home, "backup", str(tmp_path / "b.tar.zst"), "--json"), "backup")
            after = len(receipts)
            eventually(lambda: len(receipts) > after + 20)  # the daemon goes on
        finally:
            stop.set()
        for one_call in calls:
            one_call.result()
    back = schema(reef(again, "restore", str(tmp_path / "b.tar.zst"), "--json"), "restore")
    assert back["records"] == made["records"] >= len(before)
    db = sqlite3.connect(again / "reef.db")
    stored = {row[0] for row in db.execute("SELECT id FROM records")}
    (last,) = db.execute("SELECT MAX(seq) FROM records").fetchone()
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    assert set(before) <= stored < set(receipts)
    assert digests(again)["records"] == digests(home, last)["records"]
    with on_thread(Echo()) as upstream, daemon(again, reef_upstream_url=upstream.url) as one, one.client() as client:
        assert client.record(before[0])["request"] == HELLO
        client.call(HELLO)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a chain of three releases, files of them, and consumed reports."""
    home = tmp_path_factory.mktemp("made") / "home"
    settings = {"reef_upstream_url": "http://127.0.0.1:9", "reef_recipe": STUB, "reef_batch_size": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        with daemon(home, **settings) as one, one.client() as client:
            client.post("/reef/records", {"records": [imported(f"i{number}") for number in (1, 2)]})
            for number in (1, 2):
                client.report(score=1, references=[f"i{number}"])
                eventually(lambda number=number: client.get("/reef/scenarios/s")["step"] == number)
            for row in client.releases("s"):
                if row["release_id"] != "r0":
                    folder = home / "artifacts" / row["content_id"] / "adapter"
                    folder.mkdir(parents=True)
                    (folder / "weights.bin").write_bytes(row["content_id"].encode() * 1000)
    return home


@pytest.fixture
def chain(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that home for one test."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return Path(shutil.copytree(made, tmp_path / "home"))


def test_restored_is_what_was_backed_up(chain: Path, tmp_path: Path) -> None:
    file, again = tmp_path / "b.tar.zst", tmp_path / "again"
    (chain / "artifacts" / "nobody-names-me").mkdir()
    (chain / "artifacts" / "nobody-names-me" / "file").write_bytes(b"x")
    made = schema(reef(chain, "backup", str(file), "--json"), "backup")
    assert (made["records"], made["scenarios"], made["missing_artifacts"]) == (4, {"s": "r2"}, [])
    assert file.stat().st_mode & 0o777 == 0o600
    members = unpacked(file)
    assert list(members)[-1] == "manifest.json" and "token" not in members
    assert sum(name.startswith("artifacts/") for name in members) == 2
    for name, one in json.loads(members["manifest.json"])["files"].items():
        assert hashlib.sha256(members[name]).hexdigest() == one["sha256"]

    back = schema(reef(again, "restore", str(file), "--json"), "restore")
    assert back["moved_to"] is None
    assert digests(again) == digests(chain)
    assert again.stat().st_mode & 0o777 == 0o700 and (again / "reef.db").stat().st_mode & 0o777 == 0o600
    left = {path.relative_to(again): path.read_bytes() for path in (again / "artifacts").rglob("*.bin")}
    assert left == {path.relative_to(chain): path.read_bytes() for path in (chain / "artifacts").rglob("*.bin")}
    settings = {"reef_upstream_url": "http://127.0.0.1:9", "reef_recipe": STUB, "reef_batch_size": "1"}
    with daemon(again, **settings) as one, one.client() as client:
        shown = client.get("/reef/scenarios/s")
        assert (shown["release_id"], shown["step"]) == ("r2", 2)
        assert client.record("i1")["consumed_by"] == {"step": 1, "release_id": "r1"}


def test_the_token_only_comes_along_when_asked_for(chain: Path, tmp_path: Path) -> None:
    token = (chain / "token").read_bytes()
    said = reef(chain, "backup", str(tmp_path / "a.tar.zst"))
    assert said.code == 0 and "prompts and answers" in said.err
    schema(reef(chain, "backup", str(tmp_path / "b.tar.zst"), "--with-token", "--json"), "backup")
    reef(tmp_path / "a", "restore", str(tmp_path / "a.tar.zst"))
    reef(tmp_path / "b", "restore", str(tmp_path / "b.tar.zst"))
    assert not (tmp_path / "a" / "token").exists()
    assert (tmp_path / "b" / "token").read_bytes() == token
    assert not any(token.strip() in data for data in unpacked(tmp_path / "a.tar.zst").values())


def test_what_is_there_is_refused_or_moved_aside_and_never_deleted(chain: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "b.tar.zst", tmp_path / "other"
    schema(reef(chain, "backup", str(file), "--json"), "backup")
    refused(reef(chain, "backup", str(file)), 1, "exists")
    refused(reef(tmp_path / "nothing", "backup", str(tmp_path / "c.tar.zst")), 4, "no database")
    refused(reef(chain, "backup", str(tmp_path / "none" / "b.tar.zst")), 4, "no directory")
    other.mkdir()
    (other / "mine.txt").write_text("keep me")
    refused(reef(other, "restore", str(file)), 1, "is not empty", "--force")
    back = schema(reef(other, "restore", str(file), "--force", "--json"), "restore")
    assert (Path(back["moved_to"]) / "mine.txt").read_text() == "keep me"
    assert digests(other) == digests(chain)
    with provider(Script()) as upstream, daemon(other, reef_upstream_url=upstream.url):
        refused(reef(other, "restore", str(file), "--force"), 1, "a daemon runs on", "reef down")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda raw, members: raw[: len(raw) // 2], "no sound backup: it is damaged, or was cut short"),
        (lambda raw, members: b"not a backup at all", "no sound backup: it is no tar that was compressed with zstd"),
        (lambda raw, members: b"", "no sound backup: it is empty"),
        (lambda raw, members: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:], "no sound backup: it is damaged"),
        (lambda raw, members: members | {"reef.db": members["reef.db"][:-4096] + bytes(4096)}, "reef.db"),
        (lambda raw, members: {k: v for k, v in members.items() if k != "manifest.json"}, "no manifest"),
        (lambda raw, members: {"../evil": b"x"} | members, "does not belong"),
        (lambda raw, members: {"artifacts/../../evil": b"x"} | members, "does not belong"),
        (lambda raw, members: {"/etc/evil": b"x"} | members, "does not belong"),
        (lambda raw, members: members | {"manifest.json": newer(members, format=99)}, "cannot read"),
        (lambda raw, members: members | {"manifest.json": newer(members, schema_version=99)}, "cannot read"),
        (lambda raw, members: members | {"manifest.json": newer(members, files=None)}, "manifest says"),
        (lambda raw, members: {k: v for k, v in members.items() if not k.startswith("art")}, "manifest says"),
    ],
)  # fmt: skip
def test_what_is_no_sound_backup_changes_nothing(chain: Path, tmp_path: Path, spoil: Any, said: str) -> None:
    file, again = tmp_path / "b.tar.zst", tmp_path / "again"
    reef(chain, "backup", str(file))
    spoilt = spoil(file.read_bytes(), unpacked(file))
    if isinstance(spoilt, bytes):
        file.write_bytes(spoilt)
    else:
        packed(file, spoilt)
    refused(reef(again, "restore", str(file)), 2, said)
    assert not again.exists() and not (tmp_path / "evil").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_retention_removes_meanwhile_is_left_out(chain: Path, tmp_path: Path) -> None:
    folders = sorted((chain / "artifacts").iterdir())

    def progress(stage: str, done: int, total: int | None) -> None:
        if stage == "packing" and folders[0].exists():
            shutil.rmtree(folders[0])

    made = backup(chain, tmp_path / "b.tar.zst", with_token=False, progress=progress)
    members = unpacked(tmp_path / "b.tar.zst")
    assert made["files"].keys() | {"manifest.json"} == members.keys()
    assert {name.split("/")[1] for name in members if name.startswith("artifacts/")} == {folders[1].name}


def test_a_directory_that_never_rests_makes_no_backup(chain: Path, tmp_path: Path) -> None:
    folder = next((chain / "artifacts").iterdir())

    def progress(stage: str, done: int, total: int | None) -> None:
        if stage == "database":
            (folder / "odd").touch()
        elif stage == "packing":
            (folder / "odd").unlink(missing_ok=True)

    (folder / "odd").touch()
    with pytest.raises(ReefError, match="went away"):
        backup(chain, tmp_path / "b.tar.zst", with_token=False, progress=progress)
    assert not (tmp_path / "b.tar.zst").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def newer(members: dict[str, bytes], **changed: Any) -> bytes:
    return json.dumps(json.loads(members["manifest.json"]) | changed).encode()


def test_a_damaged_database_makes_no_backup(chain: Path, tmp_path: Path) -> None:
    raw = bytearray((chain / "reef.db").read_bytes())
    raw[4096 * 3 : 4096 * 5] = os.urandom(4096 * 2)
    (chain / "reef.db").write_bytes(raw)
    refused(reef(chain, "backup", str(tmp_path / "b.tar.zst")), 1, "damaged", "reef doctor")
    assert not (tmp_path / "b.tar.zst").exists()


@pytest.mark.slow
def test_the_restored_head_answers_with_the_same_weights(tiny_model: Path, tmp_path: Path) -> None:
    settings = {"reef_model_path": str(tiny_model), "reef_recipe": "pg", "reef_batch_size": "4"}
    with daemon(tmp_path / "home", **settings) as one, one.client() as client:
        learned = learn(client, "r1")
        schema(reef(one.home, "backup", str(tmp_path / "b.tar.zst"), "--json"), "backup")
    schema(reef(tmp_path / "again", "restore", str(tmp_path / "b.tar.zst"), "--json"), "restore")
    with daemon(tmp_path / "again", **settings) as one, one.client() as client:
        again = probe(client)
    assert again == learned


def test_what_a_killed_backup_left_goes_with_the_next(chain: Path, tmp_path: Path) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", STALLED, str(chain), str(tmp_path / "a.tar.zst")], stdout=subprocess.PIPE
    )
    assert killed.stdout is not None
    killed.stdout.readline()  # it has begun
    refused(reef(chain, "backup", str(tmp_path / "a.tar.zst")), 1, "under way")
    schema(reef(chain, "backup", str(tmp_path / "b.tar.zst"), "--json"), "backup")
    (left,) = [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    killed.kill()
    killed.communicate()
    found = schema(reef(chain, "doctor", "--json"), "doctor")["doctor"]
    assert str(left) in next(one for one in found if one["id"] == "leftovers")["message"]
    schema(reef(chain, "backup", str(tmp_path / "c.tar.zst"), "--json"), "backup")
    assert not left.exists() and not (tmp_path / "a.tar.zst").exists()
    left.mkdir()
    reef(chain, "doctor", "--fix")
    assert not left.exists()
    schema(reef(chain, "backup", str(tmp_path / "a.tar.zst"), "--json"), "backup")


STALLED = """
import sys, time
from pathlib import Path
from reef.daemon.backup import backup

def progress(stage, done, total):
    print(stage, flush=True)
    time.sleep(600)

backup(Path(sys.argv[1]), Path(sys.argv[2]), with_token=False, progress=progress)
"""
