"""What answers is no daemon, or another one: the dashboard says so, stays, and never shows a trace."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from textual.worker import WorkerFailed

from reef.daemon.shapes import SCHEMAS
from reef.tui import shape
from reef.tui.app import ReefApp
from reef.tui.demo import Demo
from reef.tui.source import of_home
from tests.tui.screens import NOW, app_of, settled, shows


class Strange(Demo):
    """Recorded data with one thing wrong in what is asked at ``path``, or in all events."""

    def __init__(self, path: str, at: tuple[Any, ...], value: Any) -> None:
        super().__init__(lambda: NOW, play=False)
        self.path, self.at, self.value = path, at, value

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        found = await super().get(path, **query)
        return _changed(found, self.at, self.value) if path.endswith(self.path) else found

    async def events(self, after: int | None = None) -> AsyncIterator[dict[str, Any]]:
        async for event in super().events(after):
            yield _changed(event, self.at, self.value) if self.path == "events" else event


def _changed(document: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(document)
    inner: Any = document
    for key in at[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return document


@pytest.mark.parametrize(("path", "at"), [
    ("/status", ("daemon",)), ("/status", ("scenarios", 0)), ("/status", ("scenarios", 0, "batch", "need")),
    ("/status", ("scenarios", 0, "counts", "report")), ("/releases", ("releases", 0)), ("/steps", ("steps", 0, "metrics")),
    ("/records", ("records", 0, "created_at")), ("/knobs", ("knobs", 0)), ("/logs", ("lines",)), ("/harness", ("entries", 0)),
    ("events", ("data",)), ("events", ("id",)),
])  # fmt: skip
async def test_a_document_of_another_shape_ends_nothing(path: str, at: tuple[Any, ...]) -> None:
    for value in (None, [None], "x", ...):
        app = app_of(lambda value=value: Strange(path, at, value))  # type: ignore[misc]
        async with app.run_test(size=(140, 40)) as pilot:
            await settled(pilot)
            await pilot.press(*"1234567")
            await settled(pilot)
            app.tick()
        assert app.return_code is None


async def test_what_is_no_daemon_is_named_and_the_field_too() -> None:
    app = app_of(lambda: Strange("/status", ("scenarios", 0, "batch", "need"), None))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda shown: "scenarios[0].batch.need is NoneType" in " ".join(shown.split()))


async def test_a_home_without_its_token_is_told_and_found_again(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text('{"url": "http://127.0.0.1:9"}', encoding="utf-8")
    app = ReefApp(of_home(tmp_path), waits_s=(0.05,))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda shown: "the token cannot be read" in shown)
        (tmp_path / "token").mkdir()
        await shows(pilot, lambda shown: "Is a directory" in " ".join(shown.split()))
        (tmp_path / "token").rmdir()
        (tmp_path / "token").write_text("x", encoding="utf-8")
        await shows(pilot, lambda shown: "no answer from http://127.0.0.1:9" in shown)


async def test_a_bug_is_told_in_a_line_without_what_the_variables_held(capfd: pytest.CaptureFixture[str]) -> None:
    async def broken(told: str) -> None:
        raise ZeroDivisionError("a bug")

    async def end() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot)
            app.run_worker(broken("the-token"))
            await pilot.pause()

    app = app_of()
    with pytest.raises(WorkerFailed):
        await end()
    said = capfd.readouterr()
    assert app.return_code == 1
    assert "reef has a bug: ZeroDivisionError: a bug" in said.err and "REEF_TRACE=1" in said.err
    assert "the-token" not in said.out + said.err and "Traceback" not in said.out + said.err


def test_only_what_a_daemon_publishes_is_read() -> None:
    for name, table in (("Release", shape._RELEASE), ("Step", shape._STEP), ("Record", shape._RECORD),
                        ("Scenario", shape._SCENARIO)):  # fmt: skip
        assert set(table) <= set(SCHEMAS[name]["required"])
