"""Real parts for tests: a daemon process on its own home, a scripted provider on its own thread, the tiny model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from reef.client import ReefClient
from reef.inference.testing import Script, ScriptedProvider
from reef.launch import spawn, stop, wait_ready

WAIT_S = 120.0


class Served(Protocol):
    """Something that serves while its context is open."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: Any) -> None: ...


P = TypeVar("P", bound=Served)


def eventually(check: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    """The first truthy answer of ``check``; fails when none comes in time."""
    deadline = time.monotonic() + wait_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"still {found!r} after {wait_s:.0f} s"
        time.sleep(0.05)


def provider(*scripts: Script) -> contextlib.AbstractContextManager[ScriptedProvider]:
    """A scripted provider that runs on its own thread, so that plain tests and child processes can call it."""
    return on_thread(ScriptedProvider(*scripts))


@contextlib.contextmanager
def on_thread(server: P) -> Iterator[P]:
    """``server`` on an event loop of its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Daemon:
    """One daemon process on ``home``; started and stopped, or killed, as often as a test wants."""

    def __init__(self, home: Path, settings: dict[str, str]) -> None:
        self.home = home
        self.settings = {"reef.port": "0", **settings}
        self.child: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self, *, failpoint: str | None = None) -> None:
        """Start and wait until it is ready; ``failpoint`` arms one in the child."""
        if failpoint is not None:
            os.environ["REEF_FAILPOINT"] = failpoint
        try:
            self.child = spawn(self.home, self.settings)
        finally:
            os.environ.pop("REEF_FAILPOINT", None)
        self.url = str(wait_ready(self.child, self.home, WAIT_S)["url"])

    def client(self, scenario: str | None = "s", timeout_s: float = 60.0) -> ReefClient:
        """A new client."""
        token = (self.home / "token").read_text(encoding="utf-8").strip()
        return ReefClient(self.url, token, scenario=scenario, timeout_s=timeout_s)

    def kill(self) -> None:
        """kill -9, as a power cut of the process."""
        assert self.child is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def died(self, wait_s: float = WAIT_S) -> bool:
        """Wait for the process to end by itself."""
        assert self.child is not None
        try:
            self.child.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """A clean stop."""
        if self.child is not None and self.child.poll() is None:
            stop(self.home, WAIT_S)
            self.child.wait(WAIT_S)


@contextlib.contextmanager
def daemon(home: Path, **settings: str) -> Iterator[Daemon]:
    """A running daemon; keys are given as reef_port="0", training_seed="1"."""
    one = Daemon(home, {key.replace("_", ".", 1): value for key, value in settings.items()})
    one.start()
    try:
        yield one
    finally:
        one.stop()
