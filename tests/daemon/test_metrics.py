"""GET /metrics after known traffic: each figure has the value it must have, and docs/operate.md names it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clients import answers
from tests.faults.world import ROOT, STUB, Echo, imported
from tests.support import Daemon, daemon, eventually, on_thread, provider

CALL = {"model": "m", "messages": [{"role": "user", "content": "a few words"}]}
Scraped = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(one: Daemon) -> Scraped:
    """Every sample by its name and labels."""
    with one.client() as client:
        answer = client.http.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(figures: Scraped, name: str, **labels: str) -> float:
    return figures[name, tuple(sorted(labels.items()))]


def buckets(figures: Scraped, name: str) -> list[float]:
    """The cumulative counts of a histogram, by rising bound."""
    found = {float(dict(labels)["le"]): count for (one, labels), count in figures.items() if one == f"{name}_bucket"}
    counts = [found[bound] for bound in sorted(found)]
    assert counts == sorted(counts) and counts[-1] == value(figures, f"{name}_count")
    return counts


def test_what_calls_leave_in_the_figures(tmp_path: Path) -> None:
    slow_s = 1.0
    with on_thread(Echo(slow_s)) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url) as one:
        assert value(scraped(one), "reef_gateway_overhead_seconds_count") == 0
        with one.client("s") as client:
            for _ in range(3):
                client.call(CALL)
            with client.stream(CALL) as answer:
                answer.read()
            client.report(score=1, references=["not-there"])
        figures = eventually(lambda: value(found := scraped(one), "reef_gateway_overhead_seconds_count") == 4 and found)
    assert buckets(figures, "reef_gateway_overhead_seconds")[-1] == 4
    # Three calls of a second and a stream of three words: had the time of the upstream been counted, the sum would be above this.
    assert 0 < value(figures, "reef_gateway_overhead_seconds_sum") < 3 * slow_s
    commits = value(figures, "reef_commit_seconds_count")
    assert commits >= 6 and buckets(figures, "reef_commit_seconds")[-1] == commits
    assert value(figures, "reef_records", scenario="s", type="inference", state="complete") == 4
    assert value(figures, "reef_records", scenario="s", type="report", state="parked") == 1
    assert value(figures, "reef_reports_parked", scenario="s") == 1
    assert value(figures, "reef_report_reasons", scenario="s", reason="record_only") == 1
    waiting = [name for name, _ in figures if name == "reef_reports_parked_oldest_seconds"]
    assert waiting == [], "a recipe that only records lets nobody wait"
    assert value(figures, "reef_ready") == 1 and value(figures, "reef_store_degraded") == 0
    assert value(figures, "reef_unrecorded_answers_total") == 0
    assert value(figures, "reef_store_queue_depth") == 0 and value(figures, "reef_store_bytes") > 0
    assert abs(value(figures, "process_start_time_seconds") - time.time()) < 600


def test_what_training_leaves_in_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = {"reef_upstream_url": "http://127.0.0.1:9", "reef_recipe": STUB, "reef_batch_size": "2"}
    with daemon(tmp_path, **settings) as one, one.client("s") as client:
        client.post("/reef/records", {"records": [imported(f"i{number}") for number in range(1, 7)]})
        for number in range(1, 5):
            client.report(score=1, references=[f"i{number}"])
        eventually(lambda: client.get("/reef/scenarios/s")["step"] == 2)
        client.report(score=1, references=["i5"])  # made by r0, and r2 is served
        client.report(score=1, references=["i1"])  # used up
        client.report(score=1, references=["i77"])  # not there
        eventually(lambda: client.get("/reef/scenarios/s")["reasons"] == {"reference_consumed": 1, "waiting": 1})
        client.act("s", "pause")
        figures = scraped(one)
    assert value(figures, "reef_batch_have", scenario="s") == 1 and value(figures, "reef_batch_need", scenario="s") == 2
    assert value(figures, "reef_staleness_releases", scenario="s") == 2
    assert value(figures, "reef_release", scenario="s") == 2
    assert value(figures, "reef_steps_total", scenario="s", outcome="release") == 2
    assert value(figures, "reef_training_paused", scenario="s") == 1
    assert value(figures, "reef_reports_parked", scenario="s") == 1
    assert 0 <= value(figures, "reef_reports_parked_oldest_seconds", scenario="s") < 600
    assert value(figures, "reef_report_reasons", scenario="s", reason="reference_consumed") == 1
    assert value(figures, "reef_report_reasons", scenario="s", reason="waiting") == 1
    assert value(figures, "reef_records", scenario="s", type="report", state="consumed") == 4


def test_every_figure_is_in_the_docs_and_no_other(tmp_path: Path) -> None:
    with provider(answers.chat_plain(tools=False)) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url) as one:
        with one.client() as client:
            text = client.http.get("/metrics").text
        served = {name for name in re.findall(r"^# TYPE (\S+)", text, flags=re.M) if name.startswith("reef_")}
        assert httpx.get(f"{one.url}/metrics", trust_env=False).status_code == 401
        token = (tmp_path / "token").read_text(encoding="utf-8").strip()
        bearer = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{one.url}/metrics", headers=bearer, trust_env=False).status_code == 200
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    said = set(re.findall(r"^\| `(reef_\w+)", page, flags=re.M))
    assert said - {"reef_engine_up"} == served
