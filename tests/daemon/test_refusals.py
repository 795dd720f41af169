"""What is refused leaves nothing behind, and what is kept of a refused call says why in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.client import RemoteError
from reef.inference.testing import Script
from tests.cli.test_cli import reef, refused, schema
from tests.faults.world import STUB, imported
from tests.support import Daemon, daemon, provider

CHAT = {"model": "m-1", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with provider(Script()) as upstream:
        settings = {"reef_upstream_url": upstream.url, "reef_upstream_api": "messages"}
        with daemon(tmp_path_factory.mktemp("refusals"), **settings) as running, running.client("s") as client:
            client.post("/reef/records", {"records": [imported("i1")]})
            client.report(score=1, references=["i1"], agent_record_id="taken")
            yield running


def scenarios(one: Daemon) -> list[str]:
    with one.client(None) as client:
        return [row["name"] for row in client.get("/reef/scenarios")["scenarios"]]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/reef/report", {"score": "high", "references": ["x"]}, 400),
        ("/reef/report", {"score": 1}, 400),
        ("/reef/report", {"feedback": "", "references": ["x"]}, 400),
        ("/reef/report", {"feedback": " \n", "references": ["x"]}, 400),
        ("/reef/report", {"feedback": {}, "references": ["x"]}, 400),
        ("/reef/report", {"score": 1, "session": "nobody"}, 404),
        ("/reef/report", {"score": 1, "references": ["i1"]}, 409),
        ("/reef/report", {"score": 1, "references": ["x"], "agent_record_id": "taken"}, 409),
        ("/reef/records", {"records": []}, 400),
        ("/reef/records", {"records": [{"request": 1}]}, 400),
        ("/reef/records", {"records": [imported("i99"), {"request": 1}]}, 400),
        ("/reef/records", {"records": [imported("i99"), imported("i1")]}, 409),
        ("/v1/chat/completions", [], 400),
        ("/reef/scenarios/misspelt/step", {}, 404),
        ("/reef/scenarios/misspelt/pause", {}, 404),
    ],
)
def test_what_is_refused_leaves_no_scenario(one: Daemon, path: str, body: Any, status: int) -> None:
    with one.client("misspelt") as client:
        found = client.http.post(path, json=body)
        assert found.status_code == status, found.text
        assert scenarios(one) == ["s"]
        with pytest.raises(RemoteError, match="no record 'i99'"):
            client.record("i99")


def test_what_is_taken_makes_its_scenario(one: Daemon) -> None:
    with one.client("by-report") as client:
        assert client.report(score=1, references=["later"])["scenario"] == "by-report"
        found = client.get("/reef/scenarios/by-report")
        assert (found["recipe"], found["counts"]) == ("record", {"report": {"parked": 1}})
    with one.client("by-import") as client:
        assert client.post("/reef/records", {"records": [imported("i2"), imported("i3")]})["new"] == 2
        assert client.post("/reef/records", {"records": [imported("i3"), imported("i4")]})["new"] == 1
        assert client.get("/reef/scenarios/by-import")["counts"] == {"inference": {"complete": 3}}


def test_a_trained_scenario_that_a_report_made_learns_from_it(tmp_path: Path) -> None:
    settings = {"reef_upstream_url": "http://127.0.0.1:9", "reef_recipe": STUB, "reef_batch_size": "1"}
    with daemon(tmp_path, **settings) as one, one.client("early") as client:
        assert client.report(score=1, references=["i1"])["reason"] is None
        said = reef(tmp_path, "report", "i2", "--score", "1", "-s", "early")
        assert said.code == 0 and "there is no record i2 yet; the report waits for it" in said.err
        client.post("/reef/records", {"records": [imported("i1")]})
        assert any(event["kind"] == "step" for event in client.events(0))
        assert client.get("/reef/scenarios/early")["step"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_could_not_be_translated_says_why_in_its_record(one: Daemon, stream: bool) -> None:
    with one.client("s") as client:
        body = {**CHAT, "stream": stream, "n": 2}
        found = client.http.post("/v1/chat/completions", json=body)
        assert found.status_code == 400
        record = client.record(found.headers["x-reef-agent-record-id"])
    assert record["state"] == "failed"
    assert record["reason"]["code"] == found.json()["error"]["code"]
    assert record["reason"]["message"] and record["reason"]["message"] in found.json()["error"]["message"]
    shown = reef(one.home, "records", "show", record["agent_record_id"]).out
    assert f"{record['reason']['code']}: {record['reason']['message']}" in shown


def test_a_receipt_nobody_knows_is_said(one: Daemon) -> None:
    said = reef(one.home, "report", "nobody", "--score", "1", "-s", "s")
    assert said.code == 0 and "there is no record nobody yet; the report is kept" in said.err
    found = schema(reef(one.home, "report", "nobody", "i1", "--score", "1", "-s", "s", "--json"), "report")
    assert found["unknown_references"] == ["nobody"]
    assert "there is no record" not in reef(one.home, "report", "i1", "--score", "1", "-s", "s").err


def test_a_scenario_is_shown(one: Daemon) -> None:
    said = reef(one.home, "scenarios", "show", "s").out
    assert "1 complete" in said and "record" in said
    assert schema(reef(one.home, "scenarios", "show", "s", "--json"), "scenario")["name"] == "s"
    refused(reef(one.home, "scenarios", "show", "nowhere"), 4, "no scenario 'nowhere'", "reef scenarios")
    assert reef(one.home, "scenarios", "list").out == reef(one.home, "scenarios").out
