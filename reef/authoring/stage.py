"""The trainer's part without a store: feeds a processor, restarts it, commits steps, and looks at every rule on the way.

What outlives a restart here is what the store keeps: records in their order, judgments that were kept, verdicts, what steps
consumed, the reserved batch. Called by authoring.check; the rules are those of docs/write-a-recipe.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from reef.authoring.judges import Judges
from reef.authoring.rules import Fault, prepared
from reef.authoring.samples import Event
from reef.authoring.shape import changed_part, shape
from reef.authoring.subject import Subject
from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.errors import ReefError
from reef.train.processors.base import DataProcessor, Judged
from reef.train.processors.derived import DerivedProcessor, DictMemory
from reef.train.processors.units import Accepted, Unit
from reef.train.types import PolicyBatch, ProcessorContext, TrainingBatch

_REASON = re.compile(r"[a-z][a-z0-9_]*(: .+)?", re.S)
_FINAL = (RecordState.CONSUMED, RecordState.REFUSED)
UNSAID = "not_accepted"
"""The engine's own code for a NEVER of which the recipe said nothing."""


class Stage:
    """One life of a scenario: ``play`` makes an event happen, ``end`` brings everything to its end and looks for leaks."""

    def __init__(
        self, subject: Subject, records: Sequence[AgentRecord], verdicts: dict[str, Any], *, pure: bool = False
    ) -> None:
        """``pure``: also compare the processor's whole state around every read, which takes its time."""
        self._pure = pure
        self.subject, self.records, self._verdicts = subject, records, verdicts
        self.arrived: list[AgentRecord] = []
        self.states: dict[str, tuple[RecordState, str]] = {}
        self.consumed: dict[str, int] = {}
        self.batches: list[tuple[str, ...]] = []
        self.story: dict[str, list[str]] = {}
        self.judge_failed = ""
        self._released: frozenset[str] = frozenset()
        self._unkept: list[Judged] = []
        self._fed: set[str] = set()
        self._horizon: int | None = None
        self._memory = DictMemory()
        self._state: Mapping[str, Any] = {}
        self._steps = 0
        self._reserved: tuple[TrainingBatch, tuple[str, ...]] | None = None
        self._processor = self._started()

    # -- what happens

    def play(self, event: Event) -> None:
        """Make ``event`` happen, then look at what must hold at any time; raises Fault."""
        if event.what == "crash":
            self._unkept.clear()
        self._keep()
        match event.what:
            case "arrive" | "again":
                self._deliver(self.records[event.number], again=event.what == "again")
            case "verdict":
                self._judges.end(event.number)
            case "step" | "refuse" | "cut":
                self._step(event.what)
            case "restart" | "crash":
                self._restart()
        self._hear()
        self._look()

    def end(self) -> None:
        """Everything that can end, ends: judgments, full batches, what is left as a small batch, and what waits for nothing."""
        for act in (
            lambda: None,
            self._processor.flush,
            lambda: self._processor.expire(math.inf),
            self._processor.flush,
        ):
            self._guarded(act)
            self._judges.end_all()
            while self._step("step"):
                self._judges.end_all()
            self._keep()
            self._look()
        self._leaks()
        self._close()

    def outcome(self) -> dict[str, str]:
        """What became of each record, to compare two lives by."""
        found = {
            one: f"{state.value} {reason.partition(':')[0]}".strip() for one, (state, reason) in self.states.items()
        }
        return {**found, **dict.fromkeys(self.consumed, "consumed")}

    # -- the trainer's part

    def _started(self) -> DataProcessor:
        reserved = self._reserved[1] if self._reserved is not None else ()
        config = {
            **self.subject.settings,
            "first_batch": self._steps + 1,
            "reserved": reserved,
            "verdict_memory": self._memory,
        }
        context = ProcessorContext(self.subject.recipe.name, config, self._resolve, lambda release: 0)
        made: DataProcessor = self._guarded(lambda: self.subject.processor(context))
        self._judges = Judges(self._verdicts)
        if isinstance(made, DerivedProcessor):
            self._judges.take(made)
        return made

    def _resolve(self, record_ids: Sequence[str]) -> dict[str, AgentRecord]:
        wanted = set(record_ids)
        seen = self.arrived if self._horizon is None else self.arrived[: self._horizon + 1]
        return {one.agent_record_id: one for one in seen if one.agent_record_id in wanted}

    def _deliver(self, record: AgentRecord, *, again: bool) -> None:
        known = any(one is record for one in self.arrived)
        if again != known or (again and record.agent_record_id not in self._fed):
            return  # what has arrived arrives no more; twice comes only what this processor has seen once
        if not again:
            self.arrived.append(record)
            self._tell(record.agent_record_id, "arrived")
        self._feed(record)

    def _feed(self, record: AgentRecord) -> None:
        processor, record_id = self._processor, record.agent_record_id
        if record.request_type is RequestType.INFERENCE:
            if processor.reports_only and not processor.waits_for(record_id):
                return
            self._fed.add(record_id)
        elif self.states.get(record_id, (None, ""))[0] in _FINAL:
            return
        elif any(reference in self.consumed for reference in record.references):
            self._mark(record_id, RecordState.REFUSED, "reference_consumed: it has trained already")
            self._released |= {record_id, *record.references}  # the trainer's doing: no processor has seen it
            return
        self._fed.add(record_id)
        self._guarded(lambda: processor.ingest(record))

    def _restart(self) -> None:
        before = self._reserved
        self._close()
        self._fed.clear()
        self._processor = self._started()
        self._tell_all("the trainer starts again")
        for horizon, record in self._as_it_was():
            self._horizon = horizon
            record_id = record.agent_record_id
            state, reason = self.states.get(record_id, (RecordState.PARKED, ""))
            if state not in _FINAL and record_id not in self.consumed:
                self._feed(record)
            elif record.request_type is RequestType.REPORT:
                self._guarded(partial(self._processor.recall, replace(record, state=state, reason=reason or None)))
        self._horizon = None
        self._keep()
        if before is not None and self._guarded(self._processor.ready):
            again = self._guarded(self._processor.build_batch)
            if again != before[0]:
                said = f"{before[0].batch_id} was reserved with {_listed(before[1])}, and after a restart"
                raise Fault("another_batch", f"{said} the next batch is {again.batch_id}, which differs from it")

    def _as_it_was(self) -> list[tuple[int, AgentRecord]]:
        """What has arrived with the moment at which it was judged: a final report when the last call it names was there."""
        place = {one.agent_record_id: number for number, one in enumerate(self.arrived)}
        found = []
        for number, record in enumerate(self.arrived):
            final = self.states.get(record.agent_record_id, (None, ""))[0] in _FINAL
            late = [place.get(one, number) for one in record.references] if final else []
            found.append((max([number, *late]), number, record))
        return [(when, record) for when, _, record in sorted(found, key=lambda one: one[:2])]

    def _step(self, how: str) -> bool:
        """Reserve, prepare, commit (or refuse); False when no batch is full."""
        processor = self._processor
        if not self._guarded(processor.ready):
            return False
        batch: TrainingBatch = self._guarded(processor.build_batch)
        owners = self._guarded(lambda: processor.batch_owners(batch.batch_id))
        used = self._guarded(lambda: processor.batch_records(batch.batch_id))
        self._reserved = batch, owners
        self._check_batch(batch, owners, used)
        signal_state = prepared(self.subject, batch, self._state)
        self._keep()
        if how == "refuse":
            self._guarded(lambda: processor.discard(batch.batch_id, "step_refused: as a check of rows would"))
        else:
            self._commit(used, owners, signal_state)
            if how != "cut":
                self._guarded(lambda: processor.acknowledge(batch.batch_id))
        self._steps += 1
        self._reserved = None
        self._keep()
        if how == "cut":
            self._restart()
        return True

    def _commit(self, used: Sequence[str], owners: tuple[str, ...], state: Mapping[str, Any]) -> None:
        self._state = state
        self.batches.append(owners)
        kinds = {one.agent_record_id: one.request_type for one in self.arrived}
        for record_id in used:
            self.consumed[record_id] = self._steps + 1
            self._tell(record_id, f"trained in step {self._steps + 1}")
            if kinds.get(record_id) is RequestType.REPORT:
                self.states[record_id] = (RecordState.CONSUMED, "")

    def _keep(self) -> None:
        """What was judged until now outlives a crash."""
        self._hear()
        for one in self._unkept:
            self._mark(one.record_id, one.state, one.reason or "")
        self._unkept.clear()

    def _hear(self) -> None:
        """Take what was judged out of the processor; a crash before it is kept loses it."""
        for one in self._guarded(self._processor.drain_judged):
            self._unkept.append(one)
            if one.state is RecordState.REFUSED and not _REASON.fullmatch(one.reason or ""):
                said = f"{one.record_id} is refused with the reason {one.reason!r}"
                raise Fault("no_reason", f"{said}: a code, or a code and a sentence (code: sentence)", one.record_id)

    def _mark(self, record_id: str, state: RecordState, reason: str) -> None:
        if self.states.get(record_id, (None, ""))[0] in _FINAL:
            return  # as the store: what is final stays
        self.states[record_id] = (state, reason)
        self._tell(record_id, f"{state.value}" + (f" ({reason})" if reason else ""))
        if reason.startswith("judge_failed"):
            self.judge_failed = reason

    # -- the rules

    def _check_batch(self, batch: TrainingBatch, owners: tuple[str, ...], used: Sequence[str]) -> None:
        name = type(self._processor).__name__
        if self._guarded(self._processor.build_batch) != batch:
            raise Fault(
                "another_batch", f"{name}.build_batch made another batch before {batch.batch_id} was acknowledged"
            )
        known = {one.agent_record_id for one in self.arrived}
        for record_id in (*used, *owners):
            if owners.count(record_id) > 1:
                raise Fault("consumed_twice", f"{batch.batch_id} holds {record_id} twice", record_id)
            if record_id not in known and record_id in used:
                raise Fault("unknown_record", f"{batch.batch_id} uses {record_id}, which has not arrived", record_id)
            if record_id in self.consumed:
                said = (
                    f"{record_id} trained in step {self.consumed[record_id]}, and batch {batch.batch_id} uses it again"
                )
                raise Fault("consumed_twice", said, record_id)
        samples = batch.samples if isinstance(batch, PolicyBatch) else ()
        of_samples = [record_id for one in samples for record_id in one.record_ids]
        for record_id in of_samples:
            if of_samples.count(record_id) > self._units_with(record_id):
                raise Fault(
                    "consumed_twice", f"{batch.batch_id} holds {record_id} in more samples than units", record_id
                )
            if record_id in self.consumed:
                said = (
                    f"{record_id} trained in step {self.consumed[record_id]}, and a sample of {batch.batch_id} has it"
                )
                raise Fault("consumed_twice", said, record_id)
        self._check_order(batch, owners, of_samples)

    def _units(self) -> tuple[Unit, ...]:
        """The units of the reserved batch, where the processor has the engine's pool."""
        pool = getattr(self._processor, "_pool", None)
        return pool.reserved.units if pool is not None and pool.reserved is not None else ()

    def _units_with(self, record_id: str) -> int:
        found = sum(record_id in one.record_ids for unit in self._units() for one in unit.candidates)
        return found or 1

    def _check_order(self, batch: TrainingBatch, owners: tuple[str, ...], of_samples: Sequence[str]) -> None:
        """Units leave in the order in which their reports arrived; groups stand where their first member does."""
        arrival = {one.agent_record_id: number for number, one in enumerate(self.arrived)}
        derived = isinstance(self._processor, DerivedProcessor)  # an item is complete with the last of its records

        def place(one: Accepted) -> int:
            return max(arrival.get(record, -1) for record in (one.record_ids if derived else (one.owner_id,)))

        pool, units = getattr(self._processor, "_pool", None), self._units()
        first = [min(map(place, unit.candidates)) for unit in units]
        for before, after, unit in zip(first, first[1:], units[1:], strict=False):
            if before > after:
                late = unit.candidates[0].owner_id
                raise Fault("order", f"{batch.batch_id} has {late} behind what arrived later: {_listed(owners)}", late)
        mine = [record_id for unit in units for one in unit.candidates for record_id in one.record_ids]
        if isinstance(batch, PolicyBatch) and of_samples and units:
            wanted = [record_id for record_id in mine if record_id in of_samples]
            if list(dict.fromkeys(wanted)) != list(dict.fromkeys(of_samples)):
                said = f"make_batch puts the samples of {batch.batch_id} in another order than its units"
                raise Fault("order", f"{said}: {_listed(of_samples)}, not {_listed(wanted)}", of_samples[0])
        left = [one for unit in getattr(pool, "_units", ()) for one in unit.candidates if unit.key is None]
        if units and all(unit.key is None for unit in units) and left:
            last, early = first[-1], min(left, key=place)
            if place(early) < last:
                raise Fault("order", f"{batch.batch_id} overtakes {early.owner_id}, which came before", early.owner_id)

    def _look(self) -> None:
        processor, name = self._processor, type(self._processor).__name__
        before = shape(processor) if self._pure else {}
        released = self._guarded(processor.retention_decision).releasable_agent_record_ids
        if self._pure and (part := changed_part(before, shape(processor))) is not None:
            raise Fault("impure_retention", f"{name}.retention_decision changes {part}: it must only read")
        if self._guarded(processor.retention_decision).releasable_agent_record_ids != released:
            raise Fault("impure_retention", f"{name}.retention_decision answers two calls in a row differently")
        self._released |= released
        reserved = () if self._reserved is None else self._guarded(
            lambda: processor.batch_records(self._reserved[0].batch_id)  # type: ignore[index]
        )  # fmt: skip
        ended = {one.record_id for one in self._unkept if one.state in _FINAL}
        for record in self.arrived:
            record_id = record.agent_record_id
            state = self.states.get(record_id, (RecordState.PARKED, ""))[0]
            live = state not in _FINAL and record_id not in ended
            if record.request_type is RequestType.REPORT and live and not isinstance(processor, DerivedProcessor):
                for needed in (record_id, *record.references):
                    if needed in released and needed not in self.consumed:
                        said = f"{needed} is released while {record_id} still needs it"
                        raise Fault("too_early", said, needed)
            if record_id in reserved and record_id in released:
                raise Fault("too_early", f"{record_id} is released while the reserved batch holds it", record_id)

    def _leaks(self) -> None:
        """At the end nothing is kept that nobody will ever use."""
        processor = self._processor
        if type(processor) is DataProcessor:  # it keeps nothing
            return
        final = {one for one, (state, _) in self.states.items() if state in _FINAL}
        released = self._released | self.consumed.keys() | final
        in_groups = int(self._guarded(processor.progress).get("in_groups", 0))
        waiting = [
            one for one in self.arrived
            if one.request_type is RequestType.REPORT
            and self.states.get(one.agent_record_id, (RecordState.PARKED, ""))[0] not in _FINAL
        ]  # fmt: skip
        held = [one for one in waiting if self.states.get(one.agent_record_id, (None, ""))[0] is RecordState.ACCEPTED]
        ordered = bool(getattr(processor, "ordered_groups", False)) and in_groups > 0
        for report in waiting:
            if report not in held:
                said = "it was never judged, or its judgment was not kept"
                raise Fault(
                    "leak", f"{report.agent_record_id} is neither used nor refused: {said}", report.agent_record_id
                )
        if len(held) > in_groups and not ordered:
            leaked = held[0].agent_record_id
            raise Fault("leak", f"{leaked} was accepted, and no batch ever takes it", leaked)
        needed = {reference for one in held for reference in one.references}
        owned = {
            reference for one in self.arrived for reference in one.references
            if not self.states.get(one.agent_record_id, (None, ""))[1].startswith("source_taken")
        }  # fmt: skip
        for record in self.arrived:
            record_id = record.agent_record_id
            mine = not processor.reports_only or record.request_type is RequestType.REPORT or record_id in owned
            unfinished = (
                record_id in needed or record in held or (isinstance(processor, DerivedProcessor) and in_groups)
            )
            if mine and not unfinished and record_id not in released:
                raise Fault("leak", f"{record_id} is held for ever: nothing uses it, and it is not released", record_id)

    # -- inside

    def _guarded(self, act: Callable[[], Any]) -> Any:
        """Run the recipe's code; whatever it raises is a fault."""
        try:
            return act()
        except Fault:
            raise
        except (Exception, SystemExit) as error:
            hint = f" ({error.hint})" if isinstance(error, ReefError) and error.hint else ""
            said = error.message if isinstance(error, ReefError) else f"{type(error).__name__}: {error}"
            raise Fault("raised", f"{self.subject.processor.__name__}: {said}{hint}") from error

    def _close(self) -> None:
        self._guarded(self._processor.close)

    def _tell(self, record_id: str, what: str) -> None:
        self.story.setdefault(record_id, []).append(what)

    def _tell_all(self, what: str) -> None:
        for told in self.story.values():
            told.append(what)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
