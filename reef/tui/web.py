"""The dashboard in a browser: textual-serve behind a door of our own. Loopback only, nothing without the token.

Knows nothing of what is shown: each browser gets a process of ``reef tui`` that draws into its page. Called by reef.cli.tui;
needs the extra web.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web
from textual_serve.server import Server

COOKIE = "reef-web"
_PAGES = Path(__file__).parent / "pages"
_WRONG_S = 0.5
"""How long a wrong token takes to be told: nobody tries many."""
_SESSIONS = 64
_SAFE = {"cache-control": "no-store", "referrer-policy": "same-origin", "x-frame-options": "DENY"}
_POLICY = (
    "default-src 'self'; connect-src 'self' ws://{host}; style-src 'self' 'unsafe-inline'; script-src 'self';"
    " img-src 'self' data:; font-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer(Server):
    """Serves ``command`` on loopback to browsers that have given ``token`` once; ``ready`` is called with the address."""

    def __init__(self, command: str, port: int, token: str, ready: Callable[[str], None]) -> None:
        super().__init__(command, host="127.0.0.1", port=port, title="Reef", templates_path=_PAGES)
        self._token, self._ready = token, ready
        self._sessions: list[str] = []
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    def initialize_logging(self) -> None:
        """Our own talk is enough."""

    async def on_startup(self, app: web.Application) -> None:
        """Say where it is."""
        self._ready(self.public_url)

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()

        @web.middleware
        async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._door(request, handler)

        app.middlewares.append(door)
        app.router.add_post("/login", self._login)
        return app

    async def _door(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Host and Origin first, then the session; a stranger gets a form that says nothing."""
        host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
        if host not in self._hosts or (origin is not None and origin.removeprefix("http://").lower() != host):
            return web.Response(status=403, text="not served here: use the address that reef tui --web printed\n")
        if request.path == "/login" and request.method == "POST":
            return await handler(request)
        cookie = request.cookies.get(COOKIE, "").encode("utf-8", "replace")
        if not any(hmac.compare_digest(cookie, one.encode()) for one in self._sessions):
            return _form("", 401) if request.path == "/" else web.Response(status=401, text="log in first\n")
        response = await handler(request)
        if not response.prepared:
            response.headers.update(_SAFE | {"content-security-policy": _POLICY.format(host=host)})
        return response

    async def _login(self, request: web.Request) -> web.StreamResponse:
        given = str((await request.post()).get("token", "")).strip().encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._token.encode()):
            await asyncio.sleep(_WRONG_S)
            return _form("That is not the token.", 401)
        session = secrets.token_urlsafe(24)
        self._sessions = [*self._sessions[-_SESSIONS + 1 :], session]
        answer = web.Response(status=303, headers={"location": "/", **_SAFE})
        answer.set_cookie(COOKIE, session, httponly=True, samesite="Strict", path="/")
        return answer


def _form(said: str, status: int) -> web.Response:
    page = (_PAGES / "login.html").read_text(encoding="utf-8").replace("{said}", html.escape(said))
    policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    return web.Response(
        text=page, status=status, content_type="text/html", headers={**_SAFE, "content-security-policy": policy}
    )
