"""reef service: the file it writes is one that systemd takes and that starts the daemon; nothing is started by itself."""

from __future__ import annotations

import configparser
import plistlib
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from reef.cli import service
from reef.inference.testing import Script
from tests.cli.test_cli import reef, refused, schema
from tests.support import WAIT_S, Daemon, provider

URL = ("--upstream-url", "http://127.0.0.1:9/v1")


def unit(text: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    return parsed


@pytest.mark.skipif(service._launchd(), reason="a systemd unit is for Linux")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    config = tmp_path / "serve.yaml"
    config.write_text("reef:\n  port: 0\n")
    shown = reef(home, "service", "install", "-c", str(config), *URL, "--training.seed=7", "--print")
    assert shown.code == 0 and not home.exists()
    found = unit(shown.out)["Service"]
    words = shlex.split(found["ExecStart"])
    assert words[1:4] == ["-m", "reef.cli.main", "serve"] and Path(words[0]).is_file()
    assert words[4:] == ["--home", str(home), "-c", str(config), f"--reef.upstream_url={URL[1]}", "--training.seed=7"]
    assert (found["Type"], found["UMask"], found["NoNewPrivileges"]) == ("notify", "0077", "yes")
    if shutil.which("systemd-analyze"):
        path = tmp_path / "reef.service"
        path.write_text(shown.out)
        ran = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
        assert ran.returncode == 0 and "reef.service:" not in ran.stderr, ran.stderr


@pytest.mark.skipif(service._launchd(), reason="a systemd unit is for Linux")
def test_install_status_uninstall(tmp_path: Path) -> None:
    home, config = tmp_path / "home", {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}
    path = tmp_path / "config" / "systemd" / "user" / "reef.service"
    refused(reef(home, "service", "uninstall", **config), 4, "there is no", "reef service install")
    assert schema(reef(home, "service", "status", "--json", **config), "service")["installed"] is False
    made = reef(home, "service", "install", *URL, **config)
    assert made.code == 0 and path.is_file() and "systemctl --user enable --now reef" in made.err
    assert not (home / "reef.db").exists(), "nothing is started"
    again = schema(reef(home, "service", "install", *URL, "--json", **config), "service")
    assert again["changed"] is False
    refused(reef(home, "service", "install", *URL, "--port", "8999", **config), 2, "replace", "--yes")
    assert reef(home, "service", "install", *URL, "--port", "8999", "--yes", **config).code == 0
    found = schema(reef(home, "service", "status", "--json", **config), "service")
    assert found["installed"] and found["starts"].endswith("--reef.port=8999")
    gone = reef(home, "service", "uninstall", **config)
    assert gone.code == 0 and not path.exists() and "disable --now reef" in gone.err
    path.write_text("[Service]\nExecStart=/bin/true\n")
    refused(reef(home, "service", "install", *URL, "--yes", **config), 1, "is not of Reef", "--name")
    refused(reef(home, "service", "uninstall", **config), 1, "is not of Reef")
    assert path.exists()


def test_what_does_not_belong_into_a_unit_is_refused(tmp_path: Path) -> None:
    for words, said in (
        (("--upstream-api-key", "sk-1"), "service.env"),
        (("--reef.prot", "1"), "did you mean reef.port?"),
        (("--name", "../x"), "no name of a unit"),
        (("-c", str(tmp_path / "none.yaml")), "there is no file"),
    ):
        ran = reef(tmp_path, "service", "install", *URL, *words, "--print")
        assert ran.code in (2, 4) and ran.out == "" and said in ran.err and "sk-1" not in ran.err


def test_the_launchd_agent_is_a_property_list(tmp_path: Path) -> None:
    found = plistlib.loads(service._plist("reef", tmp_path / "a home", ["python", "-m", "x"]).encode())
    assert found["Label"] == "dev.reef" and found["ProgramArguments"][:2] == ["/bin/sh", "-c"]
    assert found["ProgramArguments"][2].endswith("exec python -m x") and f"'{tmp_path}/a home/" in str(found)


def test_the_daemon_says_that_it_is_ready_and_that_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "notify"
    with provider(Script()) as upstream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(address))
        sock.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        one = Daemon(tmp_path / "home", {"reef.upstream_url": upstream.url})
        one.start()
        try:
            assert sock.recv(1000).decode() == f"READY=1\nSTATUS=ready at {one.url}"
        finally:
            one.stop()
        assert sock.recv(1000) == b"STOPPING=1"
