"""The in-process bus: what happened, numbered, with a bounded replay. Feeds the status stream and wakes readers.

Knows nothing of who listens. Published to from any thread.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

_BACKLOG = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; ``event_id`` rises by one."""

    event_id: int
    kind: str
    scenario: str | None
    at: float
    data: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "id": self.event_id,
            "kind": self.kind,
            "scenario": self.scenario,
            "at": self.at,
            "data": dict(self.data),
        }


class Bus:
    """Keeps the newest events and hands new ones to every listener; a slow listener loses the oldest, never blocks."""

    def __init__(self, keep: int = 2000) -> None:
        self._kept: deque[Event] = deque(maxlen=keep)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._listeners: set[_Listener] = set()
        self._closed = False
        self.listened = False
        """True while somebody listens; what happens on every request is only published then."""

    def publish(self, kind: str, scenario: str | None = None, **data: Any) -> None:
        """Say that something happened."""
        with self._lock:
            event = Event(next(self._numbers), kind, scenario, time.time(), data)
            self._kept.append(event)
            listeners = list(self._listeners) if self._listeners else ()
        for listener in listeners:
            listener.loop.call_soon_threadsafe(listener.put, event)

    def close(self) -> None:
        """Let every listener end: the daemon is stopping, and nobody may wait for what will not come."""
        with self._lock:
            self._closed = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener.loop.call_soon_threadsafe(listener.put, None)

    def recent(self, after: int = 0, limit: int = 200) -> list[Event]:
        """Kept events with a number above ``after``, oldest first, the newest ``limit`` of them."""
        with self._lock:
            found = [event for event in self._kept if event.event_id > after]
        return found[-limit:]

    async def listen(self, after: int | None = None) -> AsyncIterator[Event]:
        """Events as they happen, until ``close``; with ``after``, first the kept ones beyond that number."""
        listener = _Listener(asyncio.get_running_loop())
        with self._lock:
            self._listeners.add(listener)
            self.listened = True
            if self._closed:
                listener.put(None)
            backlog = [] if after is None else [event for event in self._kept if event.event_id > after]
        seen = 0
        try:
            for kept in backlog:
                seen = kept.event_id
                yield kept
            while (event := await listener.get()) is not None:
                if event.event_id > seen:
                    yield event
        finally:
            with self._lock:
                self._listeners.discard(listener)
                self.listened = bool(self._listeners)


class _Listener:
    """A bounded queue on one event loop; None in it is the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._events: deque[Event | None] = deque(maxlen=_BACKLOG)
        self._arrived = asyncio.Event()

    def put(self, event: Event | None) -> None:
        self._events.append(event)
        self._arrived.set()

    async def get(self) -> Event | None:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()
