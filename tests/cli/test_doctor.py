"""reef doctor: each finding with its words and its way out, and what --fix does about the safe ones."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from reef.inference.testing import Script
from tests.cli.test_cli import reef, refused
from tests.support import daemon, provider


def doctor(home: Path, *words: str, code: int = 0, **environ: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The checks by id, and what was done."""
    ran = reef(home, "doctor", "--json", *words, **environ)
    assert ran.code == code, ran.out + ran.err
    assert ran.document["schema"] == "reef.doctor/1"
    for check in ran.document["doctor"]:
        assert check["ok"] == (check["state"] == "ok") and check["message"]
        assert check["ok"] or check["fix"], check
    return {check["id"]: check for check in ran.document["doctor"]}, ran.document["fixed"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state directory that a daemon has left in order."""
    folder = tmp_path / "home"
    with daemon(folder, reef_upstream_url="http://127.0.0.1:9"):
        pass
    return folder


def test_a_home_in_order(home: Path) -> None:
    with provider(Script()) as upstream:
        checks, done = doctor(home, REEF_UPSTREAM_URL=upstream.url, REEF_PORT="0")
    assert "takes connections" in checks["upstream"]["message"]
    bad = {name for name, check in checks.items() if not check["ok"]}
    assert bad <= {"daemon", "disk", "fsync"} and done == []
    assert ("fix" if sqlite3.sqlite_version_info >= (3, 51, 3) else "the guard applies") in checks["sqlite"]["message"]
    assert "ms" in checks["fsync"]["message"] and not (home / ".doctor").exists()
    assert "sound" in checks["database"]["message"]
    said = reef(home, "doctor")
    assert said.code == 0 and "try: reef up" in said.out


def test_a_key_that_would_stop_the_start(home: Path) -> None:
    file = home / "serve.yaml"
    file.write_text("reef:\n  recipe: pg\n  batchsize: 3\n")
    check = doctor(home, "-c", str(file), code=1)[0]["config"]
    assert "unknown key reef.batchsize" in check["message"] and "reef.batch_size" in check["fix"]
    file.write_text("reef:\n  batch_size: 3\n")  # of the recipe that reef up would pick
    assert doctor(home, "-c", str(file))[0]["config"]["message"].startswith("1 set")
    shown = reef(home, "config", "show", "-c", str(file), "--json").document
    assert (shown["reef.recipe"]["value"], shown["reef.recipe"]["origin"]) == ("pg", "reef up")
    assert (shown["reef.batch_size"]["value"], shown["reef.batch_size"]["origin"]) == (3, "serve.yaml:2")


def test_what_the_daemon_makes_is_for_its_owner(tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = os.umask(0o022)
    try:
        with provider(Script()) as upstream, daemon(home, reef_upstream_url=upstream.url, reef_recipe="harness") as one:
            with one.client("s") as client:
                client.post("/reef/scenarios", {"name": "s"})
            assert doctor(home, REEF_UPSTREAM_URL=upstream.url)[0]["permissions"]["ok"]
    finally:
        os.umask(before)
    assert not [path for path in home.rglob("*") if path.stat().st_mode & 0o077]


def test_a_daemon_that_runs(home: Path) -> None:
    with provider(Script()) as upstream, daemon(home, reef_upstream_url=upstream.url) as one:
        port = one.url.rpartition(":")[2]
        checks, _ = doctor(home, REEF_PORT=port, HTTP_PROXY="http://127.0.0.1:9")
        assert checks["daemon"]["ok"] and one.url in checks["daemon"]["message"]
        assert checks["port"]["ok"] and "daemon of this directory" in checks["port"]["message"]
        assert reef(home, "status", HTTP_PROXY="http://127.0.0.1:9", ALL_PROXY="http://127.0.0.1:9").code == 0


def test_what_a_killed_daemon_left_behind_is_removed(home: Path) -> None:
    with daemon(home, reef_upstream_url="http://127.0.0.1:9") as one:
        one.kill()
    checks, _ = doctor(home)
    assert checks["daemon"]["state"] == "warning" and checks["daemon"]["fixable"]
    assert (home / "daemon.json").exists()
    checks, done = doctor(home, "--fix")
    assert [one["id"] for one in done] == ["daemon"] and not (home / "daemon.json").exists()
    assert checks["daemon"]["fix"] == "reef up" and not checks["daemon"]["fixable"]


def test_the_address_of_a_daemon_that_runs_stays(home: Path) -> None:
    with daemon(home, reef_upstream_url="http://127.0.0.1:9"):
        _, done = doctor(home, "--fix")
        assert done == [] and (home / "daemon.json").exists()


def test_permissions_are_mended(home: Path) -> None:
    home.chmod(0o755)
    (home / "token").chmod(0o644)
    checks, _ = doctor(home)
    assert "token 644" in checks["permissions"]["message"] and checks["permissions"]["fixable"]
    said = reef(home, "doctor", "--fix")
    assert "mending permissions: chmod" in said.err
    assert home.stat().st_mode & 0o777 == 0o700 and (home / "token").stat().st_mode & 0o777 == 0o600
    assert doctor(home)[0]["permissions"]["ok"]


def test_a_log_that_has_grown_is_cut_and_its_end_stays(home: Path) -> None:
    path = home / "logs" / "engine.log"
    with path.open("wb") as file:
        file.truncate(80 * 2**20)
    with path.open("ab") as writing:
        writing.write(b"\nthe last line\n")
        writing.flush()
        assert "engine.log" in doctor(home)[0]["logs"]["message"]
        doctor(home, "--fix")
        writing.write(b"written by who kept it open\n")
    assert path.stat().st_size < 2 * 2**20
    assert path.read_bytes().endswith(b"the last line\nwritten by who kept it open\n")
    assert doctor(home)[0]["logs"]["ok"]


def test_a_damaged_database_is_an_error_and_stays_as_it_is(home: Path) -> None:
    raw = bytearray((home / "reef.db").read_bytes())
    raw[4096:12288] = os.urandom(8192)
    (home / "reef.db").write_bytes(raw)
    checks, done = doctor(home, "--fix", code=1)
    assert checks["database"]["state"] == "error" and "reef restore" in checks["database"]["fix"]
    assert done == [] and (home / "reef.db").read_bytes() == raw


def test_who_has_the_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        checks, _ = doctor(tmp_path, REEF_PORT=str(port))
    assert checks["port"]["state"] == "warning" and "--port 0" in checks["port"]["fix"]
    if Path("/proc/net/tcp").exists():
        assert f"pid {os.getpid()}" in checks["port"]["message"]


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({"HTTP_PROXY": "http://127.0.0.1:9"}, "warning"),
        ({"ALL_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": "example.com"}, "warning"),
        ({"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1, localhost"}, "ok"),
        ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "*"}, "ok"),
    ],
)
def test_proxies_that_are_set_for_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], state: str
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    checks, _ = doctor(tmp_path, **environ)
    assert checks["proxy"]["state"] == state
    assert state == "ok" or "NO_PROXY" in checks["proxy"]["fix"]


def test_files_from_the_future_are_seen(home: Path) -> None:
    ahead = time.time() + 7200
    os.utime(home / "token", (ahead, ahead))
    checks, _ = doctor(home)
    assert checks["clock"]["state"] == "warning" and "ahead" in checks["clock"]["message"]


def test_a_configuration_that_would_not_start(tmp_path: Path) -> None:
    checks, _ = doctor(tmp_path, code=1, REEF_PORT="soon")
    assert checks["config"]["state"] == "error" and "whole number" in checks["config"]["message"]
    (tmp_path / "serve.yaml").write_text("reef:\n  port: 1\n  port: 2\n")
    checks, _ = doctor(tmp_path, "-c", str(tmp_path / "serve.yaml"), code=1)
    assert "serve.yaml:3" in checks["config"]["message"]


def test_a_home_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    checks, _ = doctor(tmp_path / "file", code=1)
    assert checks["home"]["state"] == "error" and "--home" in checks["home"]["fix"]
    refused(reef(tmp_path, "doctor", "--fxi"), 2, "No such option")
    assert json.loads(reef(tmp_path, "doctor", "--json").out)["doctor"]


def test_a_home_that_is_a_link_to_nothing_is_told_as_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.symlink_to(tmp_path / "gone")
    assert "a link to" in doctor(home, code=1)[0]["home"]["message"]
    ran = reef(home, "up", "--upstream-url", "http://127.0.0.1:9", "--port", "0")
    assert ran.code == 1 and f"{home}: a link to {tmp_path / 'gone'}, which is not there" in ran.err
