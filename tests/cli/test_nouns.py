"""releases diff, rollback and what has no parent, records tail over a restart, train, what a last start was told with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from reef.inference.testing import Script
from tests.cli.test_cli import reef, refused, schema
from tests.faults.world import ROOT
from tests.support import WAIT_S, Daemon, daemon, provider


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose recipe evolves a harness, with two scenarios."""
    home = tmp_path_factory.mktemp("nouns")
    with provider(Script()) as upstream, daemon(home, reef_upstream_url=upstream.url, reef_recipe="harness") as one:
        with one.client("s") as client:
            for name in ("sea", "shore"):
                client.post("/reef/scenarios", {"name": name})
        yield one


def test_the_first_release_has_none_before_it_and_nobody_is_asked(served: Daemon) -> None:
    for words in (("rollback",), ("releases", "rollback")):
        refused(reef(served.home, *words, "-s", "sea"), 1, "r0 is the first release of sea", "reef releases")
    refused(reef(served.home, "rollback", "r0", "-s", "sea"), 2, "serve r0 of sea again?", "--yes")
    refused(reef(served.home, "releases", "promote", "r0", "-s", "sea", "--yes"), 1, "only a held release")
    refused(reef(served.home, "releases", "reject", "r9", "-s", "sea", "--yes"), 4, "r9")


def test_what_changed_in_a_release(served: Daemon) -> None:
    found = schema(reef(served.home, "releases", "diff", "r0", "-s", "sea", "--json"), "diff")
    assert found["from"] is None and found["to"]["release_id"] == "r0"
    same = reef(served.home, "releases", "diff", "r0", "r0", "-s", "sea")
    assert same.code == 0 and same.out == "" and "no difference between r0 and r0" in same.err


def test_a_name_that_is_nearly_right_is_guessed(served: Daemon) -> None:
    refused(reef(served.home, "releases", "-s", "shoer"), 4, "no scenario 'shoer'", "did you mean shore?")
    refused(reef(served.home, "scenarios", "show", "see"), 4, "did you mean sea?")
    refused(reef(served.home, "releases", "show", "R0", "-s", "sea"), 4, "did you mean r0?")
    error = json.loads(reef(served.home, "records", "-s", "se", "--json").err)["error"]
    assert error["hint"].startswith("did you mean sea?")


def test_a_change_is_only_asked_of_a_recipe_that_takes_it(served: Daemon) -> None:
    refused(reef(served.home, "train", "be brief", "-s", "sea"), 1, "evolves no harness", "reef up --recipe evolve")


def follow(home: Path, lines: Queue[str], *words: str) -> subprocess.Popen[str]:
    """``reef records tail -f`` whose lines of both streams come as they are written."""
    command = [sys.executable, "-m", "reef.cli.main", "records", "tail", "-f", *words, "--home", str(home)]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environ
    )

    def read() -> None:
        assert child.stdout is not None
        with child.stdout as stream:
            for line in stream:
                lines.put(line.rstrip("\n"))

    threading.Thread(target=read, daemon=True).start()
    return child


def test_a_tail_goes_on_over_a_restart(tmp_path: Path) -> None:
    lines: Queue[str] = Queue()
    with provider(Script()) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url) as one:

        def report(record_id: str) -> None:
            with one.client("s") as client:
                client.report(score=1, references=["x"], agent_record_id=record_id)

        report("first")
        child = follow(tmp_path, lines, "--json", "-s", "s")
        try:
            assert json.loads(lines.get(timeout=WAIT_S))["agent_record_id"] == "first"
            report("second")
            assert json.loads(lines.get(timeout=WAIT_S))["agent_record_id"] == "second"
            one.kill()
            assert lines.get(timeout=WAIT_S) == f"the daemon has ended; waiting for it: reef up --home {tmp_path}"
            one.start()
            assert lines.get(timeout=WAIT_S) == "the daemon is back"
            report("third")
            row = json.loads(lines.get(timeout=WAIT_S))
            assert (row["agent_record_id"], row["request_type"]) == ("third", "report")
        finally:
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 130
        assert "interrupted" in lines.get(timeout=WAIT_S)
        assert lines.empty(), "nothing is shown twice"
        ended = reef(tmp_path, "records", "tail", "-n", "2", "-s", "s", "--jsonl")
        assert [json.loads(row)["agent_record_id"] for row in ended.out.splitlines()] == ["second", "third"]
        exported = reef(tmp_path, "records", "export", "reports").out.splitlines()
        assert [json.loads(row)["agent_record_id"] for row in exported] == ["first", "second", "third"]


def test_how_it_was_last_started_is_told(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("reef:\n  upstream_url: http://127.0.0.1:9\n  port: 0\n")
    home = tmp_path / "home"
    assert (
        "last time" not in reef(home, "up", "-c", str(file), "--training.seed", "7", "--upstream-api-key", "sk-1").err
    )
    assert reef(home, "down").code == 0
    told = f"reef up -c {file} --training.seed 7 --reef.upstream_api_key ..."
    refused(reef(home, "status"), 3, f"start it with: {told}")
    assert "sk-1" not in (home / "last_start.json").read_text()
    try:
        bare = reef(home, "up", REEF_PORT="0", REEF_UPSTREAM_URL="http://127.0.0.1:9")
        assert bare.code == 0 and f"the last time it was: {told}" in bare.err
    finally:
        assert reef(home, "down").code == 0
    refused(reef(home, "status"), 3, "start it with: reef up\n")
