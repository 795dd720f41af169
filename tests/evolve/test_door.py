"""The door of an episode: only model calls go through, whatever a path is written like, and whose failure a failure is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from reef.evolve.door import Door


@asynccontextmanager
async def behind(handler: web.Handler | None = None) -> AsyncIterator[tuple[Door, int, list[str]]]:
    """A door before a daemon that answers everything; the paths it was asked for."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.raw_path)
        return await handler(request) if handler is not None else web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    door = Door(f"http://127.0.0.1:{runner.addresses[0][1]}", {"Authorization": "Bearer token"}, 50)
    try:
        async with door.listening(None) as port:
            yield door, port, seen
    finally:
        await runner.cleanup()


async def ask(port: int, path: str, read: int = -1) -> bytes:
    """One request as it stands, without a client that puts its path in order; hangs up after ``read`` bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
    found = await reader.read(read)
    writer.transport.abort()
    return found


@pytest.mark.parametrize(
    "path",
    ["/reef/report", "/v1/../reef/report", "/v1/%2e%2e/reef/report", "/v1/x/../../reef/status", "/v1/messages/../../reef",
     "/v1/..%2freef", "//reef/report", "/v1/models/../../reef/status", "/v1/files", "/v1\\..\\reef"],
)  # fmt: skip
async def test_no_path_leads_past_the_model_calls(path: str) -> None:
    async with behind() as (door, port, seen):
        assert not (await ask(port, path)).startswith(b"HTTP/1.1 200")
        assert seen == [] and door.traffic.calls == 0


async def test_model_calls_go_through_with_their_query() -> None:
    async with behind() as (door, port, seen):
        for path in ("/v1/messages?beta=true", "/v1/chat/completions", "/v1/models?x=%2e%2e"):
            assert (await ask(port, path)).startswith(b"HTTP/1.1 200")
        assert seen == ["/v1/messages?beta=true", "/v1/chat/completions", "/v1/models?x=.."]
        assert door.traffic.calls == 3 and door.traffic.outage is None


async def test_an_agent_that_hangs_up_is_no_outage() -> None:
    """Otherwise an agent could have every run that goes badly done again, and one that is too slow was never scored."""

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(200):
            await response.write(b"x" * 65536)
        return response

    async with behind(stream) as (door, port, _):
        assert await ask(port, "/v1/chat/completions", 100)
    assert door.traffic.calls == 1 and door.traffic.outage is None


async def test_an_answer_that_breaks_off_is_an_outage() -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "1000"})
        await response.prepare(request)
        await response.write(b"begun")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with behind(broken) as (door, port, _):
        await ask(port, "/v1/chat/completions")
        assert door.traffic.outage is not None


@pytest.mark.parametrize(
    ("status", "outage"), [(401, True), (402, True), (429, True), (503, True), (400, False), (404, False)]
)
async def test_whose_failure_an_answer_is(status: int, outage: bool) -> None:
    async def refused(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    async with behind(refused) as (door, port, _):
        await ask(port, "/v1/chat/completions")
        assert (door.traffic.outage is not None) is outage
