"""Tells whether the clock on the wall can be believed, by a clock that nobody can set.

What only costs something when it is done too early (to remove old bodies, to give up on a parked report) asks here first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("reef.store")

_DISTRUST_S = 24 * 3600.0
"""So long no age is believed after the clock has jumped."""
_JUMP_S = 600.0


class SteadyClock:
    """``after_s`` is how long it must have gone steadily since the start before it is believed at all."""

    def __init__(
        self, after_s: float, *, wall: Callable[[], float] = time.time, running: Callable[[], float] | None = None
    ) -> None:
        self._wall, self._running = wall, running or _since_boot
        self._ahead = self._wall() - self._running()
        self._believed_from = self._running() + after_s

    def believed(self) -> bool:
        """True once it has gone as fast as time does for long enough."""
        ahead = self._wall() - self._running()
        if abs(ahead - self._ahead) > _JUMP_S:
            log.warning("the clock has jumped by %.0f s: nothing counts as old for a day", ahead - self._ahead)
            self._believed_from = self._running() + _DISTRUST_S
        self._ahead = ahead
        return self._running() >= self._believed_from


def _since_boot() -> float:
    """Seconds that no one can set, sleep of the machine included where the system counts it."""
    # Linux leaves sleep out of its monotonic clock; elsewhere that one counts it, and Python's own monotonic() may not.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
