"""kill -9 at named points of a step that really trains: made once, served, and never trained twice (issue 2, Show 4)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from reef.client import ReefClient
from reef.errors import DaemonUnreachable
from reef.launch import StartFailed
from tests.faults.test_kill import SOAK, sound
from tests.support import Daemon, eventually

pytestmark = pytest.mark.slow
BATCH = 4


def ask(client: ReefClient, seed: int) -> str:
    message = {"role": "user", "content": f"digits {seed}"}
    body = {"model": "tiny", "messages": [message], "max_tokens": 16, "seed": seed}
    return client.call(body).headers["x-reef-agent-record-id"]


def feed(one: Daemon, number: int) -> list[str]:
    """The calls and reports of one batch; the last report may be cut off by the death it brings about."""
    with one.client() as client:
        receipts = [ask(client, number * BATCH + index) for index in range(BATCH)]
        for index, receipt in enumerate(receipts):
            try:
                client.report(score=index - 1.5, references=[receipt], agent_record_id=f"p{number}-{index}")
            except (DaemonUnreachable, httpx.TransportError):
                assert index == BATCH - 1
    return receipts


def manifests(home: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (home / "artifacts").glob("*/manifest.json")]


def die_at(one: Daemon, points: Sequence[str]) -> list[str]:
    """Feed one batch, then die at each of ``points`` in turn, starting again in between; returns the receipts."""
    one.start(failpoint=points[0])
    receipts = feed(one, 1)
    assert one.died()
    for point in points[1:]:
        start_and_die(one, point)
    return receipts


def start_and_die(one: Daemon, point: str) -> None:
    """Start on what the last death left; going on with it leads to the next death, before or after it is ready."""
    with contextlib.suppress(StartFailed):
        one.start(failpoint=point)
    assert one.died()


def check_first_step(one: Daemon, client: ReefClient, receipts: Sequence[str]) -> None:
    """One step of exactly the first batch, and its release is what answers."""
    eventually(lambda: client.releases("s")[0]["state"] == "serving" and client.releases("s")[0]["release_id"] == "r1")
    steps = client.get("/reef/scenarios/s/steps")["steps"]
    made = manifests(one.home)
    assert [(step["step"], step["batch_id"], step["release_id"]) for step in steps] == [(1, "s:1", "r1")]
    assert [(one["step_id"], one["content_id"]) for one in made] == [
        (steps[0]["step_id"], client.release("s", "r1")["content_id"])
    ]
    used = client.release("s", "r1")["records"]
    assert sorted(used) == sorted([*receipts, *(f"p1-{index}" for index in range(BATCH))])
    for index, receipt in enumerate(receipts):
        assert client.record(receipt)["consumed_by"] == {"step": 1, "release_id": "r1"}
        assert client.record(f"p1-{index}")["state"] == "consumed"
    answered = client.record(ask(client, 99))
    assert answered["release_id"] == "r1"
    assert {span["version"] for span in answered["response"]["training"]["versions"]} == {made[0]["content_id"]}
    assert sound(one.home)


def test_a_step_that_died_before_its_commit_and_before_its_publish(tiny_model: Path, tmp_path: Path) -> None:
    one = Daemon(tmp_path, {"reef.model_path": str(tiny_model), "reef.recipe": "pg", "reef.batch_size": str(BATCH)})
    one.start(failpoint="before-step-commit")
    try:
        receipts = feed(one, 1)
        assert one.died()
        made = manifests(tmp_path)
        assert len(made) == 1, "the artifact was durable before the commit"
        start_and_die(one, "before-publish")
        one.start()
        with one.client() as client:
            check_first_step(one, client, receipts)
            assert manifests(tmp_path) == made, "the same batch made the same step, and it was not trained again"
            assert client.status()["inference"]["engine"]["trainer"]["starts"] == 0
    finally:
        one.kill()


@SOAK
@pytest.mark.soak
def test_a_step_that_died_at_every_point(tiny_model: Path, tmp_path: Path) -> None:
    one = Daemon(tmp_path, {"reef.model_path": str(tiny_model), "reef.recipe": "pg", "reef.batch_size": str(BATCH)})
    points = ("before-step", "before-step", "before-step-commit", "before-commit:2", "before-publish")
    try:
        receipts = die_at(one, points)
        one.start(failpoint="before-settle")
        with one.client() as client:
            check_first_step(one, client, receipts)
        feed(one, 2)
        assert one.died()
        one.start()
        with one.client() as client:
            eventually(lambda: client.releases("s")[0]["state"] == "serving")
            assert [row["release_id"] for row in client.releases("s")] == ["r2", "r1", "r0"]
            assert [step["batch_id"] for step in client.get("/reef/scenarios/s/steps")["steps"]] == ["s:2", "s:1"]
            assert client.record(ask(client, 98))["release_id"] == "r2"
            feed(one, 3)
            eventually(lambda: client.releases("s")[0]["release_id"] == "r3")
            trained = [record for number in (1, 2, 3) for record in client.release("s", f"r{number}")["records"]]
            assert len(trained) == len(set(trained)) == 3 * 2 * BATCH
    finally:
        one.kill()
