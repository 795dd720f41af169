"""The paired sequential test: which pair of episodes to run next, when to stop, and what has been found."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from reef.core.artifacts import Decision
from reef.errors import BadConfig
from reef.gate.evidence import Bets, fewest_bets, fewest_wins, log_e_sign
from reef.gate.rule import GateSettings, Judged, Pair, Slot, Tally, Task


class PairedTest(Judged):
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
            word = "worse" if settings.margin > 0 else "not better"
            self._stop(Decision.REJECT, f"{word}: {tally} in {count} fresh pairs", "futility")
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


def _fewest_pairs(settings: GateSettings, level: float) -> int:
    """How many pairs reach ``level`` when all are won, and all tokens saved."""
    if not (settings.graded or settings.margin > 0):
        return fewest_wins(level)
    best = [1 + settings.margin, *([1 - settings.saving] if settings.saving > 0 else ())]
    return max(fewest_bets(level, one) for one in best)


def _number(log_e: float) -> str:
    return f"{math.exp(min(log_e, 700.0)):.3g}"
