"""Addresses: whether the provider can be reached from here, what to do when calls to it fail, and who has a port."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

_CONNECT_S = 3.0


def upstream_fix(code: str) -> str:
    """The way out of a failure that a call to the provider ended with."""
    if code in ("upstream_401", "upstream_402", "upstream_403"):
        return "check the key: what the client sends, or REEF_UPSTREAM_API_KEY of the daemon"
    if code in ("upstream_error", "upstream_timeout"):
        return "start it, or correct its address: reef down, then: reef up --upstream-url URL"
    return "reef records --state failed, and what the provider says of itself"


def without_keys(url: str) -> str:
    """``url`` as it may be shown: no user, no password, no query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def unreachable(url: str) -> str | None:
    """Why nothing takes connections at ``url``; None when something does. Nothing is sent."""
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S):
            return None
    except TimeoutError:
        return f"no answer within {_CONNECT_S:.0f} s"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def holder_of(port: int) -> str | None:
    """The program that listens on ``port``, where the system says so (Linux, and only of one's own programs)."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == "0A" and int(parts[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{parts[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) in inodes for link in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return None
