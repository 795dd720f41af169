"""After publishing: people's reports of a release and of the one before it decide whether it stays; canaries."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient
from reef.core.artifacts import artifact_path
from reef.errors import ReefError
from tests.evolve.test_steps import evolving, helpful, importable
from tests.evolve.world import edits, is_proposer
from tests.support import daemon, eventually, provider

__all__ = ["importable"]  # the fixture

WAITS = {"reef_batch_size": "500"}
"""Reports do not make steps here; a request in words does."""


def published(client: ReefClient) -> None:
    client.post("/reef/train", {"request": "be careful"})
    eventually(lambda: client.get("/reef/scenarios/s/steps")["steps"])


def used(client: ReefClient, release: str, score: float, times: int) -> None:
    """So many runs on a release, and what people said of them."""
    for _ in range(times):
        headers = {"x-reef-release-id": release}
        body = {"model": "thinker", "messages": [{"role": "user", "content": "fix it"}]}
        answer = client.http.post("/v1/chat/completions", json=body, headers=headers)
        client.report(score=score, references=[answer.headers["x-reef-agent-record-id"]])


def head(client: ReefClient) -> str:
    return str(client.get("/reef/harness", scenario="s")["release_id"])


def test_a_release_that_people_find_worse_is_left(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful, reef_auto_rollback="true", **WAITS) as (_, client, _):
        used(client, "r0", 1.0, 40)
        published(client)
        assert head(client) == "r1"
        used(client, "r1", 0.0, 40)
        eventually(lambda: head(client) == "r2")
        back = client.release("s", "r2")
        assert back["restored_from"] == "r0" and "auto_rollback" in back["verdict"]["reason"]
        assert client.release("s", "r1")["state"] == "rolled_back"
        used(client, "r2", 0.0, 5)
        assert head(client) == "r2"  # what is restored is not left by itself


def test_a_release_is_not_left_for_one_whose_files_are_gone(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful, reef_auto_rollback="true", **WAITS) as (one, client, _):
        used(client, "r0", 1.0, 40)
        published(client)
        shutil.rmtree(artifact_path(one.home, client.release("s", "r0")["content_id"]))
        used(client, "r1", 0.0, 40)
        eventually(lambda: "cannot (the files of" in (one.home / "logs" / "reef.jsonl").read_text(encoding="utf-8"))
        assert head(client) == "r1"


def test_a_release_that_is_no_worse_stays(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful, reef_auto_rollback="true", **WAITS) as (_, client, _):
        used(client, "r0", 0.0, 30)
        published(client)
        used(client, "r1", 0.0, 30)
        assert head(client) == "r1"


def shares(client: ReefClient) -> dict[str, str]:
    return {f"run-{n}": client.get("/reef/harness", scenario="s", session=f"run-{n}")["release_id"] for n in range(200)}


@pytest.mark.parametrize(("score", "state", "serves"), [(1.0, "serving", "r1"), (0.0, "rejected", "r0")])
def test_a_canary_is_tried_by_a_share_of_the_sessions(tmp_path: Path, score: float, state: str, serves: str) -> None:
    with evolving(tmp_path, helpful, reef_canary="0.2", reef_canary_reports="40", **WAITS) as (_, client, _):
        used(client, "r0", 1.0, 40)
        published(client)
        assert client.release("s", "r1")["state"] == "held" and head(client) == "r0"
        first = shares(client)
        assert 20 <= sum(release == "r1" for release in first.values()) <= 60
        assert shares(client) == first  # a session keeps what it was given
        assert "tried by a share" in eventually(lambda: client.get("/reef/scenarios/s")["detail"])
        used(client, "r1", score, 40)
        eventually(lambda: client.release("s", "r1")["state"] == state)
        assert set(shares(client).values()) == {serves}


def test_a_canary_ends_when_what_it_was_made_from_is_left(tmp_path: Path) -> None:
    made = iter(range(100))

    def another(body: Any) -> dict[str, Any]:
        rule = ("rules", f"care-{next(made)}", "Work carefully.")
        return edits(rule) if is_proposer(body) else {"content": "done"}

    with evolving(tmp_path, another, reef_canary="0.2", reef_gate="floor", **WAITS) as (_, client, _):
        published(client)
        client.act("s", "promote", {"release_id": "r1"})
        client.post("/reef/train", {"request": "be more careful"})
        eventually(
            lambda: [one for one in client.releases("s") if one["release_id"] == "r2" and one["state"] == "held"]
        )
        client.act("s", "rollback")
        eventually(lambda: client.release("s", "r2")["state"] == "rejected")
        client.post("/reef/train", {"request": "be most careful"})
        eventually(lambda: len(client.get("/reef/scenarios/s/steps")["steps"]) == 3)


def test_a_canary_needs_a_harness(tmp_path: Path) -> None:
    with (
        provider() as far,
        pytest.raises(ReefError, match="serves two harnesses"),
        daemon(tmp_path, reef_upstream_url=far.url, reef_canary="0.2"),
    ):
        pass
