"""The trainer's loop where something does not fit, going back, and algorithm state that a step changes itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from reef.core.artifacts import Candidate, Decision, Verdict
from reef.core.records_types import RecordState
from reef.recipes import PGRecipe
from reef.records import RecordStore
from reef.runtime import Outcome, Prepared, Skip
from reef.runtime.testing import StubTrainingRuntime
from reef.train.algos import StepSignal
from reef.train.types import TrainingBatch
from tests.train.factories import inference, report


def too_many(batch: TrainingBatch, state: Any) -> StepSignal:
    return StepSignal("train", "pg", {"steps": 1}, advantages=(1.0, 2.0, 3.0))


class TooMany(PGRecipe):
    step_preparer: ClassVar[str] = "tests.train.test_loop:too_many"


def reported(records: RecordStore, number: int) -> None:
    records.append(inference(f"i{number}", [number + 1, 20, 30]))
    records.append(report(f"r{number}", [f"i{number}"]))


def test_a_batch_that_no_signal_fits_is_refused_once_and_the_loop_goes_on() -> None:
    records, runtime = RecordStore(), StubTrainingRuntime()
    trainer = TooMany(runtime, batch_size=1).build("s", records)
    reported(records, 0)
    result = trainer.run_step()
    assert result is not None and result.outcome == "refused"
    assert "3 advantages for 1 samples" in result.reason
    row = records.get("r0").record
    assert (row.state, (row.reason or "").split(":")[0]) == (RecordState.REFUSED, "step_refused")
    assert trainer.run_step() is None
    assert runtime.steps == []
    records.close()


def test_going_back_twice_goes_further_back() -> None:
    records = RecordStore()
    trainer = PGRecipe(StubTrainingRuntime(), batch_size=1).build("s", records)
    for number in range(3):
        reported(records, number)
        assert trainer.run_step() is not None
    assert trainer.chain.rollback("s", None, "test").restored_from == "r2"
    assert trainer.chain.rollback("s", None, "test").restored_from == "r1"
    assert trainer.chain.rollback("s", None, "test").restored_from == "r0"
    records.close()


class Counts(StubTrainingRuntime):
    """Its steps change the algorithm state themselves; every second one ends without a release."""

    def step(self, prepared: Prepared) -> Outcome:
        made = super().step(prepared)
        assert isinstance(made, Candidate)
        state = {"seen": len(self.steps)}
        return replace(made, state=state) if len(self.steps) % 2 else Skip("kept", state=state)


def test_what_a_step_makes_of_the_state_is_committed_with_it_and_comes_back_with_its_release() -> None:
    records, runtime = RecordStore(), Counts()
    recipe = PGRecipe(runtime, batch_size=1)
    trainer = recipe.build("s", records)
    for number, outcome in enumerate(("accept", "skip", "accept")):
        reported(records, number)
        result = trainer.run_step()
        assert result is not None and result.outcome == outcome
        assert trainer.algorithm_state_dict() == {"steps": number + 1, "seen": number + 1}
        assert recipe.build("s", records).algorithm_state_dict() == {"steps": number + 1, "seen": number + 1}
    trainer.chain.rollback("s", "r1", "test")
    trainer.recover()
    assert trainer.algorithm_state_dict() == {"steps": 1, "seen": 1}
    reported(records, 3)
    result = trainer.run_step()
    assert result is not None and trainer.algorithm_state_dict() == {"steps": 2, "seen": 4}
    records.close()


def test_a_candidate_that_is_not_taken_leaves_the_state_as_it_was() -> None:
    records = RecordStore()
    trainer = PGRecipe(Counts(), batch_size=1).build("s", records)
    trainer.gate = lambda candidate: Verdict(Decision.REJECT, "test", "no")
    reported(records, 0)
    result = trainer.run_step()
    assert result is not None and result.outcome == "reject" and trainer.algorithm_state_dict() == {}
    records.close()
