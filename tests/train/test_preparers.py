"""Preparers and the payload they become, against independent arithmetic."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from reef.errors import BadConfig, BadRequest
from reef.recipes import GRPORecipe, PGRecipe
from reef.runtime.testing import StubTrainingRuntime
from reef.train.algos import StepSignal, next_steps, require_policy_batch
from reef.train.algos.preparers import preparer_for
from reef.train.slime_runtime.reef_adapters.preparation import prepare_slime_step
from reef.train.slime_runtime.training_algos.registry import (
    SlimeAlgorithm,
    loss_families,
    loss_family,
    register_loss_family,
)
from reef.train.types import PolicyBatch, PolicySample, TrainingBatch


def batch(*rewards: float, groups: tuple[str, ...] = ()) -> PolicyBatch:
    samples = tuple(PolicySample((1, 2, 3), (1, 1), (-0.1, -0.2), reward) for reward in rewards)
    return PolicyBatch("b", samples, groups)


def advantages(name: str, rewards: tuple[float, ...], groups: tuple[str, ...] = (), state: Any = None) -> Any:
    return prepare_slime_step(batch(*rewards, groups=groups), name, state or {}).payload["advantages"]


def test_pg_takes_the_score_as_it_is_and_rwr_never_below_zero() -> None:
    assert advantages("pg", (0.8, -1.0)) == [0.8, -1.0]
    assert advantages("rwr", (0.8, -1.0)) == [0.8, 0.0]


def test_a_running_baseline_is_part_of_the_algorithm_state() -> None:
    first = prepare_slime_step(batch(1.0, 0.0), "pg_centred", {})
    assert first.payload["advantages"] == [0.5, -0.5]
    second = prepare_slime_step(batch(1.0), "pg_centred", first.signal.next_algorithm_state)
    assert second.payload["advantages"] == [0.5]
    assert second.signal.next_algorithm_state == {"steps": 2, "baseline": pytest.approx(0.55)}


def test_grpo_normalises_within_each_group() -> None:
    rewards, groups = (1.0, 0.0, 0.5, 3.0, 3.0), ("a", "a", "a", "b", "b")
    mean, std = statistics.fmean(rewards[:3]), statistics.pstdev(rewards[:3])
    expected = [(reward - mean) / (std + 1e-6) for reward in rewards[:3]] + [0.0, 0.0]
    assert advantages("grpo", rewards, groups) == pytest.approx(expected)


def test_a_batch_of_constant_groups_is_a_skip_that_moves_the_state_on() -> None:
    prepared = prepare_slime_step(batch(1.0, 1.0, groups=("a", "a")), "grpo", {"steps": 4})
    assert (prepared.action, prepared.payload) == ("skip", {})
    assert prepared.signal.next_algorithm_state["steps"] == 5


def test_sft_takes_no_advantages_and_refuses_them() -> None:
    assert "advantages" not in prepare_slime_step(batch(1.0), "sft", {}).payload

    def wrong(given: TrainingBatch, state: Any) -> StepSignal:
        return StepSignal("train", "sft", {}, advantages=(1.0,))

    with pytest.raises(BadRequest, match="no place for advantages"):
        prepare_slime_step(batch(1.0), wrong, {})


@pytest.mark.parametrize(
    ("signal", "said"),
    [
        (StepSignal("train", "pg", {}, advantages=(1.0, 2.0)), "2 advantages for 1 samples"),
        (StepSignal("train", "pg", {}, advantages=(float("nan"),)), "advantage 0 is nan"),
        (StepSignal("train", "pg", {}), "needs advantages"),
        (StepSignal("train", "pg", {}, advantages=(1.0,), extras={"rows": []}), "extras may not replace rows"),
        (StepSignal("jump", "pg", {}), "action must be"),  # type: ignore[arg-type]
    ],
)
def test_a_signal_that_does_not_fit_is_refused(signal: StepSignal, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        prepare_slime_step(batch(1.0), lambda _batch, _state: signal, {})


def test_helpers_refuse_what_is_no_batch_and_no_count() -> None:
    with pytest.raises(BadRequest, match="needs a PolicyBatch"):
        require_policy_batch(TrainingBatch("b"), "x")
    for steps in (-1, 1.5, True, "3"):
        with pytest.raises(BadRequest, match="not a count"):
            next_steps({"steps": steps})
    with pytest.raises(BadConfig, match="no step preparer"):
        preparer_for("nope")


def test_the_six_families_are_registered_and_strangers_come_in() -> None:
    assert set(loss_families()) >= {"sft", "pg", "sao", "opd", "tttd", "openclawrl-topk"}
    mine = register_loss_family(SlimeAlgorithm("mine-for-test", forbids=frozenset({"advantages"})))
    assert loss_family("mine-for-test") is mine
    with pytest.raises(BadConfig, match="other rules"):
        register_loss_family(SlimeAlgorithm("mine-for-test"))
    with pytest.raises(BadConfig, match="no loss family"):
        loss_family("nothing")


def test_a_recipe_and_a_runtime_that_do_not_fit_stop_the_boot() -> None:
    with pytest.raises(BadConfig, match="needs loss family pg"):
        PGRecipe(StubTrainingRuntime(families=frozenset({"sft"})))
    with pytest.raises(BadConfig, match="updates weights, but the runtime updates harness"):
        PGRecipe(StubTrainingRuntime(surface="harness"))
    with pytest.raises(BadConfig, match="not a multiple of group_size"):
        GRPORecipe(StubTrainingRuntime(), batch_size=10, group_size=4)
