"""What is shown: strangers' texts are literal, a tail stands still, keys can be given to others, read-only means it."""

from __future__ import annotations

import gc
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from textual.strip import Strip

from reef.tui.chart import chart
from reef.tui.happening import said
from reef.tui.keys import keys_file
from reef.tui.symbols import symbols_for
from reef.tui.text import plain
from tests.tui.screens import NOW, Empty, app_of, frame, live, settled, shows, text

HOSTILE = "\x1b[2J\x1b]52;c;aGk=\x07[bold]x[/] \u202egnp.exe \udce2 \n \x9b31m \u200b"


def scenario(**changes: Any) -> dict[str, Any]:
    return {
        "name": "s", "recipe": "stub", "surface": "weights", "created_at": NOW, "release_id": "r1", "step": 1, "state": "idle",
        "detail": "", "evolving": {}, "batch": {"have": 0, "need": 0}, "pending_receipts": [], "bytes": 0, "reasons": {},
        "waiting_for": "", "counts": {},
    } | changes  # fmt: skip


def release(number: int, state: str, reason: str) -> dict[str, Any]:
    return {
        "release_id": f"r{number}", "content_id": "c" * 16, "scenario": "s", "parent": "r0", "step": 1, "step_id": "s1",
        "state": state, "created_at": NOW, "restored_from": None, "size_bytes": 1, "metrics": {},
        "verdict": {"decision": "accept", "rule": "checks", "reason": reason},
    }  # fmt: skip


def source(reason: str = "", **more: Any) -> Empty:
    rows = [release(1, "serving", reason)]
    return Empty(scenarios=[scenario(**more)], releases=rows, steps=[], records=[], diff=reason)


@pytest.mark.parametrize(("given", "shown"), [("a\x1b[2J", "a\\x1b[2J"), ("\u202eb", "\\u202eb"), ("\udcff", "\\udcff"),
                                             ("[red]x[/]", "[red]x[/]"), ("a\tb", "a    b"), ("é漢🙂", "é漢🙂"),
                                             ("a\nb", "a\\nb"), ("\u200b", "\\u200b"), ("\x85", "\\x85")])  # fmt: skip
def test_what_a_terminal_would_obey_is_visible(given: str, shown: str) -> None:
    assert plain(given) == shown
    assert plain(given, True).isascii()


async def test_hostile_text_is_literal_everywhere() -> None:
    one = source(HOSTILE, state="training", detail=HOSTILE)
    one.told = [{"id": 1, "kind": HOSTILE, "scenario": HOSTILE, "at": NOW, "data": {"id": HOSTILE, "reason": HOSTILE}}]
    for tab in "12":
        shown = await frame(app_of(lambda: one), (140, 40), tab, "j")
        assert not any(ord(mark) < 32 and mark != "\n" for mark in shown)
        assert not set(shown) & set("\u202e\udce2\x9b\u200b\x85")
        assert "\\x1b[2J" in shown and ("[bold]x[/]" in shown or "[bo" in shown)


async def test_a_text_without_end_costs_what_is_seen_of_it() -> None:
    one = source("x" * 200_000)
    one.told = [{"id": 1, "kind": "step", "scenario": "s", "at": NOW, "data": {"reason": "y" * 200_000}}]
    before = time.process_time()
    await frame(app_of(lambda: one), (80, 24), "2")
    assert time.process_time() - before < 3.0


async def test_a_tail_that_was_left_stands_still_and_counts() -> None:
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("tab", "j")
        await settled(pilot)
        before = text(app).split("Live tail")[1].splitlines()[1:5]
        new = [{"id": 900 + at, "kind": "store", "scenario": "s", "at": NOW, "data": {}} for at in range(27)]
        app.store._queue.extend(new)
        await settled(pilot)
        shown = text(app).split("Live tail")[1]
        assert shown.splitlines()[1:5] == before
        assert "+27 new" in shown
        await pilot.press("f")
        await settled(pilot)
        assert "following" in text(app) and "store" in text(app).split("Live tail")[1].splitlines()[2]


async def test_read_only_has_no_key_that_changes_something() -> None:
    one = source()
    app = app_of(lambda: one, read_only=True)
    async with app.run_test(size=(140, 40)) as pilot:
        await settled(pilot)
        assert "read-only" in text(app) and "pause" not in text(app).splitlines()[-1]
        await pilot.press(*"pnbmxr")
        await settled(pilot)
        assert len(app.screen_stack) == 1
        await pilot.press("question_mark")
        await settled(pilot)
        assert "reef rollback" not in text(app)
    assert one.sent == []
    other = source()
    app = app_of(lambda: other)
    async with app.run_test(size=(140, 40)) as pilot:
        await settled(pilot)
        await pilot.press("p")
        await settled(pilot)
    assert [path for path, _ in other.sent] == ["/reef/scenarios/s/pause"]


async def test_keys_are_given_to_others_in_one_file() -> None:
    path = keys_file()
    path.parent.mkdir(parents=True)
    path.write_text("app.help: f1,H\ntab.releses: f2\napp.quit: [1]\n", encoding="utf-8")
    app = app_of(keys=path)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        shown = await shows(pilot, lambda shown: "tab.releases?" in shown)
        assert "no key has the id 'tab.releses'" in shown and "app.quit needs a key" in shown
        await pilot.press("H")
        await settled(pilot)
        assert "This pane" in text(app)


@pytest.mark.parametrize("broken", ["a: [", "- 1", "\x00", "1: 2"])
async def test_a_broken_file_of_keys_is_told_and_no_more(broken: str) -> None:
    path = keys_file()
    path.parent.mkdir(parents=True)
    path.write_text(broken, encoding="utf-8")
    app = app_of(keys=path)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await shows(pilot, lambda shown: "keys.yaml" in shown)


async def test_a_click_goes_to_a_tab_and_a_row() -> None:
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.click("#tab-line", offset=(15, 0))
        await settled(pilot)
        await pilot.click("#tab-releases #chain", offset=(5, 4))
        await settled(pilot)
        assert "Selected r9" in text(app)


async def test_copying_takes_what_is_under_the_cursor() -> None:
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("2", "j", "j", "y")
        await settled(pilot)
        assert app.clipboard == "r10"


async def test_another_scenario_is_shown() -> None:
    app = app_of(live)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("j", "enter")
        await settled(pilot)
        assert "scenario: math-tutor" in text(app) and "Version chain math-tutor" in text(app)


def test_a_chart_draws_each_value_where_it_belongs() -> None:
    lines = ["".join(span for span, _ in line) for line in chart([0.0, 1.0], 20, 5, ascii_only=True)]
    assert lines[0].startswith(" 1.00 ") and lines[0].rstrip().endswith("*")
    assert lines[3].startswith(" 0.00 *") and lines[4].split() == ["0", "1"]
    assert all(len(line) <= 20 for line in lines)


def test_without_a_terminal_it_says_what_to_type() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "reef.cli.main", "tui"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert ran.returncode == 2
    assert "needs a terminal" in ran.stderr and "reef status --json" in ran.stderr


def test_a_terminal_is_left_as_it_was_found(tmp_path: Path) -> None:
    """In a real one: it starts, draws, and gives the screen and the mouse back when it is told to end."""
    shown = b""
    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "REEF_HOME": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-m", "reef.cli.main", "tui", "--demo"], stdin=slave, stdout=slave, stderr=slave, env=environ,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    while b"DEMO DATA" not in shown:
        shown += os.read(master, 65536)
    child.send_signal(signal.SIGTERM)
    while True:
        try:
            if not (more := os.read(master, 65536)):
                break
        except OSError:  # Linux says so when the other end is closed
            break
        shown += more
    assert child.wait(10) == 0
    os.close(master)
    for off in (b"\x1b[?1049l", b"\x1b[?1000l", b"\x1b[?25h"):
        assert shown.rindex(off) > shown.rindex(b"DEMO DATA")


@pytest.mark.parametrize(
    ("kind", "data", "shown"),
    [
        ("step", {"step_id": "x", "phase": "train", "done": 1468, "total": 2000}, "train  1,468 of 2,000"),
        ("step", {"outcome": "accept", "release": "r2", "reason": "4 checks passed"}, "accept  r2  4 checks passed"),
        ("trainer", {"state": "blocked", "detail": "no room"}, "blocked: no room"),
        ("knobs", {"names": ["reef.batch_size"]}, "names ['reef.batch_size']"),
    ],
)
def test_no_event_is_a_line_without_words(kind: str, data: dict[str, Any], shown: str) -> None:
    assert said({"kind": kind, "data": data}, symbols_for(False)) == shown


async def test_pages_that_were_closed_leave_nothing_painted_behind() -> None:
    app = app_of(live)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)

        async def painted_after(times: int) -> int:
            for _ in range(times):
                await pilot.press("question_mark")
                await pilot.press("escape")
            gc.collect()
            return sum(type(one) is Strip for one in gc.get_objects())

        few = await painted_after(5)
        assert await painted_after(15) < few + 200, "a page is some 60 lines"
