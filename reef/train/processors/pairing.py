"""PairingProcessor: joins reports with the inferences they name and asks the recipe's judge about each pair.

Knows nothing of algorithms, storage or HTTP. Records arrive in any order, retried and replayed; a judge sees each report
with all its references resolved. Called by train.loop.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.train.processors.assembly import SampleAssembly
from reef.train.processors.base import DataProcessor, Judged, RecipeBug, RetentionDecision
from reef.train.processors.units import Accepted, Group, Unit, UnitPool
from reef.train.types import ProcessorContext, TrainingBatch

__all__ = ["NEVER", "WAIT", "Group", "Judgment", "PairingProcessor", "ReportView", "SampleAssembly", "Unit"]

_REMEMBERED = 10_000
"""How many finished ids a processor remembers to recognise a late duplicate without the store."""


@dataclass(frozen=True, slots=True)
class Judgment:
    """A judge's answer about one report. TRAIN and NEVER are final; WAIT parks until the next reference lands."""

    verdict: Literal["train", "wait", "never"]
    value: Any = None
    group_key: Hashable | None = None
    slot: Hashable | None = None
    reason: str | None = None

    @classmethod
    def train(cls, value: Any, group_key: Hashable | None = None, slot: Hashable | None = None) -> Judgment:
        """Accept ``value``; with a ``group_key`` it trains only with its complete group, once per ``slot``."""
        return cls("train", value, group_key, slot)

    @classmethod
    def never(cls, code: str, sentence: str = "") -> Judgment:
        """Refuse for a reason that status, CLI and TUI count and show."""
        return cls("never", reason=f"{code}: {sentence}" if sentence else code)


NEVER = Judgment("never")
"""Refuse; the reason is what the view noted, else ``not_accepted``."""
WAIT = Judgment("wait")
"""Park until the next referenced inference lands."""


class ReportView:
    """One report with its referenced inferences resolved as far as they have arrived. Bodies are read when asked for."""

    def __init__(self, report: AgentRecord, inferences: Mapping[str, AgentRecord]) -> None:
        self.report = report
        self.payload: Mapping[str, Any] = dict(report.payload.items())
        self.references: tuple[str, ...] = tuple(dict.fromkeys(map(str, self.payload.get("references") or ())))
        self.inferences: tuple[AgentRecord, ...] = tuple(
            inferences[ref] for ref in self.references if ref in inferences
        )
        self.missing: tuple[str, ...] = tuple(ref for ref in self.references if ref not in inferences)
        self.noted: str | None = None

    @property
    def score(self) -> float | None:
        """The reported score when it is a number (finite or not), None otherwise."""
        score = self.payload.get("score")
        return float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None

    @property
    def feedback(self) -> Any:
        """Text or object, as reported."""
        return self.payload.get("feedback")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the client attached."""
        metadata = self.payload.get("metadata")
        return metadata if isinstance(metadata, Mapping) else {}

    def note(self, reason: str) -> None:
        """Remember why this report cannot be used (``code: sentence``), for a judge that answers plain NEVER."""
        self.noted = reason

    def eligibility(self, *, score_required: bool = True) -> Judgment | None:
        """The gate a judge starts with: NEVER with its reason, WAIT for a missing inference, None to go on."""
        if not self.references:
            return Judgment.never("no_references", "the report names no inference")
        training = self.metadata.get("training")
        if isinstance(training, Mapping) and training.get("eligible") is False:
            return Judgment.never("not_eligible", "metadata.training.eligible is false")
        if score_required and self.score is None:
            return Judgment.never("no_score", "the report has no numeric score")
        if self.score is not None and not math.isfinite(self.score):
            return Judgment.never("score_not_finite", f"the score is {self.score}")
        for record in self.inferences:
            if record.state is not RecordState.COMPLETE:
                why = record.reason or "it did not end"
                return Judgment.never(f"inference_{record.state.value}", f"{record.agent_record_id}: {why}")
            if record.reason == "empty_answer":
                return Judgment.never("inference_empty", f"{record.agent_record_id}: the answer has nothing in it")
            if record.meta.get("helper"):
                return Judgment.never(
                    "helper_call", f"{record.agent_record_id} is a helper call ({record.meta['helper']})"
                )
        return WAIT if self.missing else None


@dataclass(slots=True)
class _Live:
    """A report that is parked or accepted."""

    record: AgentRecord
    references: tuple[str, ...]
    order: int
    accepted: bool = False


class PairingProcessor(DataProcessor):
    """Subclass with ``judge`` and ``make_batch``; everything else is the engine's."""

    reports_only: ClassVar[bool] = True
    exclusive_sources: ClassVar[bool] = False
    """True: each report owns its inferences outright; a second report on one of them is refused."""
    ordered_groups: ClassVar[bool] = False
    """True: a later group never overtakes an earlier unfinished one."""
    reopen_groups: ClassVar[bool] = False
    """True: once a group is complete, its key begins a new one; False: late members are refused."""

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        max_staleness = context.config.get("max_staleness")
        self._max_staleness = None if max_staleness is None else int(max_staleness)
        self._pool = UnitPool(
            context.config, self.group_ready, ordered_groups=self.ordered_groups, reopen_groups=self.reopen_groups
        )
        self.batch_size = self._pool.batch_size
        self._inferences: dict[str, AgentRecord] = {}
        self._live: dict[str, _Live] = {}
        self._waiting: dict[str, set[str]] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._spent: OrderedDict[str, None] = OrderedDict()
        self._releasable: OrderedDict[str, None] = OrderedDict()
        self._judged: list[Judged] = []
        self._arrivals = 0

    # -- the recipe's part

    def judge(self, view: ReportView) -> Judgment:
        """Decide about one report; start with ``view.eligibility()``."""
        raise NotImplementedError

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> TrainingBatch:
        """Shape accepted units into ``output_schema``."""
        raise NotImplementedError

    def group_ready(self, key: Hashable, members: Sequence[Accepted]) -> bool | Group:
        """True when the group of ``key`` is complete; the default counts to the ``group_size`` knob."""
        return len(members) >= int(self.context.config.get("group_size", 1))

    # -- the engine's part

    def ingest(self, record: AgentRecord) -> None:
        """Judge a report, or the reports that waited for this inference; duplicates change nothing."""
        if record.request_type is RequestType.INFERENCE:
            self._ingest_inference(record)
        elif record.request_type is RequestType.REPORT:
            self._ingest_report(record)

    def ready(self) -> bool:
        """True when a reserved batch waits or a full one can be made of fresh enough units."""
        if self._pool.reserved is None:
            self._drop_stale()
        return self._pool.reserved is not None or self._pool.full()

    def flush(self) -> None:
        """Let the next batch be made of whatever is complete."""
        self._pool.partial = True

    def recall(self, record: AgentRecord) -> None:
        """Judge a report that is already final, for the judge's memory only; what it owned stays taken."""
        if record.request_type is RequestType.REPORT:
            if (record.reason or "").startswith("source_taken"):  # it was never judged, and owns nothing
                return
            if self.exclusive_sources:
                self._releasable |= dict.fromkeys(record.references)
            self.judge(ReportView(record, self._resolve(record.references, {})))

    def build_batch(self) -> TrainingBatch:
        """The next batch in report arrival order; the same one until it is acknowledged."""
        reservation = self._pool.reserve(self.make_batch)
        if reservation is None:
            raise RecipeBug(f"{type(self).__name__}: no full batch", hint="ask ready() first")
        if not isinstance(reservation.batch, self.output_schema):
            name = type(reservation.batch).__name__
            raise RecipeBug(f"{type(self).__name__}.make_batch returned {name}, not {self.output_schema.__name__}")
        return reservation.batch

    def batch_records(self, batch_id: str) -> tuple[str, ...]:
        """Reports of the reserved batch, then their inferences."""
        return self._pool.holds(batch_id).record_ids

    def batch_owners(self, batch_id: str) -> tuple[str, ...]:
        """Reports of the reserved batch."""
        return self._pool.holds(batch_id).owners

    def acknowledge(self, batch_id: str) -> None:
        """The batch trained: its inferences are spent, and other live reports on them become final."""
        spent: dict[str, None] = {}
        for unit in self._pool.settle(batch_id).units:
            for candidate in unit.candidates:
                spent |= dict.fromkeys(candidate.record_ids)
                del self._live[candidate.owner_id]
                self._done[candidate.owner_id] = self._releasable[candidate.owner_id] = None
        for record_id in spent:
            self._spent[record_id] = self._releasable[record_id] = None
            self._inferences.pop(record_id, None)
        for report_id, live in list(self._live.items()):
            if not spent.keys().isdisjoint(live.references):
                self._refuse(report_id, "reference_consumed: an inference it names has trained already")

    def discard(self, batch_id: str, reason: str) -> None:
        """The step was refused: its reports are final with ``reason``."""
        for unit in self._pool.settle(batch_id).units:
            for candidate in unit.candidates:
                self._refuse(candidate.owner_id, reason)

    def retention_decision(self) -> RetentionDecision:
        """What terminal reports own or a step trained, minus what a live report still names."""
        named = {reference for live in self._live.values() for reference in live.references}
        return RetentionDecision(frozenset(self._releasable.keys() - named - self._live.keys()))

    def drain_judged(self) -> list[Judged]:
        """Judgments since the last call; what the trainer persists it need not be reminded of."""
        judged, self._judged = self._judged, []
        for memory in (self._done, self._spent, self._releasable):
            while len(memory) > _REMEMBERED:
                memory.popitem(last=False)
        return judged

    def expire(self, before_s: float) -> None:
        """Refuse parked reports older than ``before_s``."""
        for report_id, live in list(self._live.items()):
            if not live.accepted and live.record.created_at < before_s:
                self._refuse(report_id, "wait_timeout: an inference it names never arrived or never ended")

    def progress(self) -> Mapping[str, Any]:
        """Fill of the next batch and the receipts that parked reports wait for (at most 20)."""
        waiting = [ref for ref, reports in self._waiting.items() if reports]
        return {
            "have": self._pool.have(),
            "need": self.batch_size,
            "in_groups": self._pool.pending(),
            "parked": sum(not live.accepted for live in self._live.values()),
            "waiting_for": waiting[:20],
        }

    def waits_for(self, record_id: str) -> bool:
        """True when a parked report names this inference (the trainer feeds only those)."""
        return record_id in self._waiting

    # -- inside

    def _ingest_inference(self, record: AgentRecord) -> None:
        record_id = record.agent_record_id
        if record_id in self._spent:
            return
        if self.context.resolve is None:
            self._inferences.setdefault(record_id, record)
        failed: Exception | None = None
        for report_id in sorted(self._waiting.pop(record_id, ()), key=lambda one: self._live[one].order):
            try:
                self._judge(self._live[report_id], {record_id: record})
            except (
                Exception
            ) as error:  # the edge to the recipe's judge: its report is refused, the others have their turn
                failed = failed or error
        if failed is not None:
            raise failed

    def _ingest_report(self, record: AgentRecord) -> None:
        report_id = record.agent_record_id
        if report_id in self._live or report_id in self._done:
            return
        references = record.references
        self._arrivals += 1
        live = _Live(record, references, self._arrivals)
        self._live[report_id] = live
        spent = next((ref for ref in references if ref in self._spent), None)
        if spent is not None:
            self._refuse(report_id, f"reference_consumed: {spent} has trained already")
        elif self.exclusive_sources and (taken := self._taken(live)):
            self._refuse(report_id, f"source_taken: {taken} belongs to another report", owned=False)
        else:
            self._judge(live, {})

    def _taken(self, live: _Live) -> str | None:
        others = (one.references for one in self._live.values() if one is not live)
        named = {reference for references in others for reference in references} | self._releasable.keys()
        return next((ref for ref in live.references if ref in named), None)

    def _judge(self, live: _Live, landed: Mapping[str, AgentRecord]) -> None:
        report_id = live.record.agent_record_id
        view = ReportView(live.record, self._resolve(live.references, landed))
        try:
            judgment = self._answer(view)
        except (
            Exception
        ) as error:  # the edge to the recipe's judge: it is told, and the report does not hang in the air
            code = "recipe_bug" if isinstance(error, RecipeBug) else "recipe_error"
            self._refuse(report_id, f"{code}: {type(error).__name__}: {error}")
            raise
        if judgment.verdict == "wait":
            for reference in view.missing:
                self._waiting.setdefault(reference, set()).add(report_id)
            self._judged.append(Judged(report_id, RecordState.PARKED, f"waiting: for {view.missing[0]}"))
        elif judgment.verdict == "never":
            self._refuse(report_id, judgment.reason or view.noted or "not_accepted: the recipe's judge said never")
        else:
            self._accept(live, view, judgment)

    def _answer(self, view: ReportView) -> Judgment:
        judgment = self.judge(view)
        if judgment.verdict == "wait" and not view.missing:
            raise RecipeBug(
                f"{type(self).__name__}.judge answered WAIT for {view.report.agent_record_id}, which waits for nothing",
                hint="answer TRAIN or NEVER once every reference has arrived",
            )
        return judgment

    def _accept(self, live: _Live, view: ReportView, judgment: Judgment) -> None:
        report_id = live.record.agent_record_id
        releases = tuple(one.release_id for one in view.inferences if one.release_id is not None)
        accepted = Accepted(live.order, report_id, live.references, judgment.value, judgment.slot, releases)
        live.accepted = True
        self._judged.append(Judged(report_id, RecordState.ACCEPTED))
        refusal, discarded = self._pool.add(accepted, judgment.group_key)
        if refusal is not None:
            self._refuse(report_id, refusal)
        for member in discarded:
            self._refuse(member.owner_id, f"group_discarded: group {judgment.group_key!r} was discarded")

    def _resolve(self, references: tuple[str, ...], landed: Mapping[str, AgentRecord]) -> dict[str, AgentRecord]:
        found = {ref: self._inferences[ref] for ref in references if ref in self._inferences} | dict(landed)
        if self.context.resolve is not None and (rest := [ref for ref in references if ref not in found]):
            found |= self.context.resolve(rest)
        return found

    def _refuse(self, report_id: str, reason: str, *, owned: bool = True) -> None:
        live = self._live[report_id]
        if live.accepted:
            self._pool.remove(lambda candidate: candidate.owner_id == report_id)
        self._forget(report_id)
        self._releasable[report_id] = None
        for reference in live.references if owned else ():
            self._releasable[reference] = None
            if self.exclusive_sources:
                self._inferences.pop(reference, None)
        self._judged.append(Judged(report_id, RecordState.REFUSED, reason))

    def _forget(self, report_id: str) -> None:
        live = self._live.pop(report_id)
        for reference in live.references:
            waiting = self._waiting.get(reference)
            if waiting is not None:
                waiting.discard(report_id)
                if not waiting:
                    del self._waiting[reference]
        self._done[report_id] = None

    def _drop_stale(self) -> None:
        lag = self.context.lag
        if self._max_staleness is None or lag is None:
            return
        limit = self._max_staleness
        stale = self._pool.remove(lambda one: any(lag(release) > limit for release in one.release_ids))
        for accepted in stale:
            self._live[accepted.owner_id].accepted = False
            worst = max(lag(release) for release in accepted.release_ids)
            self._refuse(accepted.owner_id, f"stale: generated {worst} releases ago, max_staleness is {limit}")
