"""Starts, finds and stops the daemon process of a state directory. Used by the CLI, the demo, benchmarks and tests.

Knows the discovery file and the lock; nothing of what the daemon does. The lock decides who lives, not a process number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reef.client import ReefClient, discovery
from reef.errors import DaemonUnreachable, ReefError, Unavailable


class StartFailed(ReefError):
    """What the background daemon said before it ended; its exit code becomes the caller's."""

    def __init__(self, message: str, hint: str, exit_code: int) -> None:
        super().__init__(message, hint=hint, code="start_failed")
        self.exit_code = exit_code if exit_code > 0 else 1


def spawn(home: Path, settings: Mapping[str, str], *, config: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a daemon on ``home`` in the background; secrets travel in the environment, not in the process list."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = home / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    environ = dict(os.environ)
    arguments = [sys.executable, "-m", "reef.cli.main", "serve", "--quiet", "--yes", "--home", str(home)]
    arguments += ["-c", str(config)] if config is not None else []
    for key, value in settings.items():
        if key in ("reef.upstream_api_key", "reef.token"):
            environ[f"REEF_{key[5:].upper()}"] = value
        else:
            arguments.append(f"--{key}={value}")
    with open(logs / "start.log", "wb", opener=partial(os.open, mode=0o600)) as errors:
        return subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=environ, start_new_session=True
        )


def wait_ready(
    child: subprocess.Popen[bytes], home: Path, wait_s: float, *, tick: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """What the daemon says of itself once it is ready; raises StartFailed with its last words, or Unavailable.

    Where another start was faster, ``child`` has ended and the daemon that serves ``home`` is answered with.
    """
    deadline = time.monotonic() + wait_s
    while True:
        found = discovery(home)
        if found is not None and found["pid"] == child.pid and found["state"] == "ready":
            return found
        if child.poll() is not None and locked(home):
            if (other := running(home)) is not None:
                return other
        elif child.poll() is not None:
            said = (home / "logs" / "start.log").read_text(encoding="utf-8", errors="replace").strip()
            message, _, hint = said.removeprefix("error: ").partition("\n  try: ")
            raise StartFailed(message or "the daemon ended at once", hint or "see: reef logs", child.returncode)
        if time.monotonic() > deadline:
            raise Unavailable(
                f"not ready after {wait_s:.0f} s", hint="it goes on starting; see: reef status, reef logs"
            )
        tick()
        time.sleep(0.03)


def running(home: Path) -> dict[str, Any] | None:
    """What the live daemon of ``home`` says of itself; None when none answers."""
    found, token = discovery(home), home / "token"
    if found is None or not locked(home) or not token.exists():
        return None
    with ReefClient(str(found["url"]), token.read_text(encoding="utf-8", errors="replace").strip()) as client:
        return found if client.ready() else None


def in_use(home: Path) -> DaemonUnreachable:
    """The error of a second daemon on a state directory."""
    found = discovery(home)
    who = "another daemon" if found is None else f"the daemon with pid {found['pid']}"
    return DaemonUnreachable(f"{who} already uses {home}", hint="see it with: reef status", code="already_running")


def locked(home: Path) -> bool:
    """True while a daemon holds the directory."""
    if not (home / "lock").exists():
        return False
    from filelock import FileLock, Timeout  # with what it loads a sixth of what a command takes to start

    try:
        with FileLock(home / "lock").acquire(timeout=0):
            return False
    except Timeout:
        return True


def stop(home: Path, wait_s: float) -> bool:
    """Ask the daemon of ``home`` to end and wait for it; False when none ran. Raises Unavailable when it takes longer."""
    found = discovery(home)
    if found is None or not locked(home):
        return False
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself since
        os.kill(int(found["pid"]), signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while locked(home):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the daemon (pid {found['pid']}) is still stopping after {wait_s:.0f} s", hint="see: reef logs"
            )
        time.sleep(0.05)
    return True
