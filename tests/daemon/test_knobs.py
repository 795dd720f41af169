"""Changing a recipe's numbers while the daemon runs: a real daemon, the tiny model, HTTP and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient, RemoteError
from tests.cli.test_cli import reef
from tests.support import Daemon, daemon, eventually, provider

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Daemon]:
    settings = {"reef_recipe": "rwr", "reef_batch_size": "4", "reef_model_path": str(tiny_model)}
    with daemon(tmp_path_factory.mktemp("knobs"), **settings) as one:
        yield one


def scored(client: ReefClient) -> None:
    """One call with its report."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "digits"}], "max_tokens": 4}
    client.report(score=1.0, references=[client.call(body).headers["x-reef-agent-record-id"]])


def knob(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in found["knobs"] if row["name"] == name)


def batch(client: ReefClient) -> dict[str, Any]:
    return client.get("/reef/scenarios/s")["batch"]


def test_a_number_changes_from_the_next_batch_on_and_what_waited_counts(running: Daemon) -> None:
    with running.client() as client:
        for _ in range(2):
            scored(client)
        eventually(lambda: batch(client) == {"have": 2, "need": 4})
        found = client.change_knobs({"reef.batch_size": 3})
        changed = knob(found, "reef.batch_size")
        assert (changed["value"], changed["default"], changed["applies"]) == (3, 4, "next_batch")
        assert changed["origin"] == "set by client" and knob(client.knobs(), "reef.batch_size") == changed
        eventually(lambda: batch(client) == {"have": 2, "need": 3})
        scored(client)
        eventually(lambda: client.get("/reef/scenarios/s")["release_id"] == "r1")
        learned = client.release("s", "r1")
        assert len(learned["records"]) == 6, "three calls and their reports, once each"


def test_it_is_taken_back_by_null_and_ends_with_the_daemon(running: Daemon) -> None:
    with running.client() as client:
        client.change_knobs({"reef.batch_size": 9, "reef.min_score": 0.5})
        found = client.change_knobs({"reef.batch_size": None})
        assert (knob(found, "reef.batch_size")["value"], knob(found, "reef.min_score")["value"]) == (4, 0.5)
        assert knob(client.change_knobs({"reef.min_score": None}), "reef.min_score")["origin"] == "default"
        client.change_knobs({"reef.batch_size": 9})
    running.stop()
    running.start()
    with running.client() as client:
        assert knob(client.knobs(), "reef.batch_size")["value"] == 4


def test_what_cannot_be_changed_is_told_and_nothing_is(running: Daemon) -> None:
    with running.client() as client:
        before = client.knobs()
        for wanted, status, said in (
            ({"reef.port": 1}, 409, "reef.port is read at a start only"),
            ({"training.seed": 1}, 409, "training.seed is read at a start only"),
            ({"reef.batch_sise": 1}, 404, "no knob 'reef.batch_sise'"),
            ({"reef.batch_size": 2.5}, 400, "must be a whole number, not 2.5"),
            ({"reef.batch_size": True}, 400, "must be a whole number"),
            ({"reef.batch_size": 0}, 400, "reef.batch_size is 0"),
            ({"reef.batch_size": [1]}, 400, "must be a number"),
            ({"reef.min_score": 0.5, "reef.batch_size": "many"}, 400, "must be a whole number, not 'many'"),
            ({}, 400, "give the knobs to change"),
        ):
            with pytest.raises(RemoteError) as caught:
                client.change_knobs(wanted)
            assert caught.value.status == status and said in caught.value.message and caught.value.hint
        assert client.knobs() == before


def test_texts_are_read_at_a_start_only(tmp_path: Path) -> None:
    """A text may name code, or switch a sandbox off: a client with the token changes neither."""
    (tmp_path / "tasks" / "one").mkdir(parents=True)
    (tmp_path / "tasks" / "one" / "prompt.md").write_text("say hi", encoding="utf-8")
    (tmp_path / "tasks" / "one" / "check.sh").write_text("test -f done", encoding="utf-8")
    with provider() as upstream:
        settings = {"reef_recipe": "evolve", "reef_upstream_url": upstream.url, "reef_upstream_model": "m"}
        with daemon(tmp_path / "home", **settings, reef_tasks=str(tmp_path / "tasks")) as one, one.client() as client:
            rows = client.knobs()["knobs"]
            live = {row["name"] for row in rows if row["applies"] == "next_batch"}
            assert {"reef.gate_alpha", "reef.gate_graded", "reef.max_calls"} <= live
            assert not live & {"reef.sandbox", "reef.propose", "reef.evaluate", "reef.tasks", "reef.model", "reef.gate"}
            assert all(row["help"] for row in rows)
            client.change_knobs({"reef.gate_alpha": 0.1})


def test_the_command_line_shows_sets_and_resets(running: Daemon) -> None:
    ran = reef(running.home, "knob", "set", "batch_size", "6")
    assert ran.code == 0 and "set by cli" in ran.out and "until the daemon stops" in ran.err
    found = json.loads(reef(running.home, "knob", "--json").out)
    assert found["schema"] == "reef.knobs/1" and knob(found, "reef.batch_size")["value"] == 6
    assert "reef.batch_size" in reef(running.home, "knob", "list").out
    assert reef(running.home, "knob", "reset", "batch_size").code == 0
    wrong = reef(running.home, "knob", "set", "batch_sise", "6")
    assert wrong.code == 4 and "did you mean reef.batch_size" in wrong.err
    assert reef(running.home, "knob", "set", "port", "1").code == 1
