"""What a command says when it cannot go on: hints that can be typed as they are, one shape of errors, interrupts."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reef.inference.testing import Script
from tests.cli.test_cli import Ran, reef, refused, schema
from tests.faults.world import ROOT
from tests.support import daemon, provider

COMMAND = re.compile(
    r"\breef (?:scenarios new|records show|up|down|status|logs|records|releases|scenarios|call|doctor)\b"
)


def commands(ran: Ran) -> list[str]:
    """The commands that are named in hints, each with what follows it."""
    said = ran.out + ran.err
    if said.startswith("{"):
        found = json.loads(said)
        hints = [one["fix"] for one in found["doctor"]] if "doctor" in found else [found["error"]["hint"]]
    else:
        hints = [line for line in said.splitlines() if re.match(r" *(try|next):|no scenario|there is no", line)]
    text = "\n".join(hints)
    starts = [found.start() for found in COMMAND.finditer(text)]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=False)]


@pytest.mark.parametrize(
    "words",
    [
        ("status",), ("records",), ("records", "list"), ("records", "show", "x"), ("logs",), ("call", "hello"), ("scenarios",),
        ("releases", "show", "r1", "-s", "s"), ("rollback", "--yes"), ("export",), ("doctor",), ("status", "--json"),
        ("doctor", "--json"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_hints_name_the_home_that_was_given(tmp_path: Path, words: tuple[str, ...]) -> None:
    other = tmp_path / "another one"
    ran = reef(tmp_path / "home", *words, "--home", str(other))
    said = commands(ran)
    assert said and all(f"--home '{other}'" in one for one in said), said
    assert str(other) in ran.out + ran.err
    same = reef(other, *words, "--home", str(other))
    assert not any("--home" in one for one in commands(same)), "the environment says the same"


def test_hints_of_a_daemon_name_its_home(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    with provider(Script()) as upstream:
        words = ("up", "--port", "0", "--upstream-url", upstream.url, "--home", str(home))
        try:
            up = reef(elsewhere, *words)
            assert up.code == 0
            shown = [
                up,
                *(reef(elsewhere, *words, "--home", str(home)) for words in (("status",), ("records", "-s", "x"))),
            ]
            for ran in shown:
                assert (said := commands(ran)) and all(f"--home {home}" in one for one in said), said
        finally:
            assert schema(reef(home, "down", "--json"), "down")["stopped"]


def test_up_names_what_comes_next_with_its_recipe(tmp_path: Path) -> None:
    words = ("up", "--port", "0", "--upstream-url", "http://127.0.0.1:9")
    try:
        assert "next: reef harness install pi" in reef(tmp_path, *words, "--recipe", "harness").err
        other = reef(tmp_path, *words, "--recipe", "record")
        refused(other, 1, "reef.recipe is record, it runs with harness", "reef down, then this command once more")
        assert 'next: reef call "hello"' in (reef(tmp_path, "down") and reef(tmp_path, *words)).err
    finally:
        assert reef(tmp_path, "down").code == 0


def test_what_a_recipe_lacks_is_said_before_a_question_about_a_download(tmp_path: Path) -> None:
    ran = reef(tmp_path, "up", "--recipe", "evolve", XDG_CACHE_HOME=str(tmp_path / "cache"))
    refused(ran, 2, "needs tasks", "--reef.tasks FOLDER")
    assert "embedded model" not in ran.err and not (tmp_path / "reef.db").exists()


def test_a_relative_home_is_told_in_full_and_a_groups_home_is_its_commands(tmp_path: Path) -> None:
    ran = reef(tmp_path, "records", "--home", "some/../where", "show", "x")
    refused(ran, 3, f"no daemon runs on {Path.cwd() / 'where'}", f"reef up --home {Path.cwd() / 'where'}")
    refused(
        reef(tmp_path, "records", "-s", "s", "list"), 2, "--scenario stands before list", "reef records list --scenario"
    )


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("recrods",), "No such command 'recrods'", "did you mean records?"),
        (("records", "shw", "x"), "No such command 'shw'", "did you mean show?"),
        (("report", "x", "--scroe", "1"), "No such option: --scroe", "did you mean --score?"),
        (
            ("--home", "x", "status"),
            "No such option: --home",
            "it stands behind the command, as in: reef status --home",
        ),
        (("call",), "Missing argument", "reef call --help"),
        (("records", "-n", "0"), "Invalid value for '-n'", "reef records --help"),
        (("up", "--upstream-ulr", "x"), "unknown argument '--upstream-ulr'", "did you mean --upstream-url?"),
        (("report", "x", "--feedback", " "), "--feedback is empty", "leave --feedback out"),
        (("logs", "--level", "loud"), "no level 'loud'", "warning"),
    ],
)
def test_usage_errors_guess_and_obey_json(tmp_path: Path, words: tuple[str, ...], said: str, hint: str) -> None:
    refused(reef(tmp_path, *words), 2, f"error: {said}", f"  try: {hint}" if "did" in hint else hint)
    ran = reef(tmp_path, *words, "--json")
    assert (ran.code, ran.out) == (2, "")
    found = json.loads(ran.err)
    assert found["schema"] == "reef.error/1"
    error = found["error"]
    assert set(error) - {"field"} == {"code", "message", "hint"}
    assert said in error["message"] and hint in error["hint"]


@pytest.mark.parametrize("group", [(), ("gate",), ("config",), ("harness",)], ids=" ".join)
def test_a_group_without_a_command_shows_its_help_once(tmp_path: Path, group: tuple[str, ...]) -> None:
    ran = reef(tmp_path, *group)
    assert ran.code == 2 and (ran.out + ran.err).count("Usage: ") == 1 and "error" not in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("import", "missing.jsonl"), "missing.jsonl"),
        (("restore", "missing.tar.zst"), "missing.tar.zst"),
        (("up", "-c", "missing.yaml"), "missing.yaml"),
        (("config", "show", "-c", "missing.yaml"), "missing.yaml"),
        (("backup", "new.tar.zst"), "there is no database in"),
        (("logs",), "there is no log at"),
        (("verify", "--loops", "0"), "there is no state directory at"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_is_named_and_not_there_is_four(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    home = tmp_path / "home"
    refused(reef(home, *words), 4, said, "try: ")
    assert not home.exists()


def test_a_killed_daemon_is_told_as_one_and_a_wrong_token_is_explained(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one:
        token = (tmp_path / "token").read_text()
        (tmp_path / "token").write_text("another\n")
        refused(reef(tmp_path, "status"), 1, "another token than the one in", "reef down, then: reef up")
        (tmp_path / "token").write_text(token)
        one.kill()
        refused(reef(tmp_path, "status"), 3, "was killed", "try: start it with: reef up")


# -- interrupts

_WHILE_LOADING = """
import builtins, os, signal, sys
from reef.cli.main import main
load = builtins.__import__
def interrupted(name, *more):
    if name == "typer":
        os.kill(os.getpid(), signal.SIGINT)
    return load(name, *more)
builtins.__import__ = interrupted
main()
"""


def test_an_interrupt_while_it_loads_is_one_line() -> None:
    command = [sys.executable, "-c", _WHILE_LOADING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    "words", [("status",), ("status", "--json"), ("records", "show", "x"), ("export",)], ids=" ".join
)
def test_an_interrupted_command_says_so_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "daemon.json").write_text(json.dumps({"url": url, "pid": os.getpid(), "state": "ready"}))
        (tmp_path / "token").write_text("t")
        command = [sys.executable, "-m", "reef.cli.main", *words, "--home", str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        connection, _ = silent.accept()  # it waits for an answer now
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        connection.close()
    assert (child.returncode, out) == (130, "")
    if "--json" in words:
        assert json.loads(err)["error"]["code"] == "interrupted"
    else:
        assert err == "interrupted\n"


def test_an_interrupt_at_a_question_is_no_answer(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with provider(Script()) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url, reef_recipe="harness") as one:
        with one.client("s") as client:
            client.post("/reef/scenarios", {"name": "s"})
        command = [sys.executable, "-m", "reef.cli.main", "rollback", "r0", "-s", "s", "--home", str(tmp_path)]
        child = subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True)
        assert child.stderr is not None
        asked = child.stderr.read(len("serve r0 of s"))
        child.send_signal(signal.SIGINT)
        said = asked + child.stderr.read()
        child.stderr.close()
    os.close(ours)
    os.close(theirs)
    assert child.wait(60) == 130 and said.endswith(b"interrupted\n") and b"error" not in said


# -- terminals


def on_terminal(home: Path, *words: str, columns: int, saw: Callable[[bytes], object] = bytes, **environ: str) -> str:
    """What ``reef WORDS`` writes to a terminal of that width; ``saw`` is told all so far with each piece."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "REEF_HOME": str(home), "COLUMNS": str(columns), "TERM": "xterm-256color", **environ}
    command = [sys.executable, "-m", "reef.cli.main", *words]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environ)
    os.close(theirs)
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        said += piece
        saw(said)
    os.close(ours)
    assert child.wait(60) in (0, 3)
    return said.decode()


def test_a_narrow_terminal_hides_nothing(tmp_path: Path) -> None:
    with provider(Script()) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url) as one:
        with one.client("s") as client:
            client.report(score=0.25, references=["r" * 32], agent_record_id="i" * 32)
        for columns in (40, 50, 80, 120):
            said = on_terminal(tmp_path, "records", columns=columns, NO_COLOR="1")
            for words in ("i" * 32, "report", "parked", "record_only", "release"):
                assert words in said, (columns, said)
            assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines())) <= columns


def test_no_color_takes_colours_away_and_may_leave_weight(tmp_path: Path) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*?(?:3[0-8]|4[0-8]|9[0-7])[;m]")
    assert colour.search(on_terminal(tmp_path, "status", columns=80))
    assert not colour.search(on_terminal(tmp_path, "status", columns=80, NO_COLOR="1"))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    odd = "\udcff"  # what a byte that is no UTF-8 becomes on its way in
    with provider(Script()) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url, reef_upstream_model="m"):
        for words in (
            ("call", odd), ("call", "hi", "--session", odd), ("call", "hi", "--model", odd), ("records", "show", odd),
            ("scenarios", "show", odd), ("export", "-s", odd), ("records", "-s", "s", "--session", odd),
            ("report", odd, "--score", "1", "-s", "s"), ("report", "x", "--feedback", odd, "-s", "s"),
        ):  # fmt: skip
            ran = reef(tmp_path, *words)
            refused(ran, 2, "error: ", "UTF-8")
            assert "bug" not in ran.err, (words, ran.err)
        assert reef(tmp_path, "records", "show", "..").code == 4
