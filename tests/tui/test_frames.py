"""Whole screens: each tab at each size, with data, with none, without a daemon. REEF_FRAMES=1 pytest makes them anew."""

from __future__ import annotations

import pytest

from tests.tui.screens import SIZES, STATES, app_of, frame, live, same

TABS = {"overview": "1", "releases": "2", "records": "3", "training": "4", "harness": "5", "recipe": "6", "logs": "7"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("tab", TABS)
async def test_a_tab(tab: str, state: str, size: str) -> None:
    same(f"{tab}-{state}-{size}", await frame(app_of(STATES[state]), SIZES[size], TABS[tab]))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("help", ("question_mark",)),
        ("rollback", ("2", *"jjjjjj", "b", "r")),
        ("promote", ("2", "j", "m")),
        ("report", ("r",)),
        ("filter", ("slash", *"mat")),
        ("log", ("at",)),
        ("zoom", ("2", "z")),
        ("install", ("5", "i", "enter", "enter")),
        ("releases-diff", ("2", "j", "enter")),
        ("why", ("4", "w")),
        ("gate", ("4", "v")),
        ("closer", ("4", "plus", "plus", "L")),
    ],
)
async def test_what_stands_over_a_tab(name: str, keys: tuple[str, ...]) -> None:
    same(f"over-{name}", await frame(app_of(), (80, 24), *keys))


@pytest.mark.parametrize("tab", TABS)
async def test_ascii(tab: str) -> None:
    shown = await frame(app_of(ascii_only=True), (140, 40), TABS[tab])
    assert shown.isascii()
    same(f"ascii-{tab}", shown)


async def test_too_small_says_what_it_needs() -> None:
    shown = await frame(app_of(live), (30, 8))
    assert "reef needs 40 columns and 10" in shown and "Scenarios" not in shown
