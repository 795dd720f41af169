"""The trainer when something goes wrong around it: stores and engines that fail, recipe code that raises, a busy queue."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from reef.core.artifacts import Release
from reef.core.records_types import AgentRecord, RequestType
from reef.errors import NotFound, Unavailable
from reef.events import Bus
from reef.recipes import PGRecipe, WeightTrainingRecipe
from reef.records import RecordStore, Row
from reef.runtime import Outcome, Prepared
from reef.runtime.testing import StubTrainingRuntime
from reef.train.loop import Trainer
from reef.train.processors.base import DataProcessor
from reef.train.processors.derived import DerivedProcessor, Item
from reef.train.processors.pairing import Judgment, PairingProcessor, ReportView
from reef.train.processors.units import Unit
from reef.train.thread import TrainerThread
from reef.train.types import PolicyBatch, PolicySample, TrainingBatch
from tests.support import eventually
from tests.train.factories import inference, report


def add(records: RecordStore, number: int) -> None:
    records.append(inference(f"i{number}"))
    records.append(report(f"r{number}", [f"i{number}"]))


def built(records: RecordStore, runtime: StubTrainingRuntime | None = None, batch_size: int = 1) -> Trainer:
    return PGRecipe(runtime or StubTrainingRuntime(), batch_size=batch_size).build("s", records)


def test_a_release_that_cannot_be_served_is_not_trained_twice() -> None:
    class Broken(StubTrainingRuntime):
        def publish(self, release: Release) -> None:
            if len(self.steps) == 1 and not self.published:
                self.published.append(release)
                raise NotFound("the files are gone")
            super().publish(release)

    records, runtime = RecordStore(), Broken()
    add(records, 0)
    trainer = built(records, runtime)
    with pytest.raises(NotFound):
        trainer.run_step()
    assert trainer.run_step() is None, "the batch is used up, whatever serving it ran into"
    assert len(runtime.steps) == 1
    head = trainer.chain.head("s")
    assert head is not None and (head.release_id, head.state.value) == ("r1", "serving")


def test_a_store_that_fails_while_a_trainer_takes_up_its_records_makes_it_forget_nothing() -> None:
    class Flaky(RecordStore):
        def live(self, scenario: str, *, reports_only: bool, context: int) -> list[Row]:
            if not getattr(self, "failed", False):
                self.failed = True
                raise Unavailable("the disk is busy")
            return super().live(scenario, reports_only=reports_only, context=context)

    records = Flaky()
    add(records, 0)
    trainer = built(records)
    with pytest.raises(Unavailable):
        trainer.run_step()
    done = trainer.run_step()
    assert done is not None and done.outcome == "accept"


class Touchy(PairingProcessor):
    """Its judge fails on score 0."""

    output_schema: ClassVar[type[TrainingBatch]] = PolicyBatch

    def judge(self, view: ReportView) -> Judgment:
        if (gate := view.eligibility()) is not None:
            return gate
        if view.score == 0:
            raise ZeroDivisionError("no")
        return Judgment.train(PolicySample((1, 2), (1,), (-0.1,), 1.0))

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> PolicyBatch:
        return PolicyBatch(f"s:{batch_number}", tuple(unit.candidates[0].value for unit in units))


@dataclass(frozen=True, kw_only=True)
class TouchyRecipe(WeightTrainingRecipe):
    name: str = "touchy"
    step_preparer: ClassVar[str] = "pg"
    loss_family: ClassVar[str] = "pg"
    processor: ClassVar[type[DataProcessor]] = Touchy


def test_a_judge_that_raises_costs_its_own_report_and_no_other() -> None:
    records = RecordStore()
    trainer = TouchyRecipe(StubTrainingRuntime(), batch_size=1).build("s", records)
    records.append(report("bad", ["i"], 0))
    records.append(report("good", ["i"], 1))
    assert trainer.run_step() is None
    records.append(inference("i"))
    done = trainer.run_step()
    assert done is not None and done.release is not None
    bad, good, answer = (records.get(one) for one in ("bad", "good", "i"))
    assert (bad.record.state.value, bad.record.reason) == ("refused", "recipe_error: ZeroDivisionError: no")
    assert good.record.state.value == "consumed"
    assert answer.record.reason is None, "the inference is not to blame"
    assert trainer.progress()["parked"] == 0


class Slow(DerivedProcessor):
    """Judged on another thread, once the test says so."""

    output_schema: ClassVar[type[TrainingBatch]] = PolicyBatch
    asked: ClassVar[threading.Event] = threading.Event()
    answer: ClassVar[threading.Event] = threading.Event()

    def ingest(self, record: AgentRecord) -> None:
        if record.request_type is RequestType.INFERENCE and self.track(record):
            self.dispatch(Item(record.agent_record_id, (record,)))

    async def judge(self, item: Item) -> Any:
        import asyncio

        self.asked.set()
        await asyncio.to_thread(self.answer.wait)
        return 1.0

    def accept(self, item: Item, verdict: Any) -> Judgment:
        return Judgment.train(PolicySample((1, 2), (1,), (-0.1,), verdict))

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> PolicyBatch:
        return PolicyBatch(f"s:{batch_number}", tuple(unit.candidates[0].value for unit in units))


@dataclass(frozen=True, kw_only=True)
class SlowRecipe(WeightTrainingRecipe):
    name: str = "slow"
    step_preparer: ClassVar[str] = "pg"
    loss_family: ClassVar[str] = "pg"
    processor: ClassVar[type[DataProcessor]] = Slow


def test_a_verdict_wakes_the_trainer() -> None:
    records, runtime = RecordStore(), StubTrainingRuntime()
    trainer = SlowRecipe(runtime, batch_size=1).build("s", records)
    thread = TrainerThread(trainer, Bus())
    try:
        records.append(inference("i"))
        thread.wake()
        assert Slow.asked.wait(10)
        eventually(lambda: trainer.progress()["judging"] == 1, 10)
        Slow.answer.set()
        eventually(lambda: runtime.steps, 10)
    finally:
        Slow.answer.set()
        thread.stop()


@dataclass
class Held(StubTrainingRuntime):
    """A step lasts until the test lets it end."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    end: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        StubTrainingRuntime.__init__(self)

    def step(self, prepared: Prepared) -> Outcome:
        self.begun.release()
        assert self.end.acquire(timeout=20)
        return super().step(prepared)


def test_a_person_waits_for_one_step_and_not_for_all_that_are_queued() -> None:
    records, runtime = RecordStore(), Held()
    for number in range(5):
        add(records, number)
    thread = TrainerThread(built(records, runtime), Bus())
    seen: list[int] = []

    def act() -> None:
        with thread.between_steps() as trainer:
            seen.append(trainer.chain.scenario("s").step)

    try:
        thread.wake()
        assert runtime.begun.acquire(timeout=20)
        person = threading.Thread(target=act)
        person.start()
        eventually(lambda: not thread.free, 10)
        for _ in range(5):
            runtime.end.release()
        person.join(20)
        assert seen == [1]
        eventually(lambda: len(runtime.steps) == 5, 20)
    finally:
        thread.stop()
