"""Services: what the routes are given. Made once by app.build_app; holds parts, decides nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from reef.config import Config
from reef.core.histogram import Histogram
from reef.core.records_types import Delivery, Finish
from reef.daemon.logs import Recent
from reef.daemon.redact import SHORTEST_KEY, as_keys, keys_of_address, masked_text, needles
from reef.errors import ReefError, StoreFull, Unavailable
from reef.events import Bus
from reef.inference.base import InferenceBackend
from reef.records import Exchange, RecordStore
from reef.releases import ReleaseChain
from reef.scenario import Scenarios
from reef.store.retention import Retention

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
    backend: InferenceBackend
    scenarios: Scenarios
    engine: Engine | None
    retention: Retention
    url: str = ""
    ready: bool = False
    failure: ReefError | None = None
    started_at: float = field(default_factory=time.time)
    unrecorded: int = 0
    last_store_error: str | None = None
    overhead: Histogram = field(default_factory=Histogram)
    background: set[asyncio.Future[Any]] = field(default_factory=set)
    log_lines: Recent = field(default_factory=Recent)
    changing: threading.Lock = field(default_factory=threading.Lock)
    started_with: Config = field(init=False)
    max_body_bytes: int = field(init=False)
    default_scenario: str = field(init=False)
    keepalive_s: float = field(init=False)
    refuse_unrecorded: bool = field(init=False)
    train_helper_calls: bool = field(init=False)
    secrets: tuple[bytes, ...] = field(init=False)
    unsent: str = field(init=False)
    """A header or a query with this in it is not forwarded: the token, where it is long enough to be told from other text."""
    needles: tuple[bytes, ...] = field(init=False)
    """A text without any of these holds no secret, however it is spelled."""

    def __post_init__(self) -> None:
        """Settings that are read on the path of every request."""
        service, self.started_with = self.config.service, self.config
        self.max_body_bytes = int(service.max_body_mb * 2**20)
        self.default_scenario = service.default_scenario
        self.keepalive_s = service.keepalive_s
        self.refuse_unrecorded = service.on_store_failure == "refuse"
        self.train_helper_calls = service.train_helper_calls
        address = keys_of_address(service.upstream_url or "")
        self.secrets = as_keys((self.token, service.upstream_api_key or "", *address))
        self.unsent = self.token if len(self.token) >= SHORTEST_KEY else "\n"
        self.needles = needles(self.secrets)
        self.scenarios.secrets, self.scenarios.mask = self.secrets, partial(masked_text, keys=self.secrets)

    @property
    def home(self) -> Path:
        """The state directory."""
        return self.config.home

    def not_ready(self) -> Unavailable:
        """The error while the engine is starting."""
        return Unavailable("reef is starting", hint="wait for: reef status", code="starting")

    @property
    def degraded(self) -> str | None:
        """Why answers go out without a receipt now, None while all is well."""
        trouble = self.records.store.trouble
        return self.last_store_error if trouble is None else trouble.message

    def store_trouble(self, trouble: ReefError | None) -> None:
        """The store takes no rows from now on, or takes them again (None); said on its thread."""
        if trouble is None:
            self.last_store_error = None
            self.records.end_abandoned()
        self.retention.wake()
        self.bus.publish("store", None, trouble=None if trouble is None else trouble.code)

    def keep(self, future: asyncio.Future[Any]) -> None:
        """Hold a reference until a background piece of work is done."""
        self.background.add(future)
        future.add_done_callback(self.background.discard)

    def say_recorded(self, exchange: Exchange, finish: Finish, delivery: Delivery) -> None:
        """Tell listeners about a recorded call."""
        self.bus.publish(
            "inference",
            exchange.scenario,
            id=exchange.record_id,
            state=finish.state.value,
            status=delivery.status,
            ms=round(delivery.duration_ms, 1),
            usage=dict(finish.usage),
            release=exchange.release_id,
        )

    def unrecorded_header(self, error: ReefError) -> tuple[str, str]:
        """The header of an answer that goes out without a receipt; raises StoreFull where that is not wanted."""
        if self.refuse_unrecorded:
            raise StoreFull(error.message, hint=error.hint) from error
        self.unrecorded += 1
        if self.last_store_error != error.message:
            log.error("answers go out unrecorded: %s", error.message)
        self.last_store_error = error.message
        self.bus.publish("unrecorded", None, reason=error.code)
        return "x-reef-unrecorded", error.code
