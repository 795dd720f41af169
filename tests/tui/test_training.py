"""The Training tab: what the daemon says of batches and reasons, the gate's evidence, and steps as a table."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from reef.tui.app import ReefApp
from reef.tui.chart import Series, plot
from reef.tui.source import of_home
from tests.faults.world import ROOT, STUB, imported
from tests.support import daemon, eventually
from tests.tui.screens import NOW, Empty, app_of, frame, settled, shows
from tests.tui.test_showing import release, scenario


async def test_the_funnel_names_the_daemons_top_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9", reef_recipe=STUB, reef_batch_size="8") as one:
        with one.client() as client:
            client.post("/reef/records", {"records": [imported(f"i{at}") for at in range(6)], "scenario": "s"})
            for at in range(5):
                fit = {"training": {"eligible": at > 2}}
                client.report(score=1.0, references=[f"i{at}"], metadata=fit)
            client.report(score=1.0, references=["i77"])
            found = eventually(
                lambda: (
                    (row := client.get("/reef/scenarios/s"))["batch"]["have"] == 2 and len(row["reasons"]) == 2 and row
                )
            )
        code, count = next(iter(found["reasons"].items()))
        assert (code, count) == ("not_eligible", 3)
        app = ReefApp(of_home(one.home))
        async with app.run_test(size=(140, 40)) as pilot:
            await shows(pilot, lambda shown: "scenario: s" in shown)
            await pilot.press("4", "w")
            shown = await shows(pilot, lambda shown: "reports" in shown and "not_eligible" in shown)
            said = " ".join(line.split("││")[0].strip(" │") for line in shown.splitlines()[3:-2])
            assert f"it waits for {found['waiting_for']}." in said
            assert f"most often ({count}) because of {code}" in said
            assert "the next batch has 2 of 8" in said and f"{count} do not train, most often: {code}" in said


def judged(trajectory: list[float]) -> dict[str, Any]:
    pairs = [[at, "test", "t", 1, True, 1.0, 0.0] for at in range(len(trajectory))]
    evidence = {"pairs": pairs, "trajectory": trajectory, "level": 0.05}
    return {"decision": "accept", "rule": "paired-e", "reason": "better", "evidence": evidence}


async def test_the_gate_shows_the_evidence_and_what_was_needed() -> None:
    rows = [release(2, "serving", "") | {"verdict": judged([0.5, 1.5, math.log(40)])}, release(1, "published", "loads")]
    budget = {"alpha": 0.05, "used": 0.38, "tests": 1, "published": 1, "next_level": 0.0135}
    one = Empty(scenarios=[scenario(evolving={"error_budget": budget})], releases=rows, steps=[], records=[])
    app = app_of(lambda: one)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("4", "v")
        shown = await shows(pilot, lambda shown: "Gate r2" in shown)
        assert "E needs 20" in shown and "   40 " in shown and "3 won, 0 lost" in shown and "38% of 0.05" in shown
        threshold = next(at for at, line in enumerate(shown.splitlines()) if "┄┄┄┄" in line)
        assert threshold > next(at for at, line in enumerate(shown.splitlines()) if "   40 " in line)
        await pilot.press("[")
        await shows(pilot, lambda shown: "Gate r1" in shown and "not compared in pairs" in " ".join(shown.split()))


async def test_a_recipe_without_a_paired_gate_says_so() -> None:
    one = Empty(scenarios=[scenario()], releases=[release(0, "serving", "") | {"verdict": {}}], steps=[], records=[])
    shown = await frame(app_of(lambda: one), (140, 40), "4", "v")
    assert "its candidates are not compared in pairs" in shown


async def test_steps_become_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [
        {"step": at, "step_id": f"s{at}", "batch_id": "b", "outcome": "release", "reason": None, "release_id": f"r{at}",
         "created_at": NOW, "verdict": {}, "metrics": {"reward_mean": at / 10, "loss": 0.5}}
        for at in (2, 1)
    ]  # fmt: skip
    one = Empty(scenarios=[scenario()], releases=[release(1, "serving", "")], steps=steps, records=[])
    shown = await frame(app_of(lambda: one), (80, 24), "4", "o")
    assert "0.20" in shown and "0.10" in shown
    rows = list(csv.DictReader(written(tmp_path)))
    assert [(row["step"], row["reward_mean"]) for row in rows] == [("1", "0.1"), ("2", "0.2")]


def written(folder: Path) -> list[str]:
    (path,) = folder.glob("reef-steps-s-*.csv")
    return path.read_text(encoding="utf-8").splitlines()


def test_a_level_is_drawn_under_the_series() -> None:
    lines = ["".join(text for text, _ in line) for line in plot([Series([(1, 0), (9, 4)])], 30, 6, level=2.0)]
    assert sum("┄" in line for line in lines) == 1 and all(len(line) <= 30 for line in lines)
