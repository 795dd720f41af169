"""What a way to judge is asked and told: tasks, slots, pairs, settings; and what all of them keep.

Knows nothing of episodes, agents or stores: a rule is asked for slots, told their results, and can be fed from a stored receipt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from reef.core.artifacts import Decision, Verdict
from reef.errors import BadConfig

PAIRED = "paired-e"
RULES = (PAIRED, "wins", "floor", "mean")


@dataclass(frozen=True, slots=True)
class Task:
    """What an episode is about; a ``protected`` one may not get worse, whatever is gained elsewhere."""

    name: str
    protected: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One paired episode to run: the same task and seed for both sides, one right after the other.

    ``stage`` is ``screen`` (its results are not used as evidence), ``test`` or ``guard`` (protected tasks, before publishing).
    """

    number: int
    stage: str
    task: str
    seed: int
    candidate_first: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """A slot's result: both scores, each in [0, 1]. What failed for another reason than the agent's is run again instead."""

    slot: Slot
    candidate: float
    incumbent: float
    candidate_tokens: int | None = None
    incumbent_tokens: int | None = None

    @property
    def saved(self) -> float | None:
        """The difference of the tokens of both sides by the larger, in [-1, 1], above 0 when the candidate needed fewer;
        None where not known."""
        if self.candidate_tokens is None or self.incumbent_tokens is None:
            return None
        most = max(self.candidate_tokens, self.incumbent_tokens)
        return (self.incumbent_tokens - self.candidate_tokens) / most if most else 0.0

    @property
    def difference(self) -> float:
        """What the candidate is ahead by, in [-1, 1]."""
        return self.candidate - self.incumbent


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How a candidate is judged. ``pairs`` bounds the test, ``screen`` pairs come before it and ``guard`` pairs follow it.

    ``margin`` above 0 asks only that the candidate is not worse by more (for changes that make things shorter or cheaper),
    and ``saving`` that it needs fewer tokens by more than that share.
    ``graded`` says that scores lie anywhere in [0, 1]; else they are 0 or 1. ``repeats`` and ``floor`` are for the simple rules.
    """

    rule: str = PAIRED
    alpha: float = 0.05
    screen: int = 10
    pairs: int = 200
    guard: int = 2
    futility: float = 5.0
    margin: float = 0.0
    saving: float = 0.0
    graded: bool = False
    repeats: int = 1
    floor: float = 0.0

    def __post_init__(self) -> None:
        wrong = [
            f"{name} must be {rule}, not {value!r}"
            for name, value, rule, right in (
                ("rule", self.rule, "one of " + ", ".join(RULES), self.rule in RULES),
                ("alpha", self.alpha, "above 0 and below 0.5", 0 < self.alpha < 0.5),
                ("screen", self.screen, "0 or more", self.screen >= 0),
                ("pairs", self.pairs, "1 or more", self.pairs >= 1),
                ("guard", self.guard, "0 or more", self.guard >= 0),
                ("futility", self.futility, "above 1", self.futility > 1),
                ("margin", self.margin, "0 or more and below 1", 0 <= self.margin < 1),
                ("saving", self.saving, "0 or more and below 1", 0 <= self.saving < 1),
                (
                    "saving",
                    self.saving,
                    "0 without a margin above 0, or by another rule than paired-e",
                    self.saving == 0 or (self.margin > 0 and self.rule == PAIRED),
                ),
                ("repeats", self.repeats, "1 or more", self.repeats >= 1),
                ("floor", self.floor, "between 0 and 1", 0 <= self.floor <= 1),
            )
            if not right
        ]
        if wrong:
            raise BadConfig(f"gate: {wrong[0]}", hint="see: reef gate plan --help")


class Rule(Protocol):
    """A way to judge. ``slots`` gives what to run next, in order; ``add`` takes results in that order."""

    verdict: Verdict | None
    trajectory: list[float]
    level: float

    def slots(self, count: int) -> list[Slot]:
        """The next ``count`` slots at most; none when there is a verdict."""
        ...

    def add(self, pair: Pair) -> None:
        """Count one result; may set ``verdict``."""
        ...

    def cut(self, why: str) -> None:
        """End without a verdict about the candidate."""
        ...


@dataclass(slots=True)
class Tally:
    """Wins, losses and ties of the candidate."""

    wins: int = 0
    losses: int = 0
    ties: int = 0

    def add(self, difference: float) -> None:
        """Count one difference."""
        if difference > 0:
            self.wins += 1
        elif difference < 0:
            self.losses += 1
        else:
            self.ties += 1

    @property
    def runs(self) -> int:
        """How many there were."""
        return self.wins + self.losses + self.ties

    def __str__(self) -> str:
        return f"{self.wins} won, {self.losses} lost, {self.ties} equal"


@dataclass(slots=True)
class Judged:
    """What every rule keeps: the pairs in order, and how each protected task fares."""

    settings: GateSettings
    tasks: Sequence[Task]
    seed: int
    level: float
    verdict: Verdict | None = None
    pairs: list[Pair] = field(default_factory=list)
    trajectory: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadConfig("gate: there are no tasks to compare on", hint="add a folder with a prompt and a check")

    def cut(self, why: str) -> None:
        """End before a verdict, because a budget is spent: the evidence so far decides nothing."""
        self._stop(Decision.INCONCLUSIVE, f"cut short after {len(self.pairs)} pairs: {why}", f"cut: {why}")

    def _slot(self, number: int, stage: str, task: str) -> Slot:
        """Seed and order come from the slot's number alone, so that a killed evaluation goes on with the same ones."""
        draw = random.Random(f"{self.seed}/{number}/order")
        return Slot(number, stage, task, draw.getrandbits(31), draw.random() < 0.5)

    def _keep(self, pair: Pair) -> None:
        for side in (pair.candidate, pair.incumbent):
            if not (0.0 <= side <= 1.0) or (side not in (0.0, 1.0) and not self.settings.graded):
                kind = "between 0 and 1" if self.settings.graded else "0 or 1 (graded: true allows what lies between)"
                raise BadConfig(f"gate: a score must be {kind}, task {pair.slot.task!r} gave {side!r}")
        self.pairs.append(pair)

    def _protected(self, *, screen: bool) -> dict[str, Tally]:
        """How each protected task fares, in the screen or after it."""
        found = {task.name: Tally() for task in self.tasks if task.protected}
        for one in self.pairs:
            if one.slot.task in found and (one.slot.stage == "screen") is screen:
                found[one.slot.task].add(one.difference)
        return found

    def _regressed(self, *, screen: bool = False) -> str:
        """The protected tasks that lost more often than they won, empty for none."""
        tallies = self._protected(screen=screen)
        return ", ".join(sorted(name for name, tally in tallies.items() if tally.losses > tally.wins))

    def _stop(self, decision: Decision, why: str, stopped: str) -> None:
        self.verdict = Verdict(decision, self.settings.rule, why, self._evidence(stopped))

    def _evidence(self, stopped: str) -> dict[str, Any]:
        """All that ``replay`` needs, as JSON."""
        settings, tokens = asdict(self.settings), self.settings.saving > 0
        if not tokens:  # receipts from before there was such a setting replay to the same bits
            del settings["saving"]
        return {
            "settings": settings,
            "tasks": [[task.name, task.protected] for task in self.tasks],
            "seed": self.seed,
            "level": self.level,
            "pairs": [
                [one.slot.number, one.slot.stage, one.slot.task, one.slot.seed, one.slot.candidate_first,
                 one.candidate, one.incumbent, *((one.candidate_tokens, one.incumbent_tokens) if tokens else ())]
                for one in self.pairs
            ],
            "trajectory": list(self.trajectory),
            "stopped": stopped,
        }  # fmt: skip
