"""Figures of calls, from the events that the dashboard has seen: rate, times, errors. Pure; a daemon keeps none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WINDOW_S = 60.0
_BUCKETS = 12


@dataclass(frozen=True, slots=True)
class Traffic:
    """Calls of the last minute."""

    calls: int
    rate: float
    p50_ms: float | None
    p95_ms: float | None
    errors: int
    buckets: tuple[float, ...]
    """Calls in each twelfth of the minute, the newest last."""


def traffic(events: Sequence[Mapping[str, Any]], now: float) -> Traffic:
    """What ``events`` (newest first) say of the minute before ``now``."""
    times: list[float] = []
    errors, buckets = 0, [0.0] * _BUCKETS
    for event in events:
        age = now - float(event["at"])
        if age > _WINDOW_S:
            break
        if event["kind"] != "inference":
            continue
        data = event["data"]
        times.append(float(data.get("ms") or 0.0))
        errors += data.get("state") not in ("complete", None) or int(data.get("status") or 0) >= 400
        buckets[max(0, _BUCKETS - 1 - int(age / _WINDOW_S * _BUCKETS))] += 1
    times.sort()
    return Traffic(len(times), len(times) / _WINDOW_S, _share(times, 0.5), _share(times, 0.95), errors, tuple(buckets))


def _share(times: Sequence[float], share: float) -> float | None:
    return times[min(len(times) - 1, int(len(times) * share))] if times else None
