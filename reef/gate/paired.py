"""The paired sequential test: which pair of episodes to run next, when to stop, and what has been found.

Knows nothing of episodes, agents or stores: it is asked for slots, told their results, and can be fed from a stored receipt.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from reef.core.artifacts import Decision, Verdict
from reef.errors import BadConfig
from reef.gate.evidence import Bets, fewest_bets, fewest_wins, log_e_sign


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

    rule: str = "paired-e"
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
                    self.saving == 0 or (self.margin > 0 and self.rule == "paired-e"),
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
class _Judged:
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


class PairedTest(_Judged):
    """The default rule: a screen, then an e-process on fresh pairs, then the protected tasks.

    Each pair's task is drawn at random with replacement: then "no better on average over these tasks" implies that a win is no
    likelier than a loss, even when tasks differ, and several runs of one task need no correction.
    """

    def __init__(self, settings: GateSettings, tasks: Sequence[Task], seed: int, level: float) -> None:
        super().__init__(settings, tasks, seed, level)
        self._screen, self._test = Tally(), Tally()
        self._for, self._against = Bets(), Bets()
        self._saved, self._wasted = Bets(), Bets()
        self._reached: str | None = None
        if settings.pairs < (fewest := _fewest_pairs(settings, level)):
            raise BadConfig(
                f"gate: {settings.pairs} pairs can never reach the level {level:.2g}: {fewest} wins without a loss would",
                hint="raise gate_pairs, see: reef gate plan; or choose the simple rule knowingly: gate: wins",
            )

    def slots(self, count: int) -> list[Slot]:
        """The next slots; while the test may still end, more than one is a guess that costs episodes when it is wrong."""
        if self.verdict is not None:
            return []
        start = len(self.pairs)
        if self._reached is not None:
            left = self._guards()
            return [self._slot(start + at, "guard", name) for at, name in enumerate(left[:count])]
        screened = self.settings.screen
        end = screened if start < screened else screened + self.settings.pairs
        return [
            self._slot(number, "screen" if number < screened else "test", self._drawn(number))
            for number in range(start, min(start + count, end))
        ]

    def add(self, pair: Pair) -> None:
        """Count one result, in the order of ``slots``."""
        self._keep(pair)
        if pair.slot.stage == "screen":
            self._add_screen(pair)
        elif pair.slot.stage == "test":
            self._add_test(pair)
        elif not self._guards():
            self._publish()

    def _drawn(self, number: int) -> str:
        return random.Random(f"{self.seed}/{number}/task").choice(self.tasks).name

    def _guards(self) -> list[str]:
        """Protected tasks that have been run too seldom, each as often as it is missing."""
        runs = {name: tally.runs for name, tally in self._protected(screen=False).items()}
        return [name for name, count in runs.items() for _ in range(self.settings.guard - count)]

    def _add_screen(self, pair: Pair) -> None:
        self._screen.add(pair.difference)
        if len(self.pairs) < self.settings.screen:
            return
        if hurt := self._regressed(screen=True):
            self._stop(Decision.REJECT, f"worse on the protected task {hurt} ({self._screen})", "protected")
        elif self.settings.saving > 0 and (saved := self._mean_saved("screen", 1.0)) <= self.settings.saving:
            why = (
                f"no sign of saving {self.settings.saving:.0%} of the tokens in {len(self.pairs)} pairs ({saved:+.1%})"
            )
            self._stop(Decision.REJECT, why, "screen")
        elif self._screen.wins <= self._screen.losses and self.settings.margin == 0:
            self._stop(
                Decision.REJECT, f"no sign of being better in {len(self.pairs)} pairs ({self._screen})", "screen"
            )

    def _add_test(self, pair: Pair) -> None:
        tally, settings = self._test, self.settings
        tally.add(pair.difference)
        if settings.graded or settings.margin > 0:
            self._for.add(pair.difference + settings.margin)
            self._against.add(-pair.difference - settings.margin)
            log_e, against = self._for.log_e, self._against.log_e
        else:
            log_e, against = log_e_sign(tally.wins, tally.losses), log_e_sign(tally.losses, tally.wins)
        wasted = 0.0
        if settings.saving > 0:  # both must be shown, so the weaker of the two counts, at the full level
            log_e, wasted = min(log_e, self._add_saved(pair.saved)), self._wasted.log_e
        self.trajectory.append(log_e)
        count = tally.runs
        if log_e >= -math.log(self.level):
            cheaper = f"; {self._mean_saved('test'):.1%} of the tokens saved" if settings.saving > 0 else ""
            said = f"e-value {_number(log_e)}, {1 / self.level:.3g} needed"
            self._reached = f"{tally} in {count} fresh pairs{cheaper}; {said}"
            if not self._guards():
                self._publish()
        elif against >= math.log(settings.futility):
            self._stop(Decision.REJECT, f"not better: {tally} in {count} fresh pairs", "futility")
        elif wasted >= math.log(settings.futility):
            why = (
                f"{self._mean_saved('test'):+.1%} of the tokens saved in {count} fresh pairs, not {settings.saving:.0%}"
            )
            self._stop(Decision.REJECT, why, "futility")
        elif count >= settings.pairs:
            short = f"e-value {_number(log_e)}, {1 / self.level:.3g} needed"
            self._stop(Decision.INCONCLUSIVE, f"{tally} in {count} fresh pairs; {short}", "budget")

    def _add_saved(self, saved: float | None) -> float:
        """Bet on what a pair saved beyond the share that is asked for; one that is not known speaks only against."""
        asked = self.settings.saving
        self._saved.add((-1.0 if saved is None else saved) - asked)
        if saved is not None:
            self._wasted.add(asked - saved)
        return self._saved.log_e

    def _mean_saved(self, stage: str, unknown: float = 0.0) -> float:
        """The mean share of tokens saved in those of a stage's pairs where it is known, ``unknown`` where it is in none."""
        found = [pair.saved for pair in self.pairs if pair.slot.stage == stage and pair.saved is not None]
        return sum(found) / len(found) if found else unknown

    def _publish(self) -> None:
        assert self._reached is not None
        if hurt := self._regressed():
            self._stop(Decision.REJECT, f"better ({self._reached}), but worse on {hurt}", "protected")
        else:
            better = "not worse" if self.settings.margin > 0 else "better"
            self._stop(Decision.ACCEPT, f"{better}: {self._reached}", "evidence")


class FixedTest(_Judged):
    """The simple rules, for people who choose them knowingly: every task ``repeats`` times, then count.

    ``wins``: more wins than losses. ``mean``: the candidate's mean score is above the incumbent's. ``floor``: it is at least
    ``floor``. All publish useless candidates often (docs/gate.md has how often).
    """

    def slots(self, count: int) -> list[Slot]:
        """Every task in turn."""
        if self.verdict is not None:
            return []
        names = [task.name for task in self.tasks] * self.settings.repeats
        start = len(self.pairs)
        return [self._slot(number, "test", names[number]) for number in range(start, min(start + count, len(names)))]

    def add(self, pair: Pair) -> None:
        """Count one result; the last one decides."""
        self._keep(pair)
        if len(self.pairs) < len(self.tasks) * self.settings.repeats:
            return
        tally = Tally()
        for one in self.pairs:
            tally.add(one.difference)
        mean = sum(one.candidate for one in self.pairs) / len(self.pairs)
        match self.settings.rule:
            case "wins":
                enough, said = tally.wins > tally.losses, str(tally)
            case "mean":
                other = sum(one.incumbent for one in self.pairs) / len(self.pairs)
                enough, said = mean > other, f"mean score {mean:.3g}, {other:.3g} before ({tally})"
            case _:
                floor = self.settings.floor
                enough, said = mean >= floor, f"mean score {mean:.3g}, {floor:g} needed ({tally})"
        if hurt := self._regressed():
            self._stop(Decision.REJECT, f"worse on the protected task {hurt} ({tally})", "protected")
        elif enough:
            self._stop(Decision.ACCEPT, said, "evidence")
        else:
            self._stop(Decision.REJECT, said, "evidence")


RULES: Mapping[str, type[PairedTest] | type[FixedTest]] = {
    "paired-e": PairedTest,
    "wins": FixedTest,
    "floor": FixedTest,
    "mean": FixedTest,
}


def start(settings: GateSettings, tasks: Sequence[Task], seed: int, level: float | None = None) -> Rule:
    """The rule that ``settings`` name, at ``level`` (default: their alpha); raises BadConfig when it can never publish."""
    return RULES[settings.rule](settings, tasks, seed, settings.alpha if level is None else level)


def replay(evidence: Mapping[str, Any]) -> Verdict:
    """The verdict again, from a stored receipt alone; raises BadConfig when the receipt is not one a rule gave.

    Every slot is drawn anew and compared, so that neither the order nor a seed can have been chosen after the fact.
    """
    try:
        settings = GateSettings(**evidence["settings"])
        tasks = [Task(name, protected) for name, protected in evidence["tasks"]]
        rule = start(settings, tasks, evidence["seed"], evidence["level"])
        for number, stage, task, seed, first, candidate, incumbent, *tokens in evidence["pairs"]:
            slot = Slot(number, stage, task, seed, first)
            if rule.slots(1) != [slot]:
                raise BadConfig(f"the receipt's pair {number} is not the one that was to be run then")
            rule.add(Pair(slot, candidate, incumbent, *tokens))
        if rule.verdict is None and str(evidence["stopped"]).startswith("cut: "):
            rule.cut(evidence["stopped"].removeprefix("cut: "))
    except (KeyError, TypeError, ValueError) as error:
        raise BadConfig(f"this is no receipt of a gate: {error}", hint="see: reef gate show") from error
    if rule.verdict is None:
        raise BadConfig("the receipt ends before a verdict", hint="the evaluation was interrupted: reef status")
    return rule.verdict


def _fewest_pairs(settings: GateSettings, level: float) -> int:
    """How many pairs reach ``level`` when all are won, and all tokens saved."""
    if not (settings.graded or settings.margin > 0):
        return fewest_wins(level)
    best = [1 + settings.margin, *([1 - settings.saving] if settings.saving > 0 else ())]
    return max(fewest_bets(level, one) for one in best)


def _number(log_e: float) -> str:
    return f"{math.exp(min(log_e, 700.0)):.3g}"
