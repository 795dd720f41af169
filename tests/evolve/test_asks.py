"""What people and agents ask for: a request in words, a finished change; modes that hold it; why a release is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient
from reef.errors import ReefError
from tests.evolve.test_steps import SKILL, a_step, evolving, fail, helpful, importable
from tests.evolve.world import edits, is_proposer
from tests.support import daemon, eventually, provider

__all__ = ["importable"]  # the fixture


def test_a_request_in_words_is_the_next_step(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful, reef_batch_size="5") as (_, client, thinker):
        fail(client)
        asked = client.post("/reef/train", {"request": "make it check its work"})
        step = a_step(client)
        assert step["outcome"] == "release"
        assert "make it check its work" in str(thinker.bodies)
        assert eventually(lambda: client.record(asked["agent_record_id"])["state"]) == "consumed"
        assert client.record(asked["agent_record_id"])["request"] == {"request": "make it check its work"}
        assert client.get("/reef/scenarios/s")["batch"] == {"have": 1, "need": 5}  # the report still waits for others
        again = client.post(
            "/reef/train", {"request": "make it check its work", "agent_record_id": asked["agent_record_id"]}
        )
        assert again["duplicate"]


def test_an_agents_own_proposal_is_judged_like_any_other(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful) as (_, client, thinker):
        change = {"why": "I keep forgetting it", "edits": [{"kind": "skill", "name": "care", "text": SKILL}]}
        client.post("/reef/harness/proposals", change)
        assert a_step(client)["outcome"] == "release" and not any(is_proposer(body) for body in thinker.bodies)
        (asked,) = client.records("s", type="training")
        assert client.record(asked["agent_record_id"])["request"]["proposal"]["why"] == change["why"]
        shown = client.get("/reef/scenarios/s/proposals")["proposals"][0]
        assert shown["state"] == "published" and shown["release_id"] == "r1" and shown["origin"] == "client"
        bad = {"edits": [{"kind": "skill", "name": "../x", "text": "x"}]}
        with pytest.raises(ReefError, match="is no name"):
            client.post("/reef/harness/proposals", bad)
        client.post(
            "/reef/harness/proposals",
            {"edits": [{"kind": "rules", "name": "k", "text": "Bearer abcdefghijklmnopqrstuvwx"}]},
        )
        assert "credential" in a_step(client, 2)["reason"]


def test_an_ask_that_is_refused_leaves_no_scenario(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful) as (_, client, _):
        made = client.post("/reef/train", {"request": "be careful", "agent_record_id": "mine"})
        for body, status in (({"request": "be bold", "agent_record_id": "mine"}, 409), ({"request": " "}, 400)):
            assert (
                client.http.post("/reef/train", json=body, headers={"x-reef-scenario": "other"}).status_code == status
            )
        assert made["scenario"] == "s" and [row["name"] for row in client.get("/reef/scenarios")["scenarios"]] == ["s"]


def held(client: ReefClient) -> dict[str, Any]:
    step = a_step(client)
    return client.release("s", step["release_id"])


@pytest.mark.parametrize("mode", ["manual", "hybrid"])
def test_modes_hold_what_a_person_must_see(tmp_path: Path, mode: str) -> None:
    command = "---\ndescription: x\n---\nDo it carefully.\n"

    def mind(body: Any) -> dict[str, Any]:
        return edits(("agent_command", "careful", command)) if is_proposer(body) else {"content": "done"}

    with evolving(tmp_path, mind, reef_mode=mode) as (_, client, _):
        fail(client)
        release = held(client)
        assert release["state"] == "held" and f"mode {mode}" in release["verdict"]["reason"]
        assert client.get("/reef/harness", scenario="s")["release_id"] == "r0"
        client.act("s", "promote", {"release_id": release["release_id"]})
        assert client.get("/reef/harness", scenario="s")["release_id"] == release["release_id"]


def test_code_is_always_held(tmp_path: Path) -> None:
    def mind(body: Any) -> dict[str, Any]:
        return (
            edits(("code_extension", "look.ts", "// carefully\nexport default () => 1\n"))
            if is_proposer(body)
            else {"content": "done"}
        )

    with evolving(tmp_path, mind, reef_kinds="rules skill code_extension") as (_, client, _):
        fail(client)
        release = held(client)
        assert release["state"] == "held" and "code_extension is executed" in release["verdict"]["reason"]


def test_other_recipes_take_no_requests(tmp_path: Path) -> None:
    with provider() as far, daemon(tmp_path / "home", reef_upstream_url=far.url) as one, one.client() as client:
        with pytest.raises(ReefError, match="evolves no harness"):
            client.post("/reef/train", {"request": "be better"})
        assert client.get("/reef/scenarios")["scenarios"] == []
