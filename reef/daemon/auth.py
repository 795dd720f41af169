"""The door: Host, Origin and token are checked before any route is looked up. Errors leave here in the route's shape.

Knows nothing of what lies behind it.
"""

from __future__ import annotations

import hmac
import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from reef.daemon.wire import error_response
from reef.errors import Forbidden, ReefError, Unauthorized

log = logging.getLogger("reef.daemon")

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})


class Door:
    """ASGI middleware. ``hosts`` are the names this daemon may be called by (any when it listens beyond loopback)."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            await self._app(scope, receive, send)
        except ReefError as error:
            await error_response(scope["path"], error)(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        host, origin, tokens = "", "", []
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                tokens.append(value[7:].strip())
            elif name in (b"x-api-key", b"x-reef-token"):
                tokens.append(value.strip())
        name_of_host = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._hosts is not None and name_of_host.lower() not in self._hosts:
            raise Forbidden(f"Host {host[:80]!r} is not served here", hint="use the address that reef status shows")
        if origin and origin.split("://", 1)[-1].lower() != host.lower():
            raise Forbidden("calls from web pages of another origin are refused")
        if scope["path"] == "/healthz":
            return
        if not any(hmac.compare_digest(token, self._token) for token in tokens):
            raise Unauthorized(
                "no token" if not tokens else "wrong token",
                hint="send Authorization: Bearer <token>; it lies in the file token of the state directory",
            )
