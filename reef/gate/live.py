"""After publishing: do people's own reports still say that a release is no worse than the one before it?

A confidence sequence holds at every moment at once, so that it may be looked at after each report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LARGEST_BET = 0.5


@dataclass(frozen=True, slots=True)
class Live:
    """Mean scores of the reports of two releases, and bounds of their difference (new minus old) at level ``alpha``."""

    new: float | None
    old: float | None
    new_count: int
    old_count: int
    low: float
    high: float

    @property
    def worse(self) -> bool:
        """The new release is worse, beyond what chance explains."""
        return self.high < 0


def compare(new: Sequence[float], old: Sequence[float], alpha: float = 0.05) -> Live:
    """Bounds for the difference of two means of scores in [0, 1], in the order they came; each mean with half of ``alpha``."""
    low_new, high_new = mean_bounds(new, alpha / 2)
    low_old, high_old = mean_bounds(old, alpha / 2)
    return Live(_mean(new), _mean(old), len(new), len(old), low_new - high_old, high_new - low_old)


def mean_bounds(scores: Sequence[float], alpha: float) -> tuple[float, float]:
    """Lower and upper bound of the mean of scores in [0, 1], at every moment right with probability 1 - ``alpha``.

    The empirical Bernstein confidence sequence with predictable weights of Waudby-Smith and Ramdas 2024 (theorem 2): exact for
    any number of scores, without an assumption on how they are distributed.
    """
    total = squares = weights = weighted = spread = 0.0
    for number, score in enumerate(scores, start=1):
        mean = (0.5 + total) / number
        variance = (0.25 + squares) / number
        weight = min(math.sqrt(2 * math.log(2 / alpha) / (variance * number * math.log1p(number))), _LARGEST_BET)
        weights += weight
        weighted += weight * score
        spread += (score - mean) ** 2 * (-math.log1p(-weight) - weight)
        total += score
        squares += (score - (0.5 + total) / (number + 1)) ** 2
    if not weights:
        return 0.0, 1.0
    middle, half = weighted / weights, (math.log(2 / alpha) + spread) / weights
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _mean(scores: Sequence[float]) -> float | None:
    return sum(scores) / len(scores) if scores else None
