"""Where the dashboard's data comes from: a daemon, found by its home or named by its address, or recorded data.

Knows addresses and tokens; nothing of what is asked for. Used by store.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from reef.client import AsyncReefClient, door_of, token_in
from reef.errors import Unauthorized

_TIMEOUT_S = 15.0


class Source(Protocol):
    """What can be asked; AsyncReefClient is one, demo.Demo another."""

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        """GET a JSON document; raises ReefError."""
        ...

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST a JSON document; raises ReefError."""
        ...

    async def change_knobs(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Change numbers of the recipe; raises ReefError."""
        ...

    def events(self, after: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """What happens, until the daemon ends; raises ReefError."""
        ...

    async def close(self) -> None:
        """Give back what it holds."""
        ...


Connect = Callable[[], Source]


def of_home(home: Path) -> Connect:
    """Sources of whichever daemon serves ``home`` now: after a restart it may listen elsewhere."""
    return lambda: AsyncReefClient(*door_of(home), actor="tui", timeout_s=_TIMEOUT_S)


def of_url(url: str, home: Path) -> Connect:
    """Sources of a daemon by its address; its token is that of REEF_TOKEN, or else of ``home``."""

    def connect() -> Source:
        token = os.environ.get("REEF_TOKEN", "")
        if not token and not (home / "token").is_file():
            raise Unauthorized(f"no token for {url}", hint="set REEF_TOKEN to that daemon's token")
        return AsyncReefClient(url.rstrip("/"), token or token_in(home), actor="tui", timeout_s=_TIMEOUT_S)

    return connect
