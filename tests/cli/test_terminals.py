"""Every command that reads, wherever it is started: odd terminals, closed streams, a HOME that takes nothing; and --json.

One process runs them all under one circumstance; what only a process can show (a pipe that closes, a pager) has its own.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import answers
from tests.contract.test_commands import LEAVES
from tests.faults.world import ROOT
from tests.support import Daemon, daemon, provider

READS: dict[str, tuple[str, ...]] = {
    "status": (), "logs": (), "service status": (), "doctor": (), "records list": (), "records tail": (),
    "records show": ("RECEIPT",), "scenarios list": (), "scenarios show": ("default",), "releases list": (),
    "releases show": ("r0",), "releases diff": ("r0",), "why": ("r0",), "gate show": ("r0",), "gate replay": ("r0",),
    "gate plan": ("--pairs", "20"), "gate simulate": ("--runs", "5"), "recipe list": (), "recipe show": ("grpo",),
    "harness adapters": (), "harness status": ("pi",), "harness diff": ("pi",), "harness versions": ("pi",), "knob list": (),
    "config show": (), "config keys": (), "config explain": ("reef.port",), "completion": ("bash",), "verify": ("--loops", "0"),
    "export": (), "records export": (), "harness tasks": ("examples/harness_evolve/tasks", "--sandbox", "none"),
}  # fmt: skip
ACTS = {
    "demo", "up", "down", "tui", "serve", "service install", "service uninstall", "call", "report", "train", "scenarios new",
    "import", "releases rollback", "releases promote", "releases reject", "rollback", "promote", "reject", "step", "pause",
    "resume", "recipe new", "recipe check", "recipe bench", "harness install", "harness update", "harness uninstall",
    "harness rollback", "harness report", "harness ask", "agent", "mcp", "wrap", "unwrap", "knob set", "knob reset",
    "config edit", "model pull", "backup", "restore",
}  # fmt: skip
FAILS = {"gate show": 2, "gate replay": 2, "harness status": 4, "harness diff": 4, "harness versions": 4}
"""What cannot be answered in this world: nothing was judged, no agent is installed."""
LINES = {"logs", "records tail"}
FILES = {"export", "records export"}
"""Lines or a file: --json is about the file."""
SLOW = {"harness tasks", "doctor", "verify", "gate plan", "gate simulate"}
"""Seconds of work, and no other way to write: only their --json is tried."""

_RUNNER = """
import io, json, os, sys, traceback
from reef.cli.app import run
found = []
for words in json.loads(os.environ["WORDS"]):
    sys.argv = ["reef", *words]
    try:
        found.append([words, run(), ""])
    except BaseException as error:
        found.append([words, None, "".join(traceback.format_exception(error))[-1500:]])
with open(os.environ["FOUND"], "w") as file:
    json.dump(found, file)
os._exit(0)
"""


def test_every_command_either_reads_or_acts() -> None:
    """A new command must say which: what reads is tried below."""
    assert set(READS) | ACTS == set(LEAVES), (set(READS) | ACTS) ^ set(LEAVES)
    assert not set(READS) & ACTS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, str]]:
    """A daemon with some calls and a release, and a receipt."""
    home = tmp_path_factory.mktemp("terminals")
    with provider(answers.chat_plain(tools=False)) as upstream:
        settings = {"reef_upstream_url": upstream.url, "reef_upstream_model": "m-1", "reef_recipe": "harness"}
        with daemon(home, **settings) as one, one.client("default") as client:
            for number in range(30):
                body = {"model": "m-1", "messages": [{"role": "user", "content": f"größer {number} 日本"}]}
                receipt = client.call(body).headers["x-reef-agent-record-id"]
            client.report(score=0.5, feedback="naïve \x1b[31m", references=[receipt])
            yield one, receipt


def typed(names: Any, receipt: str, *more: str) -> list[list[str]]:
    tasks = str(ROOT / "examples")
    return [
        [*name.split(), *(word.replace("RECEIPT", receipt).replace("examples", tasks) for word in READS[name]), *more]
        for name in names
    ]


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    return {**kept, "PYTHONPATH": str(ROOT), "REEF_HOME": str(home), "REEF_TRACE": "1", "NO_PAGER": "1", **more}


def all_of(
    world: tuple[Daemon, str], tmp_path: Path, shell: str = "", cwd: Path = ROOT, terminal: bool = False, **more: str
) -> str:
    """Run every read under a circumstance; returns what all of them wrote, and fails where one has a bug."""
    one, receipt = world
    names = [name for name in READS if name not in SLOW]
    found, words = tmp_path / "found.json", json.dumps(typed(names, receipt))
    environ = environment(one.home, FOUND=str(found), WORDS=words, XDG_CONFIG_HOME=str(tmp_path / "config"), **more)
    runner = tmp_path / "runner.py"
    runner.write_text(_RUNNER)
    command = ["sh", "-c", f'exec "$0" "$1" {shell}', sys.executable, str(runner)]
    said = in_terminal(command, environ, cwd) if terminal else piped(command, environ, cwd)
    rows = json.loads(found.read_text())
    assert len(rows) == len(names)
    for name, (typed_words, code, trace) in zip(names, rows, strict=True):
        assert not trace, (typed_words, trace)
        assert code == FAILS.get(name, 0), (typed_words, code, said[-2000:])
    assert "Traceback" not in said and "reef has a bug" not in said
    return said


def piped(command: list[str], environ: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(command, capture_output=True, env=environ, cwd=cwd, timeout=120, check=False)
    return (done.stdout + done.stderr).decode()


def in_terminal(command: list[str], environ: dict[str, str], cwd: Path, keys: bytes = b"") -> str:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=cwd)
    os.close(theirs)
    os.write(ours, keys)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    child.wait(60)
    return b"".join(pieces).decode(errors="replace")


@pytest.mark.parametrize(
    ("shell", "environ"),
    [
        ("", {}),
        ("", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        ("", {"COLUMNS": "12", "LINES": "3"}),
        ("", {"HOME": "/dev/null/none", "XDG_CACHE_HOME": "/dev/null/none"}),
        ("<&-", {}),
        (">&-", {}),
        ("2>&-", {}),
        ("<&- >&- 2>&-", {}),
    ],
    ids=["pipe", "LC_ALL=C", "COLUMNS=12", "HOME", "stdin", "stdout", "stderr", "no stream"],
)
def test_reads_with_a_pipe(world: tuple[Daemon, str], tmp_path: Path, shell: str, environ: dict[str, str]) -> None:
    said = all_of(world, tmp_path, shell, **environ)
    assert "\x1b" not in said.replace("\\u001b", ""), "no colours and no bars where nobody sees them"


def test_reads_in_a_directory_that_takes_nothing(world: tuple[Daemon, str], tmp_path: Path) -> None:
    all_of(world, tmp_path, cwd=Path("/proc"))


COLOUR = re.compile(r"\x1b\[[0-9;]*?(?:3[0-8]|4[0-8]|9[0-7])[;m]")


@pytest.mark.parametrize(
    "environ",
    [{"TERM": "dumb"}, {"NO_COLOR": "1", "TERM": "xterm"}, {"COLUMNS": "12", "TERM": "xterm"}],
    ids=["dumb", "NO_COLOR", "narrow"],
)
def test_reads_on_a_terminal(world: tuple[Daemon, str], tmp_path: Path, environ: dict[str, str]) -> None:
    said = all_of(world, tmp_path, terminal=True, **environ)
    if "COLUMNS" not in environ:
        assert not COLOUR.search(said)


def test_every_read_has_one_document_with_its_schema(world: tuple[Daemon, str], tmp_path: Path) -> None:
    one, receipt = world
    names = [name for name in READS if name not in FAILS and name not in FILES]
    code = _RUNNER.replace("found.append([words, run(), \"\"])", "sys.stdout = io.StringIO(); code = run(); "
                           "found.append([words, code, sys.stdout.getvalue()])")  # fmt: skip
    found = tmp_path / "found.json"
    words = json.dumps(typed(names, receipt, "--json"))
    environ = environment(one.home, FOUND=str(found), WORDS=words, XDG_CONFIG_HOME=str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, cwd=ROOT, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for name, (typed_words, code_of_it, text) in zip(names, json.loads(found.read_text()), strict=True):
        assert code_of_it in (0, 1), (typed_words, text)
        if name in LINES:
            assert all(isinstance(json.loads(line), dict) for line in text.splitlines()) and text
        else:
            assert re.fullmatch(r"reef\.[a-z_]+/[0-9]+", json.loads(text)["schema"]), typed_words


@pytest.mark.parametrize("name", ["config keys", "export", "logs"])
def test_a_reader_that_leaves_early_is_no_error(world: tuple[Daemon, str], name: str) -> None:
    one, receipt = world
    (words,) = typed([name], receipt)
    if name == "export":  # more than a pipe holds: it is told while it writes, not at the end
        with one.client("default") as client:
            client.call({"model": "m-1", "messages": [{"role": "user", "content": "long " * 100_000}]})
    command = f'{sys.executable} -m reef.cli.main {" ".join(words)} | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment(one.home),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines()[1:] == ["0"] and not re.search("rror|Traceback", done.stderr)


def test_long_output_is_paged_on_a_terminal_only(world: tuple[Daemon, str], tmp_path: Path) -> None:
    one, _ = world
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nhead -2\necho paged by me\n")
    pager.chmod(0o755)
    environ = environment(one.home, TERM="xterm", COLUMNS="80", LINES="20", PAGER=str(pager))
    environ.pop("NO_PAGER")
    command = [sys.executable, "-m", "reef.cli.main"]

    def shown(*words: str, **more: str) -> str:
        return in_terminal([*command, *words], {**environ, **more}, ROOT)

    assert "paged by me" in shown("config", "keys") and "training.seed" not in shown("config", "keys")
    assert "paged by me" not in shown("config", "explain", "reef.port")
    for said in (shown("config", "keys", "--no-pager"), shown("config", "keys", NO_PAGER="1"),
                 shown("config", "keys", PAGER=""), shown("config", "keys", PAGER="'"),
                 shown("config", "keys", "--json")):  # fmt: skip
        assert "paged by me" not in said and "training.seed" in said
    assert "paged by me" not in piped([*command, "config", "keys"], environ, ROOT)
    assert "no daemon runs" in shown("records", "list", "--home", str(tmp_path))


@pytest.mark.parametrize("words", ["tui", "recipe new", "config edit", "service install", "mcp"])
def test_what_asks_a_person_says_so_where_standard_input_is_closed(words: str, tmp_path: Path) -> None:
    command = ["sh", "-c", f'exec "$0" -m reef.cli.main {words} <&-', sys.executable]
    environ = environment(tmp_path, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path), PYTHONSAFEPATH="1") | {
        "REEF_TRACE": ""
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=60, check=False)
    assert "reef has a bug" not in done.stderr and "Traceback" not in done.stderr
