"""The door of an episode: the one thing an agent under test can reach, and only its model routes.

An agent that is compared holds no token and cannot report, promote or read records: the door adds the token to model calls
and refuses all else. It counts calls and sees outages, so that a provider's failure is never taken for the agent's.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from reef.inference.base import ROUTES

_PATHS = (*ROUTES, "/v1/messages/count_tokens", "/v1/models")
"""Word for word: a path that is only like one of them (``/v1/../reef/report``) could be put in order on its way."""
_LARGEST_BODY = 64 * 2**20
_CLOSING_S = 1.0
_DROPPED = frozenset({"host", "authorization", "x-api-key", "connection", "transfer-encoding", "content-length", "keep-alive",
                      "content-encoding", "accept-encoding"})  # fmt: skip
_OUTAGES = frozenset({401, 402, 403, 408, 425, 429, 500, 502, 503, 504, 507, 529})
"""With those of a key that is wrong or spent: no agent has one."""


@dataclass(slots=True)
class Traffic:
    """What went through: ``outage`` is the last failure that no later call made good, in words."""

    calls: int = 0
    outage: str | None = None


class Door:
    """Passes model calls on to ``url`` with ``headers`` added; at most ``max_calls`` of them."""

    def __init__(self, url: str, headers: Mapping[str, str], max_calls: int) -> None:
        self.traffic = Traffic()
        self._url, self._headers, self._max_calls = url.rstrip("/"), dict(headers), max_calls

    @contextlib.asynccontextmanager
    async def listening(self, socket: Path | None) -> AsyncIterator[int]:
        """Open while the block runs, at ``socket`` or, without one, at the loopback port that is given."""
        app = web.Application(client_max_size=_LARGEST_BODY)
        for path in _PATHS:
            app.router.add_route("*", path, self._pass)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSING_S)  # who could still wait has ended
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self._session:
            await runner.setup()
            site: web.BaseSite
            site = web.UnixSite(runner, str(socket)) if socket else web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            try:
                yield 0 if socket else int(runner.addresses[0][1])
            finally:
                await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        traffic = self.traffic
        if traffic.calls >= self._max_calls:
            said = f"this episode has used its {self._max_calls} model calls"
            return web.json_response({"error": {"type": "invalid_request_error", "message": said}}, status=403)
        traffic.calls += 1
        headers = {name: value for name, value in request.headers.items() if _kept(name)}
        url = f"{self._url}{request.path}?{request.rel_url.raw_query_string}".rstrip("?")
        body = await request.read()
        answer: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method, url, data=body or None, headers={**headers, **self._headers}
            ) as found:
                traffic.outage = f"the model's server answered {found.status}" if found.status in _OUTAGES else None
                answer = web.StreamResponse(status=found.status)
                for name, value in found.headers.items():
                    if _kept(name):
                        answer.headers.add(name, value)
                await answer.prepare(request)
                async for piece in found.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            if request.transport is None or request.transport.is_closing():  # the agent hung up: that is no outage
                return answer or web.Response()
            traffic.outage = f"the daemon could not be reached: {type(error).__name__}: {error}"
            if answer is None:
                return web.json_response({"error": {"type": "api_error", "message": traffic.outage}}, status=502)
            if request.transport is not None:  # the answer has begun: breaking it off is the only honest end
                request.transport.abort()
            return answer


def _kept(name: str) -> bool:
    low = name.lower()
    return low not in _DROPPED and not low.startswith("x-reef-")
