"""Histogram: how long something took, counted in buckets. Filled in line on hot paths, read at a scrape."""

from __future__ import annotations

from dataclasses import dataclass, field

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets, in seconds; one more bucket takes what is beyond."""


@dataclass(slots=True)
class Histogram:
    """One thread writes: ``counts[bisect_left(BOUNDS_S, seconds)] += 1; total_s += seconds``, without a call of its own."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0
