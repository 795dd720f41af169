"""Completion in real shells: commands, options, scenarios, releases, records, agents, recipes, keys; silent with no daemon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reef.inference.testing import Script
from tests.cli.test_cli import reef, refused
from tests.faults.world import ROOT
from tests.support import Daemon, daemon, provider

BASH = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={last} COMP_LINE='{line}' COMP_POINT={point}
_reef_completion reef
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -d {folder}/dump
source {script}
_arguments() {{ print -r -- "$1" }}
_files() {{ }}
words=({words}) CURRENT={last_zsh}
_reef_completion
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A daemon that serves a harness in two scenarios, and a folder with ``reef`` and the scripts of the shells."""
    home, folder = tmp_path_factory.mktemp("completion"), tmp_path_factory.mktemp("bin")
    program = folder / "reef"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m reef.cli.main "$@"\n')
    program.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (folder / f"script.{shell}").write_text(reef(home, "completion", shell).out)
    with provider(Script()) as upstream, daemon(home, reef_upstream_url=upstream.url, reef_recipe="harness") as one:
        with one.client("s") as client:
            for name in ("coral-1", "coral-2"):
                client.post("/reef/scenarios", {"name": name})
        with one.client("coral-1") as client:
            client.report(score=1, references=["x"], agent_record_id="abc-1")
        yield one, folder


def completed(shell: str, folder: Path, home: Path, line: str) -> set[str]:
    """What a real shell offers for ``line``."""
    words = line.split(" ")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    environ |= {
        "PATH": f"{folder}:{environ['PATH']}",
        "REEF_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
    }
    known = {"script": folder / f"script.{shell}", "folder": folder, "line": line, "point": len(line)}
    quoted = " ".join(f"'{word}'" for word in words)
    if shell == "bash":
        command = ["bash", "--norc", "-c", BASH.format(words=quoted, last=len(words) - 1, **known)]
    elif shell == "zsh":
        command = ["zsh", "-f", "-c", ZSH.format(words=quoted, last_zsh=len(words), **known)]
    else:
        command = ["fish", "--no-config", "-c", f"source {known['script']}; complete -C '{line}'"]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environ,
        cwd=folder,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert ran.stderr == "", ran.stderr
    if shell == "zsh":  # it is told as: *: :(("value":"what it is", ...))
        return set(re.findall(r'"([^"]*)"(?::"[^"]*")?', ran.stdout))
    return {row.split("\t")[0].strip('"') for row in ran.stdout.splitlines() if row.strip()}


SHELLS = [
    pytest.param(shell, marks=pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed"))
    for shell in ("bash", "zsh", "fish")
]


@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_shell_offers(shell: str, world: tuple[Daemon, Path]) -> None:
    one, folder = world

    def offers(line: str) -> set[str]:
        return completed(shell, folder, one.home, line)

    assert offers("reef rec") == {"records", "recipe"}
    assert {"tail", "show", "export"} <= offers("reef records ")
    assert offers("reef records list -s coral") == {"coral-1", "coral-2"}
    assert offers("reef rollback -s coral-2 r") == {"r0"}
    assert offers("reef records tail --fol") == {"--follow"}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("reef why -s coral-1 ", {"r0", "abc-1"}),
        ("reef report --scenario coral-1 ab", {"abc-1"}),
        ("reef scenarios show coral-", {"coral-1", "coral-2"}),
        ("reef harness install cod", {"codex"}),
        ("reef up --recipe gr", {"grpo"}),
        ("reef config explain reef.upstream_a", {"reef.upstream_api", "reef.upstream_api_key"}),
        ("reef completion z", {"zsh"}),
    ],
)
def test_what_can_stand_there_is_known(world: tuple[Daemon, Path], line: str, wanted: set[str]) -> None:
    one, folder = world
    assert wanted <= completed("bash", folder, one.home, line)


@pytest.mark.parametrize("shell", SHELLS)
def test_with_no_daemon_it_is_silent(shell: str, world: tuple[Daemon, Path], tmp_path: Path) -> None:
    _, folder = world
    assert not completed(shell, folder, tmp_path, "reef scenarios show nothing-")
    assert not completed(shell, folder, tmp_path, "reef rollback r9")


def test_what_the_daemon_is_asked_takes_no_time(world: tuple[Daemon, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's part; what the shell and Python need to start is not its own."""
    from typer import Context

    from reef.cli.commands import everything
    from reef.cli.complete import complete_records, complete_releases, complete_scenarios

    one, _ = world
    monkeypatch.setenv("REEF_HOME", str(one.home))
    context: Context = next(iter(everything()))[1].context_class(next(iter(everything()))[1], info_name="reef")
    context.params["scenario"] = "coral-1"
    asked: list[Callable[[Context, str], list[str]]] = [complete_scenarios, complete_releases, complete_records]
    for ask in asked:
        assert ask(context, "")
        fastest = min(timed(lambda ask=ask: ask(context, "")) for _ in range(5))
        assert fastest < 0.2, ask.__name__


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def test_the_script_is_installed_where_the_shell_looks(tmp_path: Path) -> None:
    ran = reef(tmp_path, "completion", "bash", "--install", HOME=str(tmp_path))
    assert ran.code == 0 and ran.out == ""
    assert "reef" in (tmp_path / ".bashrc").read_text()
    refused(reef(tmp_path, "completion", "tcsh"), 2, "no shell 'tcsh'", "bash, zsh, fish")
    file = tmp_path / "a file"
    file.touch()
    refused(
        reef(tmp_path, "completion", "fish", "--install", HOME=str(file)),
        1,
        "cannot be written",
        "reef completion fish",
    )
