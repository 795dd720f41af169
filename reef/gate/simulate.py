"""Candidates of a known effect through the real rules: how often each verdict comes and what it costs to know.

Only the episodes are simulated. Called by ``reef gate simulate`` and ``reef gate plan``, by tests and by benchmarks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reef.core.artifacts import Decision
from reef.gate.receipt import start
from reef.gate.rule import GateSettings, Pair, Slot, Task

_KINDS = ((0.35, 0.05), (0.35, 0.95), (0.30, 0.5))
"""Shares of tasks and their pass rates: nearly always failed, nearly always passed, flaky."""

Play = Callable[[Slot, random.Random], tuple[float, float] | Pair]
"""Scores of candidate and incumbent in one pair, or the pair itself."""
Population = Callable[[random.Random], tuple[Sequence[Task], Play]]
"""Draws the tasks that one candidate is compared on."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """How ``runs`` candidates ended; ``pairs`` are those each needed, screen and guard included."""

    runs: int
    published: int
    inconclusive: int
    pairs: tuple[int, ...]

    @property
    def mean_pairs(self) -> float:
        """Pairs a candidate needed, on average."""
        return sum(self.pairs) / len(self.pairs)


def simulate(
    settings: GateSettings,
    population: Population,
    *,
    runs: int,
    seed: int,
    level: float | None = None,
    tick: Callable[[], object] = lambda: None,
) -> Simulated:
    """``runs`` candidates one after the other, each with tasks of its own; ``tick`` is called after each."""
    published = inconclusive = 0
    pairs: list[int] = []
    for run in range(runs):
        draw = random.Random(f"{seed}/{run}")
        tasks, play = population(draw)
        rule = start(settings, tasks, draw.getrandbits(31), level)
        count = 0
        while slots := rule.slots(1):
            found = play(slots[0], draw)
            rule.add(found if isinstance(found, Pair) else Pair(slots[0], *found))
            count += 1
        assert rule.verdict is not None
        published += rule.verdict.decision is Decision.ACCEPT
        inconclusive += rule.verdict.decision is Decision.INCONCLUSIVE
        pairs.append(count)
        tick()
    return Simulated(runs, published, inconclusive, tuple(pairs))


def typical(count: int, effect: float) -> Population:
    """``count`` tasks as agents' tasks are (docs/gate.md): pass rates are higher with the candidate, by ``effect`` on average.

    Raises ValueError when pass rates cannot differ by that much.
    """
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean_shift(middle) < effect else (low, middle)
    if abs(_mean_shift(low) - effect) > 1e-6:
        raise ValueError(f"pass rates of such tasks cannot differ by {effect:+g} on average")
    names = [f"task-{at}" for at in range(count)]
    shares, rates = zip(*_KINDS, strict=True)

    def population(draw: random.Random) -> tuple[Sequence[Task], Play]:
        kinds = dict(zip(names, draw.choices(rates, shares, k=count), strict=True))

        def play(slot: Slot, draw: random.Random) -> tuple[float, float]:
            rate = kinds[slot.task]
            return float(draw.random() < rate + low), float(draw.random() < rate)

        return [Task(name) for name in names], play

    return population


def differing(effect: float, discordance: float) -> Population:
    """One kind of pair: both sides differ with chance ``discordance``, and the candidate is ahead by ``effect`` on average."""
    if not abs(effect) <= discordance <= 1:
        raise ValueError(f"an effect of {effect:+g} needs pairs that differ at least that often, not {discordance:g}")
    won = (discordance + effect) / 2

    def play(slot: Slot, draw: random.Random) -> tuple[float, float]:
        at = draw.random()
        return (1.0, 0.0) if at < won else (0.0, 1.0) if at < discordance else (1.0, 1.0)

    return lambda draw: ([Task("any")], play)


def _mean_shift(shift: float) -> float:
    return sum(share * (min(max(rate + shift, 0.0), 1.0) - rate) for share, rate in _KINDS)
