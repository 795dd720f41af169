"""The door: Host, Origin and token are checked before any route is looked up. Errors leave here in the route's shape.

Knows nothing of what lies behind it. The busiest routes are called from here, without the router and its wrappers.
"""

from __future__ import annotations

import hmac
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from reef.core.histogram import BOUNDS_S, Histogram
from reef.daemon.wire import error_response
from reef.errors import Forbidden, ReefError, Unauthorized

log = logging.getLogger("reef.daemon")

Handler = Callable[[Request], Awaitable[Response]]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})


class Door:
    """ASGI middleware. ``hosts`` are the names this daemon may be called by (any when it listens beyond loopback).

    ``direct`` are POST routes by path that need no router, ``told`` makes an answer of what one of them raised.
    ``overhead`` counts what a model call took beyond the time that its route measured for the upstream.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: frozenset[str] | None,
        direct: Mapping[str, Handler],
        told: Callable[[str, Exception], Response],
        overhead: Histogram,
    ) -> None:
        self._app = app
        self._direct, self._told, self._overhead = direct, told, overhead
        self._token = token.encode()
        self._hosts = None if hosts is None else frozenset(host.encode() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        host, origin, allowed = b"", b"", scope["path"] in ("/healthz", "/")
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.lower()
            elif name == b"origin":
                origin = value.lower()
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                allowed = hmac.compare_digest(value[7:].strip(), self._token) or allowed
            elif name in (b"x-api-key", b"x-reef-token"):
                allowed = hmac.compare_digest(value.strip(), self._token) or allowed
        try:
            if self._hosts is not None and host.rsplit(b":", 1)[0] not in self._hosts and host not in self._hosts:
                shown = host[:80].decode("latin-1")
                raise Forbidden(f"Host {shown!r} is not served here", hint="use the address that reef status shows")
            if origin and origin.split(b"://", 1)[-1] != host:
                raise Forbidden("calls from web pages of another origin are refused")
            if not allowed:
                raise Unauthorized(
                    "no token, or a wrong one",
                    hint="send Authorization: Bearer <token>; it lies in the file token of the state directory",
                )
        except ReefError as error:
            await error_response(scope["path"], error)(scope, receive, send)
            return
        handler = self._direct.get(scope["path"]) if scope["method"] == "POST" else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await handler(Request(scope, receive))
        except Exception as error:  # the edge: what it becomes is decided in one place
            response = self._told(scope["path"], error)
        await response(scope, receive, send)
        if (upstream_s := scope.get("reef.upstream_s")) is not None:
            took_s = time.perf_counter() - started - upstream_s
            self._overhead.counts[bisect_left(BOUNDS_S, took_s)] += 1
            self._overhead.total_s += took_s
