"""The simple rules ``wins``, ``mean`` and ``floor``: every task so many times, then count."""

from __future__ import annotations

from reef.core.artifacts import Decision
from reef.gate.rule import Judged, Pair, Slot, Tally


class FixedTest(Judged):
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
