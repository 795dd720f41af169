"""Reports and acts over HTTP with the embedded tiny model: what is refused names its field, retries are safe, acts show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient, RemoteError
from tests.models import build_tiny_model
from tests.support import Daemon, daemon, eventually

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "digits"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("reports")
    model = build_tiny_model(folder / "tiny")
    with daemon(folder / "home", reef_model_path=str(model), reef_recipe="pg", reef_batch_size="2") as running:
        yield running


@pytest.fixture
def client(one: Daemon, request: pytest.FixtureRequest) -> Iterator[ReefClient]:
    with one.client(scenario=request.node.name.split("[")[0][:60]) as found:
        yield found


def receipt(client: ReefClient, session: str | None = None) -> str:
    """The receipt of an answer that says something: a random model now and then ends at once, and that never trains."""
    while True:
        answer = client.call(CHAT, session=session)
        if session is not None or answer.json()["choices"][0]["message"].get("content"):
            return answer.headers["x-reef-agent-record-id"]


def step_of(client: ReefClient) -> int:
    return int(client.get(f"/reef/scenarios/{client.scenario}")["step"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"score": "high", "references": ["x"]}, "score"),
        ({"score": True, "references": ["x"]}, "score"),
        ({"feedback": "no number", "references": ["x"]}, "score"),
        ({"score": 1}, "references"),
        ({"score": 1, "references": "x"}, "references"),
        ({"score": 1, "references": ["../x"]}, "references[0]"),
        ({"score": 1, "references": ["x"] * 1001}, "references"),
        ({"score": 1, "references": ["x"], "metadata": 3}, "metadata"),
        ({"score": 1, "references": ["x"], "feedback": "y" * 300_000}, "feedback"),
        ({"score": 1, "references": ["x"], "feedback": "海" * 100_000}, "feedback"),
        ({"score": 1, "references": ["x"], "agent_record_id": "a b"}, "agent_record_id"),
        ({"scor": 1, "references": ["x"]}, "scor"),
    ],
)
def test_a_refusal_names_the_field(client: ReefClient, body: dict[str, Any], field: str) -> None:
    with pytest.raises(RemoteError) as failed:
        client.post("/reef/report", body)
    assert (failed.value.status, failed.value.field) == (400, field)


def test_a_retry_is_the_first_report_again_also_after_training(client: ReefClient) -> None:
    first, second = receipt(client), receipt(client)
    made = client.report(score=1.0, references=[first], agent_record_id="mine")
    assert client.report(score=1.0, references=[first], agent_record_id="mine")["duplicate"]
    client.report(score=0.5, references=[second])
    eventually(lambda: step_of(client) == 1)
    again = client.report(score=1.0, references=[first], agent_record_id="mine")
    assert again["agent_record_id"] == made["agent_record_id"]
    assert again["state"] == "consumed"
    with pytest.raises(RemoteError) as failed:
        client.report(score=0.0, references=[first], agent_record_id="mine")
    assert (failed.value.status, failed.value.code) == (409, "id_reused")


def test_a_changed_retry_is_refused_whatever_became_of_its_references(client: ReefClient) -> None:
    used = [receipt(client), receipt(client)]
    for one in used:
        client.report(score=1.0, references=[one])
    eventually(lambda: step_of(client) == 1)
    client.report(score=0.2, references=[used[0]], agent_record_id="late")
    eventually(lambda: client.record("late")["state"] == "refused")
    with pytest.raises(RemoteError) as failed:
        client.report(score=0.9, references=[used[0]], agent_record_id="late")
    assert (failed.value.status, failed.value.code) == (409, "id_reused")
    assert client.report(score=0.2, references=[used[0]], agent_record_id="late")["duplicate"]
    assert client.record(used[0])["request"]["messages"], "what trained can still be read"


def test_why_a_report_does_not_train_can_be_asked(client: ReefClient) -> None:
    used = [receipt(client), receipt(client)]
    for one in used:
        client.report(score=1.0, references=[one])
    eventually(lambda: step_of(client) == 1)
    late = client.report(score=1.0, references=[used[0]])["agent_record_id"]
    waits = client.report(score=1.0, references=["not-there-yet"])["agent_record_id"]
    record = eventually(lambda: (found := client.record(late))["state"] == "refused" and found)
    assert record["reason"]["code"] == "reference_consumed"
    eventually(lambda: (client.record(waits)["reason"] or {}).get("code") == "waiting")
    scenario = client.get(f"/reef/scenarios/{client.scenario}")
    assert scenario["pending_receipts"] == ["not-there-yet"]
    assert scenario["reasons"] == {"reference_consumed": 1, "waiting": 1}
    consumed = client.record(used[0])
    assert consumed["consumed_by"] == {"step": 1, "release_id": "r1"}
    assert used[0] in client.release(str(client.scenario), "r1")["records"]


def test_a_session_is_reported_as_one(client: ReefClient) -> None:
    calls = [receipt(client, session="run-7") for _ in range(2)]
    found = client.report(score=1.0, session="run-7")
    assert found["references"] == calls
    with pytest.raises(RemoteError, match="no finished calls"):
        client.report(score=1.0, session="another")


def test_a_receipt_of_another_scenario_is_refused(one: Daemon, client: ReefClient) -> None:
    with one.client(scenario="elsewhere") as other:
        foreign = receipt(other)
    with pytest.raises(RemoteError) as failed:
        client.report(score=1.0, references=[foreign])
    assert (failed.value.status, failed.value.code) == (409, "other_scenario")


def test_pause_step_and_resume(client: ReefClient) -> None:
    name = str(client.scenario)
    first = receipt(client)
    assert client.act(name, "pause")["state"] == "paused"
    client.report(score=1.0, references=[first])
    eventually(lambda: client.get(f"/reef/scenarios/{name}")["counts"]["report"].get("accepted") == 1)
    assert step_of(client) == 0
    client.act(name, "resume")
    eventually(lambda: client.get(f"/reef/scenarios/{name}")["batch"]["have"] == 1)
    client.act(name, "step")
    eventually(lambda: step_of(client) == 1)
    with pytest.raises(RemoteError, match="nothing to train on"):
        client.act(name, "step")


def test_imported_exchanges_train_like_recorded_ones(client: ReefClient) -> None:
    with_tensors = client.record(receipt(client))["response"]["training"]
    rows = [
        {"agent_record_id": f"mine-{n}", "request": {"messages": []}, "response": {"training": with_tensors}}
        for n in (1, 2)
    ]
    assert client.post("/reef/records", {"records": rows})["agent_record_ids"] == ["mine-1", "mine-2"]
    client.post("/reef/records", rows[0])
    for n in (1, 2):
        client.report(score=1.0, references=[f"mine-{n}"])
    eventually(lambda: step_of(client) == 1)
    with pytest.raises(RemoteError) as failed:
        client.post("/reef/records", {"records": [{"request": {}}]})
    assert failed.value.field == "records[0].response"


def test_events_tell_what_happens_and_can_be_resumed(client: ReefClient) -> None:
    last = 0
    for event in client.events(after=0):
        last = event["id"]
        if event["kind"] == "ready":
            break
    first = receipt(client)
    client.report(score=1.0, references=[first])
    client.act(str(client.scenario), "step") if eventually(
        lambda: client.get(f"/reef/scenarios/{client.scenario}")["batch"]["have"] == 1
    ) else None
    for event in client.events(after=last):
        if event["kind"] == "step" and event["scenario"] == client.scenario and "outcome" in event["data"]:
            assert event["data"]["outcome"] == "accept"
            break


def test_review_holds_a_release_until_a_person_decides(tmp_path: Path, one: Daemon) -> None:
    settings = {"reef_model_path": one.settings["reef.model_path"], "reef_recipe": "pg", "reef_batch_size": "1"}
    with daemon(tmp_path, **settings, reef_publish="review") as reviewed, reviewed.client() as client:
        client.report(score=1.0, references=[receipt(client)])
        held = eventually(lambda: [row for row in client.releases("s") if row["state"] == "held"])
        assert client.get("/reef/scenarios/s")["release_id"] == "r0"
        assert client.act("s", "promote", {"release_id": held[0]["release_id"]})["state"] == "serving"
        assert client.call(CHAT).headers["x-reef-release-id"] == "r1"
        client.report(score=1.0, references=[receipt(client)])
        second = eventually(lambda: [row for row in client.releases("s") if row["state"] == "held"])
        assert client.act("s", "reject", {"release_id": second[0]["release_id"]})["state"] == "rejected"
        with pytest.raises(RemoteError, match="only a held release"):
            client.act("s", "promote", {"release_id": second[0]["release_id"]})
        assert client.call(CHAT).headers["x-reef-release-id"] == "r1"
