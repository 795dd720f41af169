"""DerivedProcessor: an async judge on a private worker, durable verdicts, records released with a reason."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reef.core.records_types import AgentRecord, RecordState
from reef.records import Mark, RecordStore
from reef.runtime.testing import StubTrainingRuntime
from reef.train.loop import Trainer
from reef.train.processors.derived import DerivedProcessor, DictMemory, Item
from reef.train.processors.pairing import Judgment
from reef.train.types import PolicyBatch, PolicySample, ProcessorContext
from tests.support import eventually
from tests.train.factories import inference, report


class Judged(DerivedProcessor):
    """Each inference is an item; a judge scores it by its first token and fails on 13."""

    concurrency = 2
    output_schema = PolicyBatch

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0
        self.go = threading.Event()

    def ingest(self, record: AgentRecord) -> None:
        if self.track(record):
            self.dispatch(Item(record.agent_record_id, (record,)))

    async def judge(self, item: Item) -> Any:
        self.asked.append(item.key)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.to_thread(self.go.wait)
        self.at_once -= 1
        first = item.records[0].payload["response"]["training"]["tokens"][0]
        if first == 13:
            raise ValueError("unlucky")
        return {"score": first / 10}

    def accept(self, item: Item, verdict: Any) -> Judgment:
        if verdict["score"] < 0.2:
            return Judgment.never("low", "under 0.2")
        return Judgment.train(PolicySample((1, 2), (1,), (-0.1,), verdict["score"]))

    def make_batch(self, units: Any, batch_number: int) -> PolicyBatch:
        return PolicyBatch(f"b{batch_number}", tuple(unit.candidates[0].value for unit in units))


@pytest.fixture
def memory() -> DictMemory:
    return DictMemory()


@pytest.fixture
def processor(memory: DictMemory) -> Iterator[Judged]:
    one = Judged(ProcessorContext("s", {"batch_size": 2, "verdict_memory": memory}))
    yield one
    one.go.set()
    one.close()


def feed(processor: Judged, *firsts: int) -> None:
    for first in firsts:
        processor.ingest(inference(f"i{first}", [first, 20, 30]))


def test_ingest_does_not_wait_and_judges_run_side_by_side_within_the_bound(processor: Judged) -> None:
    feed(processor, 3, 4, 5, 6)
    assert not processor.ready()
    eventually(lambda: processor.most_at_once == 2)
    processor.go.set()
    eventually(processor.ready)
    assert processor.most_at_once == 2


def test_units_leave_in_arrival_order_and_the_rest_is_released_with_reasons(processor: Judged) -> None:
    processor.go.set()
    feed(processor, 13, 1, 5, 4)
    eventually(lambda: processor.ready() and not processor.pending())
    batch = processor.build_batch()
    assert [sample.reward for sample in batch.samples] == [0.5, 0.4]
    assert processor.batch_records(batch.batch_id) == ("i5", "i4")
    reasons = {one.record_id: one.reason for one in processor.drain_judged()}
    assert reasons["i1"] == "low: under 0.2"
    assert reasons["i13"] == "judge_failed: ValueError: unlucky"
    processor.acknowledge(batch.batch_id)
    assert processor.retention_decision().releasable_agent_record_ids == {"i1", "i4", "i5", "i13"}


def test_a_verdict_is_not_bought_twice(processor: Judged, memory: DictMemory) -> None:
    processor.go.set()
    feed(processor, 5, 4, 4)
    eventually(processor.ready)
    again = Judged(ProcessorContext("s", {"batch_size": 2, "verdict_memory": memory}))
    feed(again, 5, 4)
    assert again.ready(), "without a worker, from memory alone"
    assert again.asked == []
    assert processor.asked.count("i4") == 1


def test_over_a_restart_of_the_trainer_nothing_is_judged_again(tmp_path: Path) -> None:
    """In the store: consumed and retired inferences are not replayed, verdicts of the others are used."""
    asked: list[str] = []

    class Remembering(Judged):
        def __init__(self, context: ProcessorContext) -> None:
            super().__init__(context)
            self.go.set()
            self.asked = asked

    records, runtime = RecordStore(tmp_path / "reef.db"), StubTrainingRuntime()

    def trainer() -> Trainer:
        return Trainer(
            "s", records, runtime=runtime, processor=Remembering, config={"batch_size": 2}, step_preparer="pg"
        )

    first = trainer()
    for number in (1, 4, 5, 6):
        records.append(inference(f"i{number}", [number, 20, 30]))
    assert eventually(first.run_step).release is not None
    first.catch_up()
    first.close()
    again = trainer()
    assert again.reserve_training_batch() is None
    assert again.processor.progress()["have"] == 1
    assert sorted(asked) == ["i1", "i4", "i5", "i6"]
    assert (records.get("i1").record.reason or "").startswith("low")
    again.close()
    records.close()


def test_after_a_restart_the_processor_sees_what_it_had_seen(tmp_path: Path) -> None:
    """Whatever became final and was not consumed or retired comes again, in its order, flagged or not whole as it may be."""
    seen: list[list[str]] = []

    class Watching(Judged):
        reports_only = False

        def __init__(self, context: ProcessorContext) -> None:
            super().__init__(context)
            seen.append([])

        def ingest(self, record: AgentRecord) -> None:
            seen[-1].append(record.agent_record_id)
            self.track(record)
            if record.agent_record_id in ("retired", "flagged-retired"):
                self.retire(record.agent_record_id, "low: of no use")

        def recall(self, record: AgentRecord) -> None:
            seen[-1].append(f"recalled {record.agent_record_id}")

    records, runtime = RecordStore(tmp_path / "reef.db"), StubTrainingRuntime()

    def trainer() -> Trainer:
        return Trainer("s", records, runtime=runtime, processor=Watching, config={"batch_size": 2}, step_preparer="pg")

    first = trainer()
    for name, state, reason in (
        ("plain", RecordState.COMPLETE, None),
        ("retired", RecordState.COMPLETE, None),
        ("empty", RecordState.COMPLETE, "empty_answer"),
        ("flagged-retired", RecordState.COMPLETE, "empty_answer"),
        ("cut", RecordState.INCOMPLETE, "no_end_mark"),
        ("failed", RecordState.FAILED, "upstream_500"),
    ):
        records.append(replace(inference(name, state=state), reason=reason))
    records.append(report("waiting", ["plain"]))
    records.append(report("judged", ["plain"]))
    records.mark([Mark("judged", RecordState.REFUSED, "no: not this one")])
    first.catch_up()
    first.close()
    again = trainer()
    again.catch_up()
    again.close()
    assert seen[0] == ["plain", "retired", "empty", "flagged-retired", "cut", "failed", "waiting", "recalled judged"]
    assert seen[1] == [name for name in seen[0] if "retired" not in name]
    kept = {name: records.get(name).record for name in ("retired", "flagged-retired")}
    assert {record.reason for record in kept.values()} == {"low: of no use", "empty_answer"}
    assert {record.meta["retired"] for record in kept.values()} == {"low: of no use"}
    records.close()
