"""Drives the dashboard in memory and reads its screen as text. The only file that touches a private name of Textual."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from reef.errors import DaemonUnreachable, NotFound
from reef.tui.app import ReefApp
from reef.tui.demo import Demo
from reef.tui.source import Source

NOW = 1795953872.0
"""2026-11-29 12:04:32 UTC."""
FRAMES = Path(__file__).parent / "frames"
SIZES = {"80x24": (80, 24), "140x40": (140, 40), "50x14": (50, 14)}


class Empty:
    """A daemon that nobody has called yet, or with ``status`` changed, whatever a test wants to be told."""

    url = "http://127.0.0.1:8900"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.told: list[dict[str, Any]] = []
        self.sent: list[tuple[str, Mapping[str, Any]]] = []

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        if name == "status":
            status = await Demo(lambda: NOW, play=False).get("/reef/status")
            status |= {"scenarios": self.answers.get("scenarios", [])}
            status["store"] |= {"records": 0, "bytes": 4096}
            return status
        if name in self.answers:
            return {name: self.answers[name]}
        if path in ("/reef/knobs", "/reef/logs"):
            return {"recipe": "RecordRecipe", "file": None, "knobs": [], "lines": self.answers.get("lines", [])}
        raise NotFound(f"{path} is not there")

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.sent.append((path, body))
        return {}

    async def change_knobs(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        return await self.post("/reef/knobs", knobs)

    async def events(self, after: int | None = None) -> AsyncIterator[dict[str, Any]]:
        for event in self.told:
            yield event

    async def close(self) -> None:
        pass


def live() -> Source:
    """Recorded data that stands still."""
    return Demo(lambda: NOW, play=False)


def empty() -> Source:
    """Nothing yet."""
    return Empty()


def down() -> Source:
    """Nobody answers."""
    raise DaemonUnreachable("no answer from http://127.0.0.1:8900: connection refused", hint="start it with: reef up")


STATES: dict[str, Callable[[], Source]] = {"live": live, "empty": empty, "down": down}


def app_of(connect: Callable[[], Source] = live, **options: Any) -> ReefApp:
    """The dashboard at a fixed time."""
    return ReefApp(
        connect, clock=lambda: NOW, demo=connect is live, home=Path("/home/me/.reef"), waits_s=(60.0,), **options
    )


def text(app: ReefApp) -> str:
    """What is on the screen."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


async def settled(pilot: Pilot[None]) -> None:
    """Until the daemon has answered or failed, what it told is shown, and nothing more is being read."""
    app = pilot.app
    assert isinstance(app, ReefApp)
    seen: object = None
    while True:
        await pilot.pause()
        app.store.take()
        busy = [
            one
            for one in app.workers
            if one.group in ("release", "act", "load", "list", "page") and not one.is_finished
        ]
        waits = len(app.screen_stack) > 1
        if app.store.snapshot is seen and app.store.snapshot.link != "connecting" and (not busy or waits):
            break
        seen = app.store.snapshot
    await pilot.pause()


async def shows(pilot: Pilot[None], check: Callable[[str], Any]) -> str:
    """The screen once it is so."""
    for _ in range(600):
        await pilot.pause()
        if check(shown := text(pilot.app)):
            return shown
        await asyncio.sleep(0.01)
    raise AssertionError(text(pilot.app))


async def frame(app: ReefApp, size: tuple[int, int], *keys: str) -> str:
    """The screen after these keys."""
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await settled(pilot)
        return text(app)


def same(name: str, shown: str) -> None:
    """Compare with the frame that is kept; REEF_FRAMES=1 keeps this one instead."""
    path = FRAMES / f"{name}.txt"
    if os.environ.get("REEF_FRAMES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert path.is_file(), f"{path.name} is not there; make it with REEF_FRAMES=1"
    assert shown == path.read_text(encoding="utf-8"), f"{path.name} differs; look at it, then REEF_FRAMES=1 keeps it"
