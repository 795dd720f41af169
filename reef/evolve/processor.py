"""EvolveProcessor: which reports a step of evolution learns from, and what people ask for in words. Asks go first, each alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.evolve.values import EvolveBatch, FailedRun
from reef.train.algos import StepSignal
from reef.train.processors.base import Judged
from reef.train.processors.pairing import WAIT, Judgment, PairingProcessor, ReportView
from reef.train.processors.units import Unit
from reef.train.slime_runtime.reef_adapters.preparation import PreparedStep
from reef.train.types import ProcessorContext, TrainingBatch


class EvolveProcessor(PairingProcessor):
    """Accepts reports of failed runs (or of all): a run may hold calls that were cut off, because that may be the failure."""

    output_schema: ClassVar[type[TrainingBatch]] = EvolveBatch

    def __init__(self, context: ProcessorContext) -> None:
        self._fail_below = float(context.config.get("fail_below", 0.5))
        self._all = context.config.get("learn_from", "failed") == "all"
        self._asked: dict[str, AgentRecord] = {}
        super().__init__(context)

    def judge(self, view: ReportView) -> Judgment:
        """Failed, or worth a look because somebody wrote something without a score."""
        if not view.references:
            return Judgment.never("no_references", "the report names no call")
        training = view.metadata.get("training")
        if isinstance(training, Mapping) and training.get("eligible") is False:
            return Judgment.never("not_eligible", "metadata.training.eligible is false")
        score = view.score
        if score is not None and not math.isfinite(score):
            return Judgment.never("score_not_finite", f"the score is {score}")
        if view.missing:
            return WAIT
        helpers = [one.meta["helper"] for one in view.inferences if one.meta.get("helper")]
        if len(helpers) == len(view.inferences):
            return Judgment.never("helper_call", f"it names helper calls only ({helpers[0]})")
        if score is not None and score >= self._fail_below and not self._all:
            return Judgment.never(
                "passed", f"score {score:g} is not under {self._fail_below:g}: there is nothing to mend"
            )
        return Judgment.train(FailedRun(view.report.agent_record_id, score, view.feedback, view.references))

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> EvolveBatch:
        """One failed run per unit."""
        return EvolveBatch(f"{self.scenario}:evolve:{batch_number}", tuple(unit.candidates[0].value for unit in units))

    # -- what people and agents ask for: a queue of its own before the reports

    def ingest(self, record: AgentRecord) -> None:
        """Reports go to their judge; a request is the next batch by itself."""
        if record.request_type is not RequestType.TRAINING:
            super().ingest(record)
        elif record.agent_record_id not in self._asked:
            self._asked[record.agent_record_id] = record
            self._judged.append(Judged(record.agent_record_id, RecordState.ACCEPTED))

    def recall(self, record: AgentRecord) -> None:
        """Nothing here remembers."""

    def ready(self) -> bool:
        """A request, or a full batch of reports."""
        return (bool(self._asked) and self._pool.reserved is None) or super().ready()

    def build_batch(self) -> TrainingBatch:
        """The oldest request, else reports."""
        asked = self._first()
        if asked is None:
            return super().build_batch()
        return EvolveBatch(_name(asked), (), dict(asked.payload))

    def batch_records(self, batch_id: str) -> tuple[str, ...]:
        """The request, or the reports and their calls."""
        return self._asked_for(batch_id) or super().batch_records(batch_id)

    def batch_owners(self, batch_id: str) -> tuple[str, ...]:
        """The request, or the reports."""
        return self._asked_for(batch_id) or super().batch_owners(batch_id)

    def acknowledge(self, batch_id: str) -> None:
        """The step is committed."""
        if not self._settle(batch_id):
            super().acknowledge(batch_id)

    def discard(self, batch_id: str, reason: str) -> None:
        """The step was refused."""
        asked = self._settle(batch_id)
        if asked is None:
            super().discard(batch_id, reason)
        else:
            self._judged.append(Judged(asked.agent_record_id, RecordState.REFUSED, reason))

    def progress(self) -> Mapping[str, Any]:
        """As for reports, with the number of requests."""
        found = super().progress()
        return {**found, "asked": len(self._asked), "have": found["have"] or len(self._asked)}

    def _first(self) -> AgentRecord | None:
        """The request whose turn it is; a batch of reports that is out already comes to its end first."""
        return next(iter(self._asked.values()), None) if self._pool.reserved is None else None

    def _asked_for(self, batch_id: str) -> tuple[str, ...]:
        """The request that ``batch_id`` is made of, empty when it is made of reports."""
        return tuple(one.agent_record_id for one in self._asked.values() if _name(one) == batch_id)

    def _settle(self, batch_id: str) -> AgentRecord | None:
        asked = next((one for one in self._asked.values() if _name(one) == batch_id), None)
        return self._asked.pop(asked.agent_record_id) if asked is not None else None


def prepare_evolve_step(batch: TrainingBatch, state: Mapping[str, Any]) -> PreparedStep:
    """What the backend is given: the failed runs, or what was asked. Its step id is a hash of it."""
    assert isinstance(batch, EvolveBatch)
    steps = int(state.get("steps", 0)) + 1
    signal = StepSignal("train", "harness", {**state, "steps": steps}, {"reports": len(batch.runs)})
    payload = {"runs": [run.as_dict() for run in batch.runs], "asked": batch.asked}
    return PreparedStep("train", signal, payload)


def _name(asked: AgentRecord) -> str:
    return f"{asked.scenario}:asked:{asked.agent_record_id}"
