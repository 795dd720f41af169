"""The tabs Recipe and Logs on a real daemon: a number changes from the keyboard, and what the daemon logs is seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reef.tui.app import ReefApp
from reef.tui.source import of_home
from tests.faults.world import ROOT, STUB
from tests.support import Daemon, daemon
from tests.tui.screens import Empty, shows


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        settings = {"reef_upstream_url": "http://127.0.0.1:9", "reef_recipe": STUB, "reef_batch_size": "4"}
        with daemon(tmp_path_factory.mktemp("tui"), **settings) as one:
            yield one


def app_of(one: Daemon, **options: Any) -> ReefApp:
    return ReefApp(of_home(one.home), waits_s=(0.05,), **options)


def value(one: Daemon, name: str = "reef.batch_size") -> Any:
    with one.client() as client:
        return next(row["value"] for row in client.knobs()["knobs"] if row["name"] == name)


async def test_a_number_is_changed_and_taken_back_from_the_keyboard(served: Daemon) -> None:
    app = app_of(served)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.press("6")
        await shows(pilot, lambda shown: "▸ reef.batch_size" in shown and "samples per step" in shown)
        await pilot.press("e")
        await shows(pilot, lambda shown: "Change reef.batch_size" in shown)
        await pilot.press("backspace", "9", "enter", "enter")
        await shows(pilot, lambda shown: "set by tui" in shown)
        assert value(served) == 9
        await pilot.press("u")
        await shows(pilot, lambda shown: "set by tui" not in shown)
        assert value(served) == 4
        await pilot.press("e", "backspace", "x", "enter", "enter")
        await shows(pilot, lambda shown: "must be a whole number" in " ".join(shown.split()))
    twins = [entry.twin for entry in app.log_of_acts]
    assert twins == [
        "reef knob set reef.batch_size 9", "reef knob reset reef.batch_size", "reef knob set reef.batch_size x"
    ]  # fmt: skip
    assert value(served) == 4


async def test_what_is_read_at_a_start_only_says_so(served: Daemon) -> None:
    app = app_of(served)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.press("6", "slash", *"reef.port", "enter", "e")
        await shows(pilot, lambda shown: "read at a start only" in shown and "▸ reef.port" in shown)
        await pilot.press("escape", "v")
        shown = await shows(pilot, lambda shown: "reef.keepalive_s" not in shown)
        assert "reef.batch_size" in shown and "reef.port" in shown


async def test_a_read_only_dashboard_changes_nothing(served: Daemon) -> None:
    app = app_of(served, read_only=True)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("6")
        await shows(pilot, lambda shown: "▸ reef.batch_size" in shown)
        await pilot.press("e", "enter", "u")
        shown = await shows(pilot, lambda shown: "Change reef" not in shown)
        assert "change a knob" not in shown and not app.log_of_acts


async def test_the_log_of_the_daemon_is_seen_as_it_grows(served: Daemon) -> None:
    app = app_of(served)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("7")
        await shows(pilot, lambda shown: f"ready at {served.url}" in shown)
        with served.client() as client:
            client.change_knobs({"reef.batch_size": 8})
            client.change_knobs({"reef.batch_size": None})
        await shows(pilot, lambda shown: "client changed reef.batch_size=8" in shown)
        await pilot.press("v", "v")
        await shows(pilot, lambda shown: "no line of this level yet" in shown)
        await pilot.press("v", "v", "enter")
        await shows(pilot, lambda shown: '"logger"' in shown)


async def test_lines_of_others_are_shown_literally_with_their_trace() -> None:
    line = {
        "number": 1,
        "time": "no time",
        "level": "error",
        "logger": "x",
        "message": "[red]\x1b[31m\u202e" + "a" * 9000,
    }
    app = ReefApp(lambda: Empty(lines=[{**line, "exc": "Traceback\n  [bold]"}]))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("7")
        await shows(pilot, lambda shown: "[red]\\x1b[31m\\u202eaaa" in shown)
        await pilot.press("enter")
        await shows(pilot, lambda shown: "[red]\\x1b[31m" in shown and '"level": "error"' in shown)
