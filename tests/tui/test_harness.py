"""The Harness tab: two trees beside each other, from a real daemon; an agent installed from the keyboard, and undone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reef.tui.app import ReefApp
from reef.tui.diff import changes_of, lines_of
from reef.tui.source import of_home
from tests.evolve.test_steps import a_step, evolving, fail, helpful
from tests.faults.world import ROOT
from tests.support import daemon
from tests.tui.screens import Empty, app_of, frame, shows
from tests.tui.test_showing import release, scenario


async def test_what_a_step_changed_is_seen_from_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with evolving(tmp_path, helpful) as (one, client, _):
        fail(client)
        made = await asyncio.to_thread(a_step, client)
        app = ReefApp(of_home(one.home))
        async with app.run_test(size=(140, 40)) as pilot:
            await shows(pilot, lambda shown: "scenario: s" in shown)
            await pilot.press("2", "enter")
            shown = await shows(pilot, lambda shown: "Work carefully" in shown)
            assert f"r0 → {made['release_id']}" in shown and "+ skill/care" in shown and "1 changed" in shown
            await pilot.press(
                "c", "backspace", "backspace", *made["release_id"], "enter", *["backspace"] * 2, *"r0", "enter", "enter"
            )
            shown = await shows(
                pilot, lambda shown: f"{made['release_id']} → r0" in shown and "Work carefully" in shown
            )
            assert "- skill/care" in shown
            await pilot.press("4", "v")
            shown = await shows(pilot, lambda shown: f"Gate {made['release_id']}" in shown)
            assert "error budget" in shown and "E needs" in shown


async def test_an_agent_is_installed_after_a_yes_and_can_be_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("REEF_HOME", str(tmp_path))
    folder = tmp_path / "agents" / "minimal" / "s"
    settings = {"reef_recipe": "harness", "reef_upstream_model": "m"}
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9", **settings) as one:
        with one.client() as client:
            client.post("/reef/scenarios", {"name": "s"})
        app = ReefApp(of_home(one.home), home=one.home)
        async with app.run_test(size=(140, 40), notifications=True) as pilot:
            await shows(pilot, lambda shown: "scenario: s" in shown)
            await pilot.press("5", "i")
            await shows(pilot, lambda shown: "agent: one of" in shown)
            await pilot.press("ctrl+u", *"minimal", "enter", "enter")
            await shows(
                pilot, lambda shown: str(folder)[:50] in shown and "reef harness uninstall minimal -s s" in shown
            )
            await pilot.press("enter")
            assert not app.log_of_acts, "Enter decides nothing"
            await pilot.press("y")
            await shows(pilot, lambda _: app.log_of_acts)
        entry = app.log_of_acts[0]
        assert entry.ok and "reef harness install minimal -s s" in entry.twin, entry
        assert files(folder)
        undo = entry.answer.splitlines()[-1].partition(": reef ")[2].split()
        await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "reef.cli.main", *undo, "--yes"], check=True)
        assert not files(folder)


def files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.json"))


async def test_weights_have_no_text_and_it_says_so() -> None:
    rows: list[dict[str, Any]] = [
        release(2, "serving", "") | {"parent": "r1", "metrics": {"loss": 0.25}},
        release(1, "published", "") | {"metrics": {"loss": 0.5}},
    ]
    one = Empty(scenarios=[scenario(release_id="r2")], releases=rows, steps=[], records=[])
    shown = await frame(app_of(lambda: one), (140, 40), "5")
    assert "r2 holds weights, not texts: step 1 changed them, from r1." in shown
    assert "loss" in shown and "0.5 " in shown and "0.25" in shown


@pytest.mark.parametrize("split", [True, False])
def test_each_change_is_a_hunk_with_its_numbers(split: bool) -> None:
    old = [f"line {at}" for at in range(40)]
    new = [*old[:4], "changed", *old[5:30], *old[31:]]
    (change,) = changes_of({"rules/x": "\n".join(old)}, {"rules/x": "\n".join(new)})
    lines, hunks = lines_of(change, 100, split=split)
    texts = ["".join(text for text, _ in line) for line in lines]
    assert change.counts == (1, 2) and len(hunks) == 2
    assert sum("changed" in text for text in texts) == 1 and sum("line 30" in text for text in texts) == 1
    at = next(text for text in texts if "changed" in text)
    assert "5 changed" in at and ("5 line 4" in at) is split
    assert all(len(text) <= 100 for text in texts)
