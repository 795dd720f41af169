"""Who leaves, and when: at every turn of the loop an answer that nobody takes is let go, and one that is there is kept."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from reef.daemon.services import Services
from reef.inference.base import Answer, Call
from reef.inference.testing import Script, ScriptedProvider
from tests.daemon.test_gateway import ANSWER, CHAT, JSON, SSE, STREAM
from tests.daemon.test_relay import HEADERS, NOISE, app_at, fill_disk

ENDLESS = Script(STREAM[:1] * 1000, headers=SSE, pause_s=0.05)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Client:
    """A client whose leaving is decided by the test, to the turn of the loop."""

    def __init__(self, app: Starlette, *, streamed: bool) -> None:
        self.app, self.body = app, json.dumps({**CHAT, "stream": streamed}).encode()
        self.begun, self.left = asyncio.Event(), asyncio.Event()
        self.breaks = False

    async def run(self) -> None:
        """Send the call; returns, or raises, as the application does."""
        headers = [(name.encode(), value.encode()) for name, value in {**HEADERS, "host": "localhost"}.items()]
        path = "/v1/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        await self.app(scope, self.receive, self.send)

    async def receive(self) -> MutableMapping[str, Any]:
        if self.body:
            body, self.body = self.body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.breaks:
            raise OSError("the connection is gone")
        self.begun.set()


def holding(services: Services) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold back answers of the backend at their headers: set when one has come, to be set to hand it on."""
    came, go_on, chat = asyncio.Event(), asyncio.Event(), services.backend.chat

    async def held(call: Call) -> Answer:
        got = await chat(call)
        came.set()
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            await got.aclose()
            raise
        return got

    services.backend.chat = held  # type: ignore[method-assign]
    return came, go_on


async def gone(upstream: ScriptedProvider, count: int) -> None:
    async with asyncio.timeout(20):
        while upstream.gone < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_answer_that_is_refused_for_the_store_is_let_go(tmp_path: Path) -> None:
    stop = threading.Event()

    def stand(db: sqlite3.Connection) -> None:
        stop.wait()

    async with (
        ScriptedProvider(ENDLESS) as upstream,
        app_at(tmp_path, upstream.url, on_store_failure="refuse") as (app, client),
    ):
        services: Services = app.state.services
        await client.post("/reef/scenarios", json={"name": "s"})
        await asyncio.to_thread(fill_disk, app, True)
        came, go_on = holding(services)
        go_on.set()
        services.records.store.submit(stand)
        big = {**CHAT, "messages": [{"role": "user", "content": NOISE}], "stream": True}
        answering = asyncio.ensure_future(client.post("/v1/chat/completions", json=big))
        await came.wait()
        await turns(10)  # the answer is here before the store says no
        stop.set()
        assert (await answering).status_code == 507
        await gone(upstream, 1)


@pytest.mark.parametrize("leaves_at", range(-4, 5))
async def test_a_client_that_leaves_while_the_answer_comes_lets_it_go(tmp_path: Path, leaves_at: int) -> None:
    async with ScriptedProvider(ENDLESS) as upstream, app_at(tmp_path, upstream.url, keepalive_s="0.01") as (app, _):
        services: Services = app.state.services
        came, go_on = holding(services)
        one = Client(app, streamed=True)
        calling = asyncio.ensure_future(one.run())
        await asyncio.gather(came.wait(), one.begun.wait())
        for event in (one.left, go_on) if leaves_at < 0 else (go_on, one.left):
            event.set()
            await turns(abs(leaves_at))
        await calling
        await gone(upstream, 1)
        (row,) = services.records.page("s")
        assert (row.record.state.value, row.record.reason) == ("aborted", "client_gone")


async def test_a_connection_that_breaks_at_the_headers_lets_the_answer_go(tmp_path: Path) -> None:
    async with ScriptedProvider(ENDLESS) as upstream, app_at(tmp_path, upstream.url) as (app, _):
        services: Services = app.state.services
        one = Client(app, streamed=True)
        one.breaks = True
        with pytest.raises(OSError, match="gone"):
            await one.run()
        await gone(upstream, 1)
        services.records.store.write(lambda db: None)
        assert [row.record.state.value for row in services.records.page("s")] == ["failed"]


@pytest.mark.parametrize("leaves_at", range(6))
async def test_a_client_that_leaves_at_the_end_of_a_plain_answer_changes_nothing_for_the_trainer(
    tmp_path: Path, leaves_at: int
) -> None:
    async with ScriptedProvider(Script([ANSWER], headers=JSON)) as upstream, app_at(tmp_path, upstream.url) as (app, _):
        services: Services = app.state.services
        one = Client(app, streamed=False)
        chat = services.backend.chat

        async def answer(call: Call) -> Answer:
            got = await chat(call)
            one.left.set()
            await turns(leaves_at)
            return got

        services.backend.chat = answer  # type: ignore[method-assign]
        services.bus.listened = True
        await one.run()
        (row,) = services.records.page("s")
        said = [event.data["id"] for event in services.bus.recent() if event.kind == "inference"]
        assert said == [row.record.agent_record_id]
