"""Processors that each break one rule of the contract, and their recipes: reef recipe check must find every one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.recipes import WeightTrainingRecipe, knob
from reef.recipes.weights import ScoredProcessor
from reef.train.algos import StepSignal
from reef.train.algos.preparers import pg
from reef.train.processors.base import DataProcessor, Judged, RetentionDecision
from reef.train.processors.derived import DerivedProcessor, Item
from reef.train.processors.pairing import WAIT, Judgment, ReportView, Unit
from reef.train.types import PolicyBatch, ProcessorContext, TrainingBatch


class LeaksReference(ScoredProcessor):
    """Lets reports go, and never the calls that a refused one names."""

    def retention_decision(self) -> RetentionDecision:
        found = super().retention_decision().releasable_agent_record_ids
        return RetentionDecision(frozenset(one for one in found if one.startswith("report") or one in self._spent))


class PaysTwice(ScoredProcessor):
    """Forgets that a batch was acknowledged."""

    def acknowledge(self, batch_id: str) -> None:
        units = self._pool.settle(batch_id).units
        for unit in units:
            self._pool._insert(unit)


class TwoSamplesOfOne(ScoredProcessor):
    """Puts each sample into the batch twice."""

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> PolicyBatch:
        made = super().make_batch(units, batch_number)
        return replace(made, samples=made.samples * 2)


class LosesOrder(ScoredProcessor):
    """Turns its samples round."""

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> PolicyBatch:
        made = super().make_batch(units, batch_number)
        return replace(made, samples=made.samples[::-1])


class Overtakes(ScoredProcessor):
    """Takes the newest units first."""

    def ready(self) -> bool:
        if self._pool.reserved is None:
            self._pool._units.sort(key=lambda unit: -unit.order)
        return super().ready()


class WaitsForNothing(ScoredProcessor):
    """Answers WAIT although everything has arrived."""

    def judge(self, view: ReportView) -> Judgment:
        return WAIT if view.score == 0.5 else super().judge(view)


class Impure(ScoredProcessor):
    """Changes something while it is only asked."""

    asked = 0

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self.asked = 0

    def retention_decision(self) -> RetentionDecision:
        self.asked += 1
        return super().retention_decision()


class Forgets(ScoredProcessor):
    """Keeps what it decides by where no replay brings it back."""

    alive = 0

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._heard = 0

    def ingest(self, record: AgentRecord) -> None:
        self._heard += 1  # duplicates and calls count, and after a restart it begins anew
        super().ingest(record)

    def judge(self, view: ReportView) -> Judgment:
        found = super().judge(view)
        if found.verdict == "train" and self._heard > 1:
            return Judgment.never("enough", "one is enough")
        return found


class SaysNothing(ScoredProcessor):
    """Refuses with a reason that is none."""

    def judge(self, view: ReportView) -> Judgment:
        found = super().judge(view)
        return replace(found, reason="Not Good Enough!") if found.verdict == "never" else found


class AnotherBatch(ScoredProcessor):
    """Makes the batch anew each time it is asked."""

    made = 0

    def build_batch(self) -> TrainingBatch:
        self.made += 1
        return replace(super().build_batch(), batch_id=f"b{self.made}")

    def batch_owners(self, batch_id: str) -> tuple[str, ...]:
        return self._pool.reserved.owners if self._pool.reserved else ()

    def batch_records(self, batch_id: str) -> tuple[str, ...]:
        return self._pool.reserved.record_ids if self._pool.reserved else ()


class ReleasesTooEarly(ScoredProcessor):
    """Lets a call go as soon as one report on it is refused, whoever else needs it."""

    def retention_decision(self) -> RetentionDecision:
        return RetentionDecision(frozenset(self._releasable))


class Crashes(ScoredProcessor):
    """Its judge raises on a report without words."""

    def judge(self, view: ReportView) -> Judgment:
        return super().judge(view) if view.feedback else Judgment.train(1 / len(view.feedback or ""))


class Hoards(DerivedProcessor):
    """Holds calls that it will never do anything with."""

    output_schema: ClassVar[type[TrainingBatch]] = PolicyBatch

    def ingest(self, record: AgentRecord) -> None:
        if record.request_type is RequestType.INFERENCE and self.track(record) and record.session is not None:
            self.dispatch(Item(record.agent_record_id, (record,)))

    async def judge(self, item: Item) -> Any:
        return 0

    def accept(self, item: Item, verdict: Any) -> Judgment:
        return Judgment.never("no_use")


class DropsJudgments(ScoredProcessor):
    """Says of no report what became of it."""

    def drain_judged(self) -> list[Judged]:
        return [one for one in super().drain_judged() if one.state is not RecordState.REFUSED]


class Remembers(ScoredProcessor):
    """Nothing is wrong with it: it accepts what beats the mean of what it judged before."""

    exclusive_sources: ClassVar[bool] = True

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._recent: deque[float] = deque(maxlen=4)

    def judge(self, view: ReportView) -> Judgment:
        found = super().judge(view)
        if found.verdict != "train":
            return found
        mean = sum(self._recent) / len(self._recent) if self._recent else -1.0
        self._recent.append(view.score or 0.0)
        return found if (view.score or 0.0) > mean else Judgment.never("no_better", "it does not beat the mean")


@dataclass(frozen=True, kw_only=True)
class Base(WeightTrainingRecipe):
    """All but the processor is right."""

    batch_size: int = knob(2, "samples per step", gt=0)
    name: str = "broken"
    step_preparer: ClassVar[str] = "pg"
    loss_family: ClassVar[str] = "pg"
    processor: ClassVar[type[DataProcessor]] = ScoredProcessor


def remembers_wrongly(batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
    """A preparer whose state is no JSON."""
    return replace(pg(batch, state), next_algorithm_state={"seen": {1, 2}})


def says_sft(batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
    """A preparer of another family than its recipe."""
    return replace(pg(batch, state), loss_family="sft", advantages=None)


def too_few(batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
    """A preparer that leaves a sample without its advantage."""
    made = pg(batch, state)
    return replace(made, advantages=(made.advantages or ())[1:])
