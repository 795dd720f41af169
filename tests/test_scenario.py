"""What people do to a scenario: it happens whole or not at all."""

from __future__ import annotations

import pytest

from reef.core.artifacts import Release
from reef.errors import Conflict, NotFound
from reef.events import Bus
from reef.inference.passthrough import PassthroughBackend
from reef.recipes import PGRecipe
from reef.records import RecordStore
from reef.releases import ReleaseChain
from reef.runtime import Blocked, Outcome, Prepared
from reef.runtime.testing import StubTrainingRuntime
from reef.scenario import Scenarios
from reef.train.watch import WatchSettings
from tests.support import eventually
from tests.train.factories import inference, report


class Forgetful(StubTrainingRuntime):
    """An engine some of whose releases' files have been removed."""

    gone: frozenset[str] = frozenset()

    def publish(self, release: Release) -> None:
        if release.content_id in self.gone:
            raise NotFound(f"the files of {release.content_id} are gone")
        super().publish(release)


def scenarios(records: RecordStore, runtime: StubTrainingRuntime, batch_size: int = 1) -> Scenarios:
    recipe = PGRecipe(runtime, batch_size=batch_size)
    return Scenarios(
        records,
        ReleaseChain(records.store),
        Bus(),
        recipe,
        PassthroughBackend("http://127.0.0.1:9"),
        create=True,
        review=False,
        watch=WatchSettings(),
        park_timeout_s=3600.0,
    )


def reported(records: RecordStore, number: int) -> None:
    records.append(inference(f"i{number}"))
    records.append(report(f"r{number}", [f"i{number}"]))


def test_a_rollback_to_a_release_whose_files_are_gone_changes_nothing() -> None:
    records, runtime = RecordStore(), Forgetful()
    all_of_them = scenarios(records, runtime)
    thread = all_of_them.open_now("s").thread
    assert thread is not None
    for number in range(2):
        reported(records, number)
        assert thread.trainer.run_step() is not None
    chain = all_of_them.chain
    runtime.gone = frozenset({chain.get("s", "r1").content_id})
    with pytest.raises(NotFound, match="gone"):
        all_of_them.rollback("s", "r1", "test")
    head = chain.head("s")
    assert head is not None and (head.release_id, head.state.value) == ("r2", "serving")
    assert len(chain.releases("s")) == 3
    assert runtime.published[-1].release_id == "r2"
    assert all_of_them.rollback("s", "r0", "test").restored_from == "r0"
    with pytest.raises(Conflict, match="already serves"):
        all_of_them.rollback("s", "r0", "test")
    all_of_them.stop()


def test_a_step_of_a_paused_scenario_is_refused() -> None:
    records = RecordStore()
    all_of_them = scenarios(records, StubTrainingRuntime(), batch_size=8)
    all_of_them.open_now("s")
    reported(records, 0)
    all_of_them.pause("s", True, "test")
    with pytest.raises(Conflict, match="paused") as refused:
        all_of_them.step("s")
    assert refused.value.hint == "go on with: reef resume -s s"
    all_of_them.stop()


def test_a_step_that_is_asked_for_counts_a_report_that_has_just_come() -> None:
    records, runtime = RecordStore(), StubTrainingRuntime()
    all_of_them = scenarios(records, runtime, batch_size=8)
    all_of_them.open_now("s")
    with pytest.raises(Conflict, match="nothing to train on"):
        all_of_them.step("s")
    reported(records, 0)
    assert all_of_them.step("s")["have"] == 1
    eventually(lambda: runtime.steps, 20)
    all_of_them.stop()


class Away(StubTrainingRuntime):
    """An engine that cannot be reached."""

    def step(self, prepared: Prepared) -> Outcome:
        super().step(prepared)
        return Blocked("the engine is away", 600.0)


def test_what_comes_in_while_a_step_is_blocked_does_not_try_it_again_and_a_person_does() -> None:
    records, runtime = RecordStore(), Away()
    all_of_them = scenarios(records, runtime, batch_size=1)
    thread = all_of_them.open_now("s").thread
    assert thread is not None
    for number in range(4):
        reported(records, number)
        thread.wake()
        eventually(lambda seen=f"r{number}": records.get(seen).record.state.value == "accepted", 20)  # it has looked
        eventually(lambda: thread.state == "blocked", 20)
    assert len(runtime.steps) == 1
    all_of_them.step("s")
    eventually(lambda: len(runtime.steps) == 2, 20)
    all_of_them.stop()
