"""What people and agents ask for: a request in words, a finished change; modes that hold it; why a release is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient
from reef.errors import ReefError
from reef.gate import level_of
from tests.cli.test_cli import reef
from tests.daemon.test_secrets import files_with
from tests.evolve.test_steps import SKILL, a_step, evolving, fail, helpful, importable
from tests.evolve.world import LEAKS, LOOKS_LIKE_A_KEY, SAID_ONLY, UPSTREAM_KEY, edits, is_proposer
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
        with pytest.raises(ReefError, match="credential"):
            client.post(
                "/reef/harness/proposals", {"edits": [{"kind": "rules", "name": "k", "text": LOOKS_LIKE_A_KEY}]}
            )
        assert len(client.records("s", type="training")) == 1


@pytest.mark.parametrize("leak", range(len(LEAKS)))
def test_a_credential_in_a_proposal_never_reaches_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak: int
) -> None:
    """Neither the deployment's key nor what looks like anybody's: not from a proposer, not from who hands a change in."""
    given = {"reef_propose": "tests.evolve.world:leaks", "reef_upstream_api_key": UPSTREAM_KEY}
    monkeypatch.setenv("REEF_TEST_LEAK", str(leak))
    with evolving(tmp_path, helpful, **given) as (one, client, _):
        fail(client)
        reason = a_step(client)["reason"]
        shown = client.get("/reef/scenarios/s/proposals")["proposals"]
        if leak == SAID_ONLY:
            assert reason is None or "credential" not in reason
            assert shown[0]["proposal"]["why"] == "because [redacted] and [redacted] say so"
        else:
            assert "credential" in reason or "is no name" in reason or "no JSON" in reason, reason
            assert "[redacted]" in reason + str(shown)
        found = LEAKS[leak]
        if isinstance(found, dict):
            status = client.http.post(
                "/reef/harness/proposals", json=found, headers={"x-reef-scenario": "s"}
            ).status_code
            assert status == 409
        one.stop()
        for canary in (LOOKS_LIKE_A_KEY, UPSTREAM_KEY):
            assert files_with(one.home, canary) == []


def test_proposals_come_in_pages_and_without_their_texts(tmp_path: Path) -> None:
    made = iter(range(9))

    def mind(body: Any) -> dict[str, Any]:
        return edits(("rules", f"note-{next(made)}", "Be nice.")) if is_proposer(body) else {"content": "done"}

    with evolving(tmp_path, mind) as (one, client, _):
        for count in (1, 2, 3):
            fail(client)
            a_step(client, count)
        path = "/reef/scenarios/s/proposals"
        first = client.get(path, limit=2)["proposals"]
        rest = client.get(path, limit=2, before=first[-1]["seq"])["proposals"]
        assert [row["proposal"]["edits"][0]["name"] for row in first + rest] == ["note-2", "note-1", "note-0"]
        assert first[0]["proposal"]["edits"][0]["text"] == "Be nice."
        (row,) = client.get(path, step_id=rest[0]["step_id"], texts="false")["proposals"]
        assert row["proposal"]["edits"] == [{"action": "put", "kind": "rules", "name": "note-0"}]
        assert {**row, "proposal": None} == {**rest[0], "proposal": None}
        for odd in ({"limit": 0}, {"limit": 501}, {"before": "x"}, {"texts": "no"}):
            with pytest.raises(ReefError) as caught:
                client.get(path, **odd)
            assert caught.value.status == 400
        assert "note-0" in reef(one.home, "why", rest[0]["release_id"], "-s", "s").out


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


def test_what_a_person_refuses_was_not_published(tmp_path: Path) -> None:
    made = iter(range(9))

    def mind(body: Any) -> dict[str, Any]:
        return edits(("rules", f"care-{next(made)}", "Work carefully.")) if is_proposer(body) else {"content": "done"}

    def shown(client: ReefClient) -> tuple[str, int]:
        proposal = client.get("/reef/scenarios/s/proposals")["proposals"][0]
        return proposal["state"], client.get("/reef/scenarios/s")["evolving"]["error_budget"]["published"]

    with evolving(tmp_path, mind, reef_mode="manual") as (_, client, thinker):
        fail(client)
        a_step(client)
        assert shown(client) == ("held", 0)
        client.act("s", "reject", {"release_id": "r1"})
        assert shown(client) == ("rejected", 0)
        fail(client)
        release = client.release("s", a_step(client, 2)["release_id"])
        assert release["verdict"]["evidence"]["level"] == level_of(0.05, 2, 0)
        asked = [body for body in thinker.bodies if is_proposer(body)][-1]["messages"][1]["content"]
        assert "Tried before" in asked and "care-0" in asked and "a person or people's reports refused it" in asked
        client.act("s", "promote", {"release_id": "r2"})
        assert shown(client) == ("published", 1)


CODE = {
    "code_extension is executed": ("code_extension", "look.ts", "// carefully\nexport default () => 1\n"),
    "runs a command": ("agent_command", "look", "Work carefully: !`cat ~/.netrc`"),
    "runs a command where an agent loads it (```!)": ("skill", "care", f"{SKILL}```!\nid\n```\n"),
    "reads a file": ("rules", "care", "Work carefully, as @~/.netrc says."),
    "sets allowed-tools": ("skill", "care", SKILL.replace("\n---", "\nallowed-tools: Bash(*)\n---", 1)),
    "sets hooks": ("agent_command", "look", "---\nhooks:\n  Stop: []\n---\nWork carefully.\n"),
    "cannot be read": ("agent_command", "look", "---\nallowed-tools: [\n---\nWork carefully.\n"),
}


@pytest.mark.parametrize("said", CODE)
def test_code_is_always_held(tmp_path: Path, said: str) -> None:
    def mind(body: Any) -> dict[str, Any]:
        return edits(CODE[said]) if is_proposer(body) else {"content": "done"}

    with evolving(tmp_path, mind, reef_kinds="rules skill agent_command code_extension") as (_, client, _):
        fail(client)
        release = held(client)
        assert release["state"] == "held" and said in release["verdict"]["reason"]


def test_other_recipes_take_no_requests(tmp_path: Path) -> None:
    with provider() as far, daemon(tmp_path / "home", reef_upstream_url=far.url) as one, one.client() as client:
        with pytest.raises(ReefError, match="evolves no harness"):
            client.post("/reef/train", {"request": "be better"})
        assert client.get("/reef/scenarios")["scenarios"] == []
