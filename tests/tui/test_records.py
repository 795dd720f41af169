"""The Records tab on a real daemon: paging through 1,000 records, filters, marks, reports, and a file of what was chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from reef.tui.app import ReefApp
from reef.tui.paged import KEPT
from reef.tui.source import of_home
from reef.tui.tabs.records import Records
from tests.faults.world import ROOT, STUB, imported
from tests.support import Daemon, daemon, eventually
from tests.tui.screens import shows


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with 1,000 calls, four reports, and a batch that is not full."""
    home = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with daemon(home, reef_upstream_url="http://127.0.0.1:9", reef_recipe=STUB, reef_batch_size="32") as one:
            with one.client() as client:
                rows = [imported(f"i{number}") for number in range(1000)]
                client.post("/reef/records", {"records": rows, "scenario": "s"})
                for number in range(3):
                    client.report(score=1.0, references=[f"i{number}"], agent_record_id=f"good{number}")
                no = {"training": {"eligible": False}}
                client.report(score=1.0, references=["i3"], agent_record_id="unfit", metadata=no)
                eventually(lambda: batch(one) == 3)
            yield one


def batch(one: Daemon) -> int:
    with one.client() as client:
        return int(client.get("/reef/scenarios/s")["batch"]["have"])


def tab_of(pilot: Pilot[None]) -> Records:
    found = pilot.app.query_one(Records)
    assert isinstance(found, Records)
    return found


async def listed(pilot: Pilot[None], check: Any) -> list[str]:
    """Keys of the rows that are listed, once they are so."""
    keys: list[str] = []

    def there(_: str) -> bool:
        keys[:] = [row.key for row in tab_of(pilot)._list.shown] if pilot.app.query(Records) else []
        return bool(check(keys))

    await shows(pilot, there)
    return keys


async def test_one_pages_through_a_thousand_records_and_back(served: Daemon) -> None:
    app = ReefApp(of_home(served.home))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda shown: "scenario: s" in shown)
        await pilot.press("3")
        keys = await listed(pilot, lambda keys: len(keys) == 200)
        assert keys[0] == "unfit" and keys[4] == "i999"
        seen = set(keys)
        for _ in range(40):
            await pilot.press("G")
            before = keys[-1]
            keys = await listed(pilot, lambda keys, before=before: before == "i0" or keys[-1] != before)
            assert len(keys) <= KEPT
            seen |= set(keys)
            if keys[-1] == "i0":
                break
        assert len(seen) == 1004, "each row was listed, and none left out between two pages"
        with served.client() as client:
            client.post("/reef/records", {"records": [imported("i1000")], "scenario": "s"})
        await shows(pilot, lambda shown: "paused  +1 new" in shown)
        rows = tab_of(pilot)._list
        rows.point(keys[5])
        await pilot.press("k", "pageup")  # newer ones page in as well
        assert (await listed(pilot, lambda now: now[0] != keys[0]))[100] == keys[0]
        await pilot.press("G", "f")
        await shows(pilot, lambda shown: "following" in shown)
        assert (await listed(pilot, bool))[0] == "i1000"


async def test_a_filter_on_kind_and_state_finds_what_is_far_away(served: Daemon) -> None:
    with served.client() as client:
        client.report(score=0.5, references=["i9999"], agent_record_id="early")  # its call has not come
        body = {"records": [imported(f"i{number}") for number in range(1001, 1300)], "scenario": "s"}
        client.post("/reef/records", body)
    app = ReefApp(of_home(served.home))
    async with app.run_test(size=(140, 40)) as pilot:
        await shows(pilot, lambda shown: "scenario: s" in shown)
        await pilot.press("3", "slash", *"report parked", "enter")
        assert await listed(pilot, lambda keys: keys == ["early"])
        await pilot.press("slash", *(["backspace"] * 6), *"refused", "enter")
        await listed(pilot, lambda keys: keys == ["unfit"])
        await shows(pilot, lambda shown: "never trains" in shown and "not_eligible" in shown)
        await pilot.press("escape")
        await listed(pilot, lambda keys: len(keys) == 200)
        await pilot.press("slash", *"i108", "enter")
        await shows(pilot, lambda shown: "down looks in older ones" in shown)
        await pilot.press("down")
        await listed(pilot, lambda keys: keys == [f"i108{number}" for number in range(9, -1, -1)])


async def test_a_report_on_two_marked_records_makes_the_batch_grow(served: Daemon) -> None:
    first = {"tokens": [1, 2, 5], "loss_mask": [1], "rollout_log_probs": [-0.5], "temperature": 1.0}
    second = {**first, "tokens": [1, 2, 5, 9]}
    rows = [
        {"agent_record_id": name, "release_id": "r0", "request": {"messages": [{"role": "user", "content": name}]},
         "response": {"text": name, "training": training}}
        for name, training in (("turn1", first), ("turn2", second))
    ]  # fmt: skip
    with served.client() as client:
        client.post("/reef/records", {"records": rows, "scenario": "s"})
    before = batch(served)
    app = ReefApp(of_home(served.home))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda shown: "scenario: s" in shown)
        await pilot.press("3")
        await listed(pilot, lambda keys: keys[:2] == ["turn2", "turn1"])
        await pilot.press("space", "space", "r")
        await shows(pilot, lambda shown: "turn1 turn2" in shown)
        await pilot.press("down", *"1", "down", "enter", "enter")
        await shows(pilot, lambda shown: "paused  +1 new" in shown)
        await pilot.press("f")
        await shows(pilot, lambda shown: " REP " in shown.splitlines()[4])
        assert not tab_of(pilot)._list.marked
    eventually(lambda: batch(served) == before + 1)


async def test_marked_records_are_written_into_a_new_file(
    served: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = ReefApp(of_home(served.home), read_only=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, lambda shown: "scenario: s" in shown)
        await pilot.press("3", "slash", *"inf", "enter")
        keys = await listed(pilot, lambda keys: len(keys) > 5)
        for count in (1, 2):
            await pilot.press("g", "space", "space", "o")
            await shows(pilot, lambda _, count=count: len(read(tmp_path)) == count)
        await shows(pilot, lambda shown: "2 records are in" in " ".join(shown.split()))
    for path, mode, text in read(tmp_path):
        assert path.endswith(".jsonl") and mode == 0o600
        rows = [json.loads(line) for line in text.splitlines()]
        assert [row["agent_record_id"] for row in rows] == keys[1::-1]
        assert rows[0]["response"]["text"] == keys[1]


def read(folder: Path) -> list[tuple[str, int, str]]:
    """Name, mode and text of each file."""
    return [(one.name, one.stat().st_mode & 0o777, one.read_text(encoding="utf-8")) for one in folder.iterdir()]


async def test_all_of_a_record_is_there_as_json_also_on_a_small_terminal(served: Daemon) -> None:
    app = ReefApp(of_home(served.home))
    async with app.run_test(size=(50, 14)) as pilot:
        await shows(pilot, lambda shown: " s " in shown)
        await pilot.press("3", "slash", *"report good1", "enter")
        await listed(pilot, lambda keys: keys == ["good1"])
        await pilot.press("enter")
        await shows(pilot, lambda shown: "report good1" in shown and "waits for its batch" in " ".join(shown.split()))
        await pilot.press("enter")
        await shows(pilot, lambda shown: '"agent_record_id": "good1"' in shown)
        await pilot.press("escape", "escape")
        await shows(pilot, lambda shown: "Records s" in shown)
