"""What the dashboard knows, as one immutable Snapshot, and the two loops that renew it: status, and the event stream.

Everything runs on the app's event loop and waits only for the network, so leaving or pausing is a cancellation. Knows no widgets:
whoever shows the data is called with the new snapshot and the names of the fields that changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from reef.client import path_part
from reef.errors import DaemonUnreachable, ReefError
from reef.tui.shape import Checked
from reef.tui.source import Connect, Source

Data = Mapping[str, Any]

WAITS_S = (1.0, 2.0, 5.0, 10.0)
POLL_S, AWAY_POLL_S = 1.0, 5.0
DRAIN_S = 0.25
KEPT_EVENTS = 500
_CHAINS, _RELEASES, _RECORDS = 20, 200, 200
_CHAIN_EVENTS = frozenset({"step", "release", "scenario", "ready"})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is known at one moment. Documents are as the daemon's API gives them."""

    link: str = "connecting"
    """connecting, live or down."""
    address: str = ""
    trouble: str = ""
    """Why the last attempt failed, with its hint."""
    retry_at: float = 0.0
    status: Data = field(default_factory=dict)
    status_at: float | None = None
    """When the daemon answered last."""
    scenario: str | None = None
    """The one that is shown."""
    chains: Mapping[str, tuple[Data, ...]] = field(default_factory=dict)
    """Releases by scenario, newest first."""
    steps: tuple[Data, ...] = ()
    """Of the scenario that is shown, newest first."""
    records: tuple[Data, ...] = ()
    """The same; without bodies."""
    events: tuple[Data, ...] = ()
    """Newest first."""

    @property
    def scenarios(self) -> Sequence[Data]:
        """All scenarios, oldest first."""
        found: Sequence[Data] = self.status.get("scenarios", ())
        return found

    @property
    def chosen(self) -> Data:
        """The scenario that is shown; empty when there is none."""
        return next((row for row in self.scenarios if row["name"] == self.scenario), {})

    @property
    def releases(self) -> tuple[Data, ...]:
        """The chain of the scenario that is shown, newest first."""
        return self.chains.get(self.scenario or "", ())

    def release(self, release_id: str | None) -> Data:
        """One release of it; empty when it is not among the newest."""
        return next((row for row in self.releases if row["release_id"] == release_id), {})


ALL = frozenset(one.name for one in fields(Snapshot))
"""The names of all fields: what has changed for whoever has seen nothing yet."""


class Store:
    """Keeps the snapshot; ``poll`` and ``follow`` are endless and belong into workers."""

    def __init__(
        self,
        connect: Connect,
        changed: Callable[[Snapshot, frozenset[str]], None],
        *,
        scenario: str | None = None,
        clock: Callable[[], float] = time.time,
        waits_s: Sequence[float] = WAITS_S,
    ) -> None:
        self.snapshot = Snapshot(scenario=scenario)
        self._connect = connect
        self._changed = changed
        self._clock = clock
        self._waits_s = waits_s
        self.away = False
        """Nobody looks: the daemon is asked less often."""
        self._source: Source | None = None
        self._up = asyncio.Event()
        self._hurry = asyncio.Event()
        self._queue: deque[Data] = deque(maxlen=KEPT_EVENTS)
        self._last: tuple[Any, int] = (None, 0)
        self._marks: dict[str, object] = {}
        self._stale: set[str] = set()

    # -- what the app does

    def hurry(self) -> None:
        """Ask the daemon now."""
        self._hurry.set()

    def show(self, scenario: str) -> None:
        """Show another scenario."""
        if scenario != self.snapshot.scenario:
            self._update(scenario=scenario, steps=(), records=())
            self._marks.clear()
            self.hurry()

    def connect_to(self, connect: Connect) -> None:
        """Use another daemon; what was known of the old one is forgotten."""
        self._connect, self._last = connect, (None, 0)
        self._drop()
        self._queue.clear()
        self._update(
            link="connecting", trouble="", status={}, status_at=None, scenario=None, chains={}, steps=(), records=(),
            events=(),
        )  # fmt: skip
        self.hurry()

    @property
    def source(self) -> Source:
        """For one question or act; raises DaemonUnreachable while there is no daemon."""
        if self._source is None:
            raise DaemonUnreachable(self.snapshot.trouble or "no daemon answers", hint="start it with: reef up")
        return self._source

    async def close(self) -> None:
        """Close the connection."""
        if self._source is not None:
            await self._source.close()

    # -- the loops

    async def poll(self) -> None:
        """Ask for the status again and again; while nobody answers, after 1, 2, 5, then every 10 s."""
        failures = 0
        while True:
            try:
                await self._ask()
                failures, wait_s = 0, AWAY_POLL_S if self.away else POLL_S
            except (ReefError, OSError) as error:
                wait_s = self._waits_s[min(failures, len(self._waits_s) - 1)]
                failures += 1
                self._failed(error, wait_s)
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), wait_s)

    async def follow(self) -> None:
        """Read what happens into the queue; begins again where it broke off."""
        while True:
            await self._up.wait()
            source, after = self._source, self._last[1]
            with contextlib.suppress(ReefError):
                if source is not None:
                    async for event in source.events(after):
                        self._queue.append(event)
                        self._last = (self._last[0], int(event["id"]))
            await asyncio.sleep(self._waits_s[0])

    async def drain(self) -> None:
        """Put what has queued up into the snapshot, at most four times a second."""
        while True:
            await asyncio.sleep(POLL_S if self.away else DRAIN_S)
            self.take()

    def take(self) -> None:
        """One turn of ``drain``."""
        if not self._queue:
            return
        new = [self._queue.popleft() for _ in range(len(self._queue))]
        self._stale |= {str(event["scenario"]) for event in new if event["kind"] in _CHAIN_EVENTS}
        if self._stale:
            self.hurry()
        self._update(events=(*reversed(new), *self.snapshot.events)[:KEPT_EVENTS])

    # -- inside

    async def _ask(self) -> None:
        source = self._source or Checked(self._connect())
        try:
            status = await source.get("/reef/status")
            if self._last[0] != (pid := status["daemon"]["pid"]):  # another daemon counts its events from one
                self._last = (pid, 0)
            await self._renew(source, status)
        except BaseException:
            if source is not self._source:
                await source.close()
            raise
        self._source = source
        self._up.set()

    async def _renew(self, source: Source, status: Data) -> None:
        names = [str(row["name"]) for row in status["scenarios"]]
        scenario = self.snapshot.scenario
        if scenario not in names:
            scenario = names[0] if names else None
        found: dict[str, Any] = {}
        chains = {name: rows for name, rows in self.snapshot.chains.items() if name in names}
        for row in status["scenarios"][:_CHAINS]:
            name, shown = str(row["name"]), row["name"] == scenario
            path, mark = f"/reef/scenarios/{path_part(name)}", (row["step"], row["release_id"], row["state"], shown)
            if name in self._stale or self._marks.get(name) != mark:
                chains[name] = tuple(
                    (await source.get(f"{path}/releases", limit=_RELEASES if shown else 12))["releases"]
                )
                if shown:
                    found["steps"] = tuple((await source.get(f"{path}/steps", limit=_RELEASES))["steps"])
                self._marks[name] = mark
                self._stale.discard(name)
            if shown and self._marks.get("records") != (name, row["counts"]):
                found["records"] = tuple((await source.get(f"{path}/records", limit=_RECORDS))["records"])
                self._marks["records"] = (name, row["counts"])
        self._stale &= set(names)
        self._update(
            link="live", address=source.url, trouble="", status=status, status_at=self._clock(), scenario=scenario,
            chains=chains, **found,
        )  # fmt: skip

    def _failed(self, error: Exception, wait_s: float) -> None:
        said = error.message if isinstance(error, ReefError) else str(error)
        if hint := getattr(error, "hint", ""):
            said += f" ({hint})"
        self._drop()
        self._update(link="down", trouble=said, retry_at=self._clock() + wait_s)

    def _drop(self) -> None:
        self._up.clear()
        source, self._source = self._source, None
        self._marks.clear()
        if source is not None:
            self._closing = asyncio.get_running_loop().create_task(source.close())

    def _update(self, **values: Any) -> None:
        """Change what is not equal, and say what that is."""
        changed = {name: value for name, value in values.items() if getattr(self.snapshot, name) != value}
        if changed:
            self.snapshot = replace(self.snapshot, **changed)
            self._changed(self.snapshot, frozenset(changed))
