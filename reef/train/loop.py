"""Trainer: one scenario's records become batches, batches become steps, steps become releases.

Knows nothing of HTTP, of what a runtime does inside, or of how a recipe judges. Built by WeightTrainingRecipe.build; run on
the scenario's own thread by train.thread. All state that matters is in the store: a killed trainer starts from there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from reef import failpoints
from reef.core.artifacts import Candidate, Decision, Release, Verdict
from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.errors import BadConfig, BadRequest, NotFound, Unavailable
from reef.gate import checks_pass
from reef.records import Mark, RecordStore, Row
from reef.releases import ReleaseChain, StepCommit
from reef.runtime import Blocked, Outcome, Refused, Skip, Stale, StepRequest, TrainingRuntime
from reef.store.clock import SteadyClock
from reef.train.algos.preparers import preparer_for
from reef.train.processors.base import DataProcessor, RecipeBug
from reef.train.replay import as_it_was
from reef.train.slime_runtime.reef_adapters.preparation import PreparedStep, prepare_slime_step
from reef.train.types import ProcessorContext, TrainingBatch
from reef.train.watch import Watch, is_canary

log = logging.getLogger("reef.train")

_CONTEXT_REPORTS = 256
"""Judged reports shown again to a judge after a restart, so that one with a finite memory is as it was."""
_PAGE = 500
_NO_SIGNAL = Skip("no_signal: the batch teaches nothing (all scores of each group are equal)")

Gate = Callable[[Candidate], Verdict]
Prepare = Callable[..., PreparedStep]
"""``prepare(batch, state=...)``."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one call of ``run_step`` did; ``retry_after_s`` is set when the same batch is to be tried again."""

    outcome: str
    reason: str = ""
    release: Release | None = None
    retry_after_s: float | None = None


class _Verdicts:
    """A derived processor's memory, in the store."""

    def __init__(self, records: RecordStore, scenario: str) -> None:
        self._records, self._scenario = records, scenario

    def get(self, key: str) -> Any | None:
        """The verdict kept for ``key``."""
        return self._records.verdict(self._scenario, key)

    def put(self, key: str, value: Any) -> None:
        """Keep a verdict."""
        self._records.keep_verdict(self._scenario, key, value)


class Trainer:
    """Drives a processor and a runtime for one scenario. Public methods hold one lock, so recipes need none."""

    def __init__(
        self,
        scenario: str,
        records: RecordStore,
        *,
        runtime: TrainingRuntime,
        processor: type[DataProcessor],
        config: Mapping[str, Any],
        step_preparer: str = "",
        prepare: Prepare | None = None,
        gate: Gate = checks_pass,
        recipe: str = "",
    ) -> None:
        """``prepare`` makes the payload of a step itself; without it the named ``step_preparer`` does, for weights."""
        self.scenario = scenario
        self.records = records
        self.runtime = runtime
        self.step_preparer = step_preparer
        self.gate = gate
        self.review = False
        self.watch: Watch | None = None
        self.park_timeout_s: float | None = None
        self.chain = ReleaseChain(records.store)
        able = runtime.capabilities()
        row = self.chain.create(scenario, recipe, able.surface, able.base_content_id)
        self.lock = threading.RLock()
        self.wants_inferences = not processor.reports_only
        """True when a finished inference may change something (so that the loop is woken for it)."""
        self.prepare = prepare or partial(prepare_slime_step, step_preparer=preparer_for(step_preparer))
        self._head = self.chain.head(scenario)
        self._state: Mapping[str, Any] = row.algorithm_state
        self._reserved: str | None = None
        self._used: tuple[str, ...] = ()
        self._rev: int | None = None
        self._horizon: int | None = None
        """While a dead trainer's records are taken up again: how far it had seen when it judged the one in hand."""
        self.on_verdict: Callable[[], None] = lambda: None
        """Called, from a judge's thread, when a derived judgment has ended; the loop looks again."""
        self.go_on: Callable[[], bool] = lambda: True
        """False while a step that takes long should make room; see StepRequest."""
        self._lags: tuple[str | None, dict[str | None, int]] = (None, {})
        self._unpublished: Release | None = None
        self._closed = False
        self._clock = SteadyClock(0.0)
        full = {
            **config,
            "first_batch": row.step + 1,
            "reserved": tuple(row.reserved),
            "verdict_memory": _Verdicts(records, scenario),
        }
        context = ProcessorContext(scenario, full, self._resolve, self._lag, lambda: self.on_verdict())
        self.processor = processor(context)
        self._progress = self.processor.progress()

    # -- the surface the spec names

    def reserve_training_batch(self) -> TrainingBatch | None:
        """The next batch when one is full; the same one until its step is over."""
        with self.lock:
            self.catch_up()
            full = self.processor.ready()
            batch = self.processor.build_batch() if full else None
            if batch is not None and batch.batch_id != self._reserved:
                self.chain.reserve(self.scenario, self.processor.batch_owners(batch.batch_id))
                self._reserved, self._used = batch.batch_id, self.processor.batch_records(batch.batch_id)
            self._keep_judged()
            self._progress = self.processor.progress()
            return batch

    def algorithm_state_dict(self) -> dict[str, Any]:
        """The algorithm state as of the last committed step."""
        return dict(self._state)

    # -- the loop's part

    def catch_up(self) -> None:
        """Ingest what has become final since the last call; the first call replays what a dead trainer left."""
        with self.lock:
            if self._closed:
                return
            rev = self._rev if self._rev is not None else self._replay()
            missed = True
            while missed:
                while rows := self.records.pull(self.scenario, rev, _PAGE):
                    for row in rows:
                        self._ingest(row)
                        rev = self._rev = row.rev or rev
                if self.park_timeout_s is not None and self._clock.believed():
                    self.processor.expire(time.time() - self.park_timeout_s)
                self._keep_judged()
                self._progress = self.processor.progress()
                wants = not self.processor.reports_only or bool(self._progress["waiting_for"])
                missed = wants and not self.wants_inferences  # what ended until now has woken nobody: look once more
                self.wants_inferences = wants

    def run_step(self, begin: Callable[[], bool] = lambda: True) -> StepResult | None:
        """Make one step of the next full batch if ``begin`` says so; None when there is nothing to do now."""
        with self.lock:
            if self._closed:  # another has taken over while this one was waited for
                return None
            if self._unpublished is not None:
                self._publish(self._unpublished)
            if self.watch is not None and (moved := self.watch.look()) is not None:
                self.recover()
                return StepResult("watched", moved[1], moved[0])
            waits = self.review or (self.watch is not None and self.watch.settings.canary > 0)
            if waits and (held := self.chain.held(self.scenario)) is not None:
                self.catch_up()
                tried = is_canary(held)
                said = "is tried by a share of the sessions" if tried else "waits for review"
                return StepResult("held", f"{held.release_id} {said}", held, retry_after_s=5.0 if tried else 3600.0)
            batch = self.reserve_training_batch()
            if batch is None or not begin():
                return None
            return self.train(batch)

    def train(self, batch: TrainingBatch) -> StepResult:
        """The straight line of one step: signal, candidate, gate, release, acknowledged, served."""
        with self.lock:
            head = self._head
            assert head is not None, "create() made r0"
            try:
                prepared = self.prepare(batch, state=self._state)
            except BadRequest as error:  # the preparer said what no step can be made of: the batch must not come again
                name = f"bad-signal:{self.scenario}:{batch.batch_id}:{head.release_id}"
                bad = StepCommit(name, self.scenario, batch.batch_id, "skip", self._state, self._used)
                return self._without_release(batch, bad, Refused(f"bad_signal: {error.message}"))
            signal = prepared.signal
            same = [self.scenario, head.content_id, batch.batch_id, prepared.payload, dict(signal.next_algorithm_state)]
            step_id = hashlib.sha256(json.dumps(same, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]
            step = StepCommit(
                step_id,
                self.scenario,
                batch.batch_id,
                "skip",
                signal.next_algorithm_state,
                self._used,
                metrics=dict(signal.metrics),
            )
            if "REEF_FAILPOINT" in os.environ:
                failpoints.hit("before-step")
            outcome: Outcome = _NO_SIGNAL
            try:
                if prepared.action == "train":
                    request = StepRequest(step_id, self.scenario, head.step + 1, head, prepared.payload, self.go_on)
                    outcome = self.runtime.step(self.runtime.prepare(request))
            except BadRequest as error:
                outcome = Refused(f"bad_rows: {error.message}")
            except Unavailable as error:
                outcome = Blocked(error.message)
            if "REEF_FAILPOINT" in os.environ:
                failpoints.hit("before-step-commit")
            if isinstance(outcome, Candidate | Skip) and outcome.state:
                step = replace(step, next_algorithm_state={**signal.next_algorithm_state, **outcome.state})
            if isinstance(outcome, Candidate):
                return self._release(batch, step, outcome)
            return self._without_release(batch, step, outcome)

    def recover(self) -> None:
        """After a start, or after a person moved the chain: serve the committed head and train from it."""
        with self.lock:
            self._head = self.chain.head(self.scenario)
            self._state = self.chain.scenario(self.scenario).algorithm_state
            if self._head is not None:
                try:
                    self._publish(self._head)
                except (NotFound, BadConfig) as error:  # its files are gone, or the settings fit another model
                    log.error("%s of %s is not served: %s", self._head.release_id, self.scenario, error)

    def try_serving(self, release: Release) -> None:
        """Serve a past release before the chain goes back to it; raises what makes that impossible.

        An engine that is away for now is no reason: the chain may move, and it is served when the engine is back.
        """
        with self.lock:
            try:
                self.runtime.publish(release)
            except Unavailable as error:
                log.warning("%s of %s cannot be served right now: %s", release.release_id, self.scenario, error)

    def flush(self) -> None:
        """Let the next batch be a small one (``reef step``)."""
        with self.lock:
            self.processor.flush()

    def progress(self) -> Mapping[str, Any]:
        """Fill of the next batch and what parked reports wait for, as of the last look; never waits for a step."""
        return self._progress

    def close(self) -> None:
        """End the processor's private workers; no further step is made."""
        with self.lock:
            self._closed = True
            self.processor.close()

    # -- inside

    def _release(self, batch: TrainingBatch, step: StepCommit, candidate: Candidate) -> StepResult:
        verdict = self.gate(candidate)
        if self.review and verdict.decision is Decision.ACCEPT:
            verdict = Verdict(Decision.HOLD, verdict.rule, f"{verdict.reason}; publish: review", verdict.evidence)
        elif self.watch is not None and self.watch.settings.canary and verdict.decision is Decision.ACCEPT:
            share = self.watch.settings.canary
            said = f"{verdict.reason}; canary: {share:.0%} of the sessions"
            verdict = Verdict(Decision.HOLD, verdict.rule, said, {**verdict.evidence, "canary": share})
        release = self.chain.commit(
            replace(
                step,
                outcome="release",
                content_id=candidate.artifact.content_id,
                size_bytes=candidate.artifact.size_bytes,
                verdict=verdict,
                metrics={**step.metrics, **candidate.metrics},
            )
        )
        assert release is not None
        if verdict.decision is Decision.ACCEPT:
            self._head, self._state, self._unpublished = release, step.next_algorithm_state, release
        self.processor.acknowledge(batch.batch_id)  # whatever serving it runs into, this batch never trains again
        if "REEF_FAILPOINT" in os.environ:
            failpoints.hit("before-publish")
        kept = verdict.decision in (Decision.ACCEPT, Decision.HOLD)
        if verdict.decision is Decision.ACCEPT:
            try:
                self.runtime.publish(release)
                self.chain.served(self.scenario, release.release_id)
                self._unpublished = None
            except Unavailable as error:
                self._not_served(release, error)
        if "REEF_FAILPOINT" in os.environ:
            failpoints.hit("before-settle")
        self.runtime.settle(step.step_id, release.content_id if kept else None)
        return StepResult(verdict.decision.value, verdict.reason, release)

    def _without_release(self, batch: TrainingBatch, step: StepCommit, outcome: Outcome) -> StepResult:
        match outcome:
            case Stale(reason):
                return StepResult("stale", reason, retry_after_s=0.0)
            case Blocked(reason, retry_after_s):
                return StepResult("blocked", reason, retry_after_s=retry_after_s)
            case Skip(reason, metrics, _):
                self.chain.commit(replace(step, reason=reason, metrics={**step.metrics, **metrics}))
                self._state = step.next_algorithm_state
                self.processor.acknowledge(batch.batch_id)
                self.runtime.settle(step.step_id, None)
                return StepResult("skip", reason)
            case Refused(reason, metrics):
                said = f"step_refused: {reason}"
                marks = [Mark(one, RecordState.REFUSED, said) for one in step.consumed]
                metrics = {**step.metrics, **metrics}
                self.chain.commit(replace(step, outcome="refused", reason=reason, consumed=(), metrics=metrics), marks)
                self.processor.discard(batch.batch_id, said)
                self.runtime.settle(step.step_id, None)
                return StepResult("refused", reason)
        raise RecipeBug(f"the runtime answered {type(outcome).__name__}, which is no outcome of a step")

    def _publish(self, release: Release) -> None:
        """Serve a committed release; an engine that cannot confirm now is tried again before the next step."""
        self._unpublished = release
        try:
            self.runtime.publish(release)
            self.chain.served(self.scenario, release.release_id)
            self._unpublished = None
        except Unavailable as error:
            self._not_served(release, error)

    def _not_served(self, release: Release, error: Unavailable) -> None:
        log.warning("%s of %s is committed but not served yet: %s", release.release_id, self.scenario, error)

    def _replay(self) -> int:
        """What a dead trainer left, in its old order; returns the rev up to which all has been seen.

        That is only remembered at the end: a store that fails in between must not make anything be forgotten.
        """
        seen = self.records.last_rev(self.scenario)
        live = self.records.live(self.scenario, reports_only=self.processor.reports_only, context=_CONTEXT_REPORTS)
        rows = [row for row in live if (row.rev or 0) <= seen]
        for horizon, row in as_it_was(rows, self.records, reports_only=self.processor.reports_only):
            self._horizon = horizon
            self._ingest(row)
        self._horizon = None
        log.info("%s took up %d records", self.scenario, len(rows))
        self._rev = seen
        return seen

    def _ingest(self, row: Row) -> None:
        record = row.record
        if record.request_type is RequestType.INFERENCE:
            if self.processor.reports_only and not self.processor.waits_for(record.agent_record_id):
                return
        elif record.state in (RecordState.CONSUMED, RecordState.REFUSED):
            self._guarded(record, self.processor.recall)
            return
        elif (spent := self.records.consumed(record.references)) is not None:
            reason = f"reference_consumed: {spent} has trained already"
            self.records.mark([Mark(record.agent_record_id, RecordState.REFUSED, reason)])
            return
        self._guarded(record, self.processor.ingest)

    def _guarded(self, record: AgentRecord, act: Callable[[AgentRecord], None]) -> None:
        """Run recipe code on one record; what it raises refuses that record and is logged, the loop goes on."""
        try:
            act(record)
        except RecipeBug as error:
            self._blame(record, "recipe_bug", error)
        except BaseException as error:  # the edge to code that is not ours: it may call sys.exit()
            self._blame(record, "recipe_error", error)

    def _blame(self, record: AgentRecord, code: str, error: BaseException) -> None:
        log.exception("recipe code failed on %s of %s", record.agent_record_id, self.scenario)
        if record.request_type is RequestType.INFERENCE and self.processor.reports_only:
            return  # a report that waited for it has the blame, and the processor has refused that one
        reason = f"{code}: {type(error).__name__}: {error}"
        self.records.mark([Mark(record.agent_record_id, RecordState.REFUSED, reason)])

    def _keep_judged(self) -> None:
        self.records.mark(Mark(one.record_id, one.state, one.reason) for one in self.processor.drain_judged())

    def _resolve(self, record_ids: Sequence[str]) -> dict[str, AgentRecord]:
        rows = self.records.resolve(record_ids)
        return {
            one: row.record
            for one, row in rows.items()
            if row.record.state is not RecordState.OPEN
            and row.record.scenario == self.scenario
            and (self._horizon is None or (row.rev or 0) <= self._horizon)
        }

    def _lag(self, release_id: str | None) -> int:
        """Releases published between ``release_id`` and the head; 0 for records that name none."""
        head = self._head
        head_id = head.release_id if head is not None else None
        if self._lags[0] != head_id:
            self._lags = (head_id, {})
        known = self._lags[1]
        if release_id is None or head is None:
            return 0
        if release_id not in known:
            known[release_id] = self.chain.published_after(self.scenario, release_id)
        return known[release_id]
