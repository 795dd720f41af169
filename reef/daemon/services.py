"""Services: what the routes are given. Made once by app.build_app; holds parts, decides nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from reef.config import Config
from reef.errors import ReefError, Unavailable
from reef.events import Bus
from reef.inference.base import InferenceBackend
from reef.recipes.base import Recipe
from reef.records import Exchange, ExchangeEnd, RecordStore
from reef.releases import ReleaseChain
from reef.scenario import Scenarios

log = logging.getLogger("reef.daemon")


class Engine(Protocol):
    """A runtime with child processes, as far as the daemon drives them."""

    def start(self) -> None:
        """Start children; blocks until they can serve."""

    def stop(self) -> None:
        """End children."""

    def status(self) -> dict[str, Any]:
        """What runs, in words and numbers."""


@dataclass(slots=True)
class Services:
    """Parts and a few flags. ``ready`` turns true when the first call would be served."""

    config: Config
    token: str
    records: RecordStore
    chain: ReleaseChain
    bus: Bus
    recipe: Recipe
    backend: InferenceBackend
    scenarios: Scenarios
    engine: Engine | None
    url: str = ""
    ready: bool = False
    failure: ReefError | None = None
    started_at: float = field(default_factory=time.time)
    unrecorded: int = 0
    last_store_error: str | None = None
    background: set[asyncio.Future[Any]] = field(default_factory=set)

    @property
    def max_body_bytes(self) -> int:
        """Largest request body."""
        return int(self.config.service.max_body_mb * 2**20)

    @property
    def default_scenario(self) -> str:
        """Scenario of calls that name none; empty refuses them."""
        return self.config.service.default_scenario

    @property
    def keepalive_s(self) -> float:
        """Longest silence on a stream."""
        return self.config.service.keepalive_s

    @property
    def refuse_unrecorded(self) -> bool:
        """True: 507 instead of an answer without a receipt."""
        return self.config.service.on_store_failure == "refuse"

    @property
    def home(self) -> Path:
        """The state directory."""
        return self.config.home

    def require_ready(self) -> None:
        """Raise Unavailable while the engine is starting."""
        if not self.ready:
            raise Unavailable("reef is starting", hint="wait for: reef status", code="starting")

    def keep(self, future: asyncio.Future[Any]) -> None:
        """Hold a reference until a background piece of work is done."""
        self.background.add(future)
        future.add_done_callback(self.background.discard)

    def recorded(self, exchange: Exchange, end: ExchangeEnd) -> None:
        """Tell listeners about a recorded call."""
        self.last_store_error = None
        self.bus.publish(
            "inference",
            exchange.scenario,
            id=exchange.record_id,
            state=end.state.value,
            status=end.meta.get("status"),
            ms=end.meta.get("duration_ms"),
            usage=end.meta.get("usage"),
            release=exchange.release_id,
        )

    def degraded(self, error: ReefError) -> None:
        """An answer went out without a receipt."""
        self.unrecorded += 1
        if self.last_store_error != error.message:
            log.error("answers go out unrecorded: %s", error.message)
        self.last_store_error = error.message
        self.bus.publish("unrecorded", None, reason=error.code)
