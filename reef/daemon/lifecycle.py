"""One daemon per state directory: lock, token, discovery file, socket, server. ``serve`` runs in the foreground.

The lock decides who lives, never a process number from a file. Called by ``reef serve``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import re
import secrets
import signal
import socket
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from filelock import FileLock, Timeout
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from reef import __version__
from reef.config import Config
from reef.daemon import logs
from reef.daemon.app import build_app
from reef.daemon.local import settings_of
from reef.daemon.redact import keys_of_address
from reef.daemon.services import Services
from reef.errors import BadConfig
from reef.launch import in_use

log = logging.getLogger("reef.daemon")

_YOUNG_OBJECTS = 20_000
"""A request with a long conversation makes thousands of objects that are gone with it."""
_HEAD_S = 60.0
_HEAD_BYTES = 2**20
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LOCK_S = 0.5
"""Somebody who only asks whether a daemon runs holds the lock for an instant."""


def serve(config: Config, *, echo: bool) -> int:
    """Run the daemon until it is told to stop; returns the exit code. ``echo`` also logs to stderr."""
    home = config.home
    os.umask(0o077)  # for all that is made in it, also by children
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(home / "lock")
    try:
        lock.acquire(timeout=_LOCK_S)
    except Timeout:
        raise in_use(home) from None
    with lock:
        # One that was killed left its process number behind, which may be another program's by now.
        (home / "daemon.json").unlink(missing_ok=True)
        token = _token(config)
        address = keys_of_address(config.service.upstream_url or "")
        masked = [one for one in (token, config.service.upstream_api_key, *address) if one]
        recent = logs.start(home, config.service.log_level, echo=echo, secrets=masked)
        app = build_app(config, token)
        services: Services = app.state.services
        services.log_lines = recent
        listening = _listen(config)
        services.url = _url(config, listening)
        try:
            _write_discovery(home, services, "starting")
            return uvloop.run(_serve(app, services, listening))
        finally:
            listening.close()
            (home / "daemon.json").unlink(missing_ok=True)


class _Protocol(HttpToolsProtocol):
    """Bounds the head of a request in size and time: it comes before the token, and the parser takes whatever comes."""

    _head_bytes = 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(_HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.scope is not None and "method" in self.scope:  # the head is whole
            self._head_bytes = 0
            if self._late is not None:
                self._in_time()
            return
        self._head_bytes += len(data)
        if self._head_bytes > _HEAD_BYTES:
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()
        elif self._late is None:
            self._late = self.loop.call_later(_HEAD_S, self.transport.close)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    """When it is told to stop, ends what calls the daemon and does not end by itself: streams of events, steps with episodes."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services, self._loop = services, asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come; what follows is done on the loop, because a signal may come while the bus's lock is held."""
        self._loop.call_soon_threadsafe(self._services.bus.close)
        self._loop.call_soon_threadsafe(self._services.scenarios.hurry)
        _notify("STOPPING=1")
        super().handle_exit(sig, frame)


async def _serve(app: Any, services: Services, listening: socket.socket) -> int:
    server = _Server(
        uvicorn.Config(
            app,
            http=_Protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            date_header=False,  # a provider's own stands on what it answered
            timeout_graceful_shutdown=20,
            timeout_keep_alive=75,
        ),
        services,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again when it is done; we end in order
    running = asyncio.ensure_future(server.serve(sockets=[listening]))
    while not running.done() and not services.ready and services.failure is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # set from a thread, before any request may come; once per start
    if services.ready:
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not look through it for every thousand requests
        gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
        _write_discovery(services.home, services, "ready")
        log.info("ready at %s", services.url)
        _notify(f"READY=1\nSTATUS=ready at {services.url}")
    if services.failure is not None:
        server.should_exit = True
    await running
    if services.failure is not None:
        raise services.failure
    return 0


def _notify(state: str) -> None:
    """Tell systemd, where it started us as a unit of Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def _listen(config: Config) -> socket.socket:
    host, port = config.service.host, config.service.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: event loops switch Nagle's algorithm off only on sockets that say they are TCP,
    # and with it on every answer waits 40 ms for the client's delayed acknowledgement.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise BadConfig(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="another program has the port: stop it, or choose one with --port (0 picks a free one)",
            field="reef.port",
        ) from error
    return sock


def _url(config: Config, sock: socket.socket) -> str:
    host = config.service.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{sock.getsockname()[1]}"


def _token(config: Config) -> str:
    """The configured token, or the one in the state directory, made on the first start."""
    path = config.home / "token"
    kept = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    if not re.fullmatch(r"[!-~]{0,4096}", config.service.token or kept):  # no client could send it
        raise BadConfig(
            "the token has characters that no header can hold, or too many",
            hint=f"set another reef.token, or remove {path}: a new one is made",
            field="reef.token",
        )
    token = config.service.token or kept or secrets.token_urlsafe(24)  # an emptied file must never open the door
    if token != kept:
        _write_private(path, token + "\n")
    return token


def _write_discovery(home: Path, services: Services, state: str) -> None:
    found = {
        "url": services.url,
        "pid": os.getpid(),
        "started_at": services.started_at,
        "version": __version__,
        "state": state,
        "settings": settings_of(services.config),
    }
    _write_private(home / "daemon.json", json.dumps(found))


def _write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner may read, in one step."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
