"""Keys that act, on a real daemon: what is served changes, what is refused is told, a restart is found again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.tui.app import ReefApp
from reef.tui.source import of_home
from tests.faults.world import ROOT, STUB, imported
from tests.support import Daemon, daemon, eventually
from tests.tui.screens import Empty, settled, shows
from tests.tui.screens import app_of as frames_app
from tests.tui.test_showing import release, scenario


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose steps cost nothing, with a scenario s that has some releases."""
    home = tmp_path_factory.mktemp("tui")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with daemon(home, reef_upstream_url="http://127.0.0.1:9", reef_recipe=STUB, reef_batch_size="1") as one:
            for number in range(3):
                learn(one, number)
            yield one


def learn(one: Daemon, number: int) -> None:
    """One more release."""
    with one.client() as client:
        client.post("/reef/records", {"records": [imported(f"i{number}")], "scenario": "s"})
        client.report(score=1.0, references=[f"i{number}"])
        eventually(lambda: client.releases("s")[0]["step"] > number)


def app_of(one: Daemon) -> ReefApp:
    return ReefApp(of_home(one.home), waits_s=(0.05,))


async def test_a_rollback_needs_the_name_and_changes_what_is_served(served: Daemon) -> None:
    app = app_of(served)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, lambda shown: "scenario: s" in shown)
        await pilot.press("2", "b")
        await shows(pilot, lambda shown: "Type r2 to confirm" in shown)
        await pilot.press("enter")  # Cancel has the keys
        await shows(pilot, lambda shown: "Type r2" not in shown)
        with served.client() as client:
            assert client.releases("s")[0]["restored_from"] is None
        await pilot.press("b")
        await shows(pilot, lambda shown: "Type r2 to confirm" in shown)
        await pilot.press(*"r2", "enter")
        await shows(pilot, lambda shown: "r4   SERVE" in shown and "restores r2" in shown)
        with served.client() as client:
            assert client.releases("s")[0]["restored_from"] == "r2"
        await pilot.press("at")
        await shows(pilot, lambda shown: "$ reef rollback r2 -s s" in shown)


async def test_what_the_daemon_refuses_is_told_with_its_hint(served: Daemon) -> None:
    app = app_of(served)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, lambda shown: "scenario: s" in shown)
        await pilot.press("n")
        shown = await shows(pilot, lambda shown: "nothing to train on" in shown)
        assert "see why: reef status" in " ".join(shown.split())
        assert [entry.ok for entry in app.log_of_acts] == [False]


async def test_training_is_paused_and_goes_on(served: Daemon) -> None:
    app = app_of(served)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda shown: "scenario: s" in shown)
        await pilot.press("p")
        await shows(pilot, lambda shown: "  paused" in shown.splitlines()[3])
        await pilot.press("p")
        await shows(pilot, lambda shown: "  idle" in shown.splitlines()[3])
    assert [entry.twin for entry in app.log_of_acts] == ["reef pause -s s", "reef resume -s s"]


async def test_a_report_is_sent_and_the_chain_grows_while_one_looks(served: Daemon) -> None:
    with served.client() as client:
        client.post("/reef/records", {"records": [imported("i50", "r4")], "scenario": "s"})
        before = client.releases("s")[0]["release_id"]
    app = app_of(served)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda shown: "scenario: s" in shown)
        await pilot.press("2", "r")
        await shows(pilot, lambda shown: "New report" in shown)
        await pilot.press(*"i50", "down", *"0.5", "down", *"good", "enter", "enter")
        await shows(pilot, lambda shown: f"r{int(before[1:]) + 1} " in shown)
    assert app.log_of_acts[0].twin == "reef report --score 0.5 --feedback good -s s i50"


async def test_a_daemon_that_is_gone_and_comes_back_is_found(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one:
        with one.client() as client:
            client.post("/reef/scenarios", {"name": "kept"})
        app = app_of(one)
        async with app.run_test(size=(80, 24)) as pilot:
            await shows(pilot, lambda shown: "scenario: kept" in shown and "serving" in shown)
            await asyncio.to_thread(one.stop)
            shown = await shows(pilot, lambda shown: "down" in shown)
            assert "kept" in shown.split("Live tail")[0].split("Scenarios")[1], "what was known is shown on"
            await shows(pilot, lambda shown: "u other address" in shown.splitlines()[-1])
            await asyncio.to_thread(one.start)
            await shows(pilot, lambda shown: " serving " in shown.splitlines()[0])
            with one.client("fresh") as client:
                await asyncio.to_thread(client.post, "/reef/scenarios", {"name": "fresh"})
            await shows(pilot, lambda shown: "recipe record" in shown.split("Live tail")[1])


async def test_a_long_chain_is_read_to_its_end_and_gone_back_in() -> None:
    rows = [
        release(number, "published", f"why {number}") | {"parent": f"r{number - 1}"} for number in range(449, -1, -1)
    ]
    one = Empty(scenarios=[scenario(release_id="r449")], releases=rows, steps=[], records=[])

    async def get(path: str, **query: Any) -> dict[str, Any]:
        if path.endswith("/releases"):
            below = [row for row in rows if int(row["release_id"][1:]) < int(query.get("before", 1000))]
            return {"releases": below[:200]}
        if "/releases/" in path and not path.endswith("/diff"):
            return next(row for row in rows if row["release_id"] == path.rsplit("/", 1)[1])
        return await Empty.get(one, path, **query)

    one.get = get  # type: ignore[method-assign]
    app = frames_app(lambda: one)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("2", "G")
        await shows(pilot, lambda shown: "50 older" in shown or "Selected r249" in shown)
        await pilot.press("G")
        await shows(pilot, lambda shown: "Selected r49 " in shown)
        await pilot.press("G")
        await shows(pilot, lambda shown: "Selected r0 " in shown and "older (down" not in shown)
        await pilot.press("b")
        await shows(pilot, lambda shown: "Type r0 to confirm" in shown)
