"""Show 5: reports before, after and during their inference, duplicated, reordered, over restarts: one training set."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.recipes.weights import PGRecipe, ScoredProcessor
from reef.records import RecordStore
from reef.runtime.testing import StubTrainingRuntime
from reef.train.loop import Trainer
from reef.train.processors.pairing import Judgment, ReportView
from reef.train.types import ProcessorContext
from tests.train.factories import inference, report

STATES = st.sampled_from([RecordState.COMPLETE] * 3 + [RecordState.INCOMPLETE, RecordState.ABORTED, RecordState.FAILED])
SCORES = st.one_of(st.floats(0, 1), st.just(None), st.just(float("nan")))


@dataclass(frozen=True)
class World:
    """What will be sent: inferences by final state, reports by their references (``missing`` ones never arrive)."""

    states: tuple[RecordState, ...]
    reports: tuple[tuple[tuple[int, ...], float | None], ...]

    def records(self) -> list[AgentRecord]:
        calls = [inference(f"i{n}", [n + 1, 7, 8], state=state) for n, state in enumerate(self.states)]
        return calls + [
            report(f"r{n}", [f"i{one}" for one in refs], score) for n, (refs, score) in enumerate(self.reports)
        ]

    def trains(self) -> set[str]:
        """The oracle: every reference arrived and is complete, the score is a number, one call (or it would be a fork)."""
        found = set()
        for number, (refs, score) in enumerate(self.reports):
            whole = all(one < len(self.states) and self.states[one] is RecordState.COMPLETE for one in refs)
            if len(set(refs)) == 1 and whole and score is not None and score == score:
                found.add(f"r{number}")
        return found


@st.composite
def worlds(draw: st.DrawFn, *, shared: bool) -> World:
    states = tuple(draw(st.lists(STATES, min_size=1, max_size=6)))
    if shared:
        refs = st.lists(st.integers(0, len(states)), min_size=0, max_size=2).map(tuple)
        return World(states, tuple(draw(st.lists(st.tuples(refs, SCORES), max_size=6))))
    order = draw(st.permutations(range(len(states) + 1)))
    return World(states, tuple(((one,), draw(SCORES)) for one in order))


@given(world=worlds(shared=True), seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_the_processor_accepts_the_same_set_in_every_order(world: World, seed: int) -> None:
    shuffle = random.Random(seed)
    arrivals = [record for record in world.records() for _ in range(shuffle.choice((1, 1, 2, 3)))]
    shuffle.shuffle(arrivals)
    processor = ScoredProcessor(ProcessorContext("s", {"batch_size": 1000}))
    for record in arrivals:
        processor.ingest(record)
    processor.flush()
    trained = set()
    if processor.ready():
        batch = processor.build_batch()
        trained = {one for one in processor.batch_records(batch.batch_id) if one.startswith("r")}
    assert trained == world.trains()


@given(world=worlds(shared=False), seed=st.integers(0, 2**32), batch_size=st.integers(1, 3))
@settings(max_examples=120, deadline=None)
def test_the_trainer_trains_each_report_once_over_steps_and_restarts(world: World, seed: int, batch_size: int) -> None:
    shuffle = random.Random(seed)
    runtime, records = StubTrainingRuntime(), RecordStore()
    recipe = PGRecipe(runtime, batch_size=batch_size)
    trainer = recipe.build("s", records)
    arrivals = [record for record in world.records() for _ in range(shuffle.choice((1, 2)))]
    shuffle.shuffle(arrivals)
    for record in arrivals:
        records.append(record)
        act = shuffle.random()
        if act < 0.3:
            steps(trainer)
        elif act < 0.5:
            before = trainer.reserve_training_batch()
            trainer = recipe.build("s", records)
            after = trainer.reserve_training_batch()
            assert before == after, "the next batch after a restart is the same"
    steps(trainer)
    trainer.flush()
    steps(trainer)
    trained = [one for step in runtime.steps for row in step.payload["rows"] for one in row["record_ids"]]
    expected = {f"i{world.reports[int(one[1:])][0][0]}" for one in world.trains()}
    assert sorted(trained) == sorted(expected)
    for record in world.records():
        state = records.get(record.agent_record_id).record.state
        if record.request_type is RequestType.REPORT and record.agent_record_id in world.trains():
            assert state is RecordState.CONSUMED
    records.close()


def steps(trainer: Trainer) -> None:
    while trainer.run_step() is not None:
        pass


class Rising(ScoredProcessor):
    """A judge with a memory: only what beats the report that was judged before it."""

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._last = 0.0

    def judge(self, view: ReportView) -> Judgment:
        found = super().judge(view)
        if found.verdict != "train":
            return found
        before, self._last = self._last, view.score or 0.0
        return found if self._last > before else Judgment.never("not_rising")


def test_a_judge_with_a_memory_is_as_it_was_after_a_restart_although_a_call_ended_late(tmp_path: Path) -> None:
    """r0 waits for its call, and is judged after r1: so it is after the restart, accepted or final."""
    for batch_size in (10, 2):
        records, runtime = RecordStore(tmp_path / f"{batch_size}.db"), StubTrainingRuntime()
        settings = {"processor": Rising, "config": {"batch_size": batch_size}, "step_preparer": "pg"}
        trainer = Trainer("s", records, runtime=runtime, **settings)
        for record in (report("r0", ["i0"], 0.9), inference("i1", [2, 7, 8]), report("r1", ["i1"], 0.5)):
            records.append(record)
            trainer.catch_up()
        records.append(inference("i0", [1, 7, 8]))
        steps(trainer)
        again = Trainer("s", records, runtime=runtime, **settings)
        for record in (inference("i2", [3, 7, 8]), report("r2", ["i2"], 0.7)):
            records.append(record)
        again.catch_up()
        states = {one: records.get(one).record.state for one in ("r0", "r1", "r2")}
        used = RecordState.ACCEPTED if batch_size == 10 else RecordState.CONSUMED
        assert states == {"r0": used, "r1": used, "r2": RecordState.REFUSED}
        records.close()
