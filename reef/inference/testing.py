"""Public stand-ins for what answers calls: a scripted provider and a scripted engine, real HTTP servers on loopback.

Know nothing of Reef's backends. Used by tests of this package and of anybody who writes a backend or a gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: ``chunks`` are written one by one, ``pause_s`` apart; ``cut`` drops the connection after the last."""

    chunks: Sequence[bytes] = ()
    status: int = 200
    headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),)
    pause_s: float = 0.0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived; header names in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    raw: bytes


class _Server:
    """Start and stop of a small aiohttp application on a free loopback port."""

    def __init__(self) -> None:
        self.url = ""
        self._runner: web.AppRunner | None = None

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, auto_decompress=False, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


class ScriptedProvider(_Server):
    """Answers each request with the next script (the last one again and again) and keeps what it saw.

    ``gone`` counts clients that hung up before their answer was written.
    """

    def __init__(self, *scripts: Script) -> None:
        super().__init__()
        self.scripts = list(scripts)
        self.seen: list[Seen] = []
        self.gone = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = tuple((name.lower(), value) for name, value in request.headers.items())
        self.seen.append(Seen(request.method, request.path_qs, headers, await request.read()))
        script = self.scripts[min(len(self.seen), len(self.scripts)) - 1]
        response = web.StreamResponse(status=script.status)
        for name, value in script.headers:
            response.headers.add(name, value)
        try:
            await response.prepare(request)
            for chunk in script.chunks:
                await response.write(chunk)
                if script.pause_s:
                    await asyncio.sleep(script.pause_s)
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        if script.cut and request.transport is not None:
            await asyncio.sleep(0)
            request.transport.close()
        else:
            await response.write_eof()
        return response
