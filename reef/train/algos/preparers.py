"""The named step preparers: sft, pg, rwr, grpo. A recipe names one, or its own as ``package.module:function``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from reef.dotted import imported
from reef.errors import BadConfig, BadRequest
from reef.train.algos import StepSignal, next_steps, require_policy_batch
from reef.train.types import TrainingBatch

Preparer = Callable[[TrainingBatch, Mapping[str, Any]], StepSignal]

_STD_FLOOR = 1e-6


def sft(batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
    """Supervised: raise the likelihood of every accepted sample alike; the family takes no advantages."""
    policy = require_policy_batch(batch, "sft")
    return _train("sft", state, [sample.reward for sample in policy.samples], None)


def pg(batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
    """Policy gradient with the reported score as the advantage."""
    policy = require_policy_batch(batch, "pg")
    rewards = [sample.reward for sample in policy.samples]
    return _train("pg", state, rewards, tuple(rewards))


def pg_centred(batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
    """Policy gradient with score minus a running mean (momentum 0.9), so that a low score pushes down."""
    policy = require_policy_batch(batch, "pg_centred")
    rewards = [sample.reward for sample in policy.samples]
    mean = statistics.fmean(rewards)
    before = state.get("baseline")
    baseline = mean if before is None else float(before)
    signal = _train("pg", state, rewards, tuple(reward - baseline for reward in rewards))
    moved = {**signal.next_algorithm_state, "baseline": 0.9 * baseline + 0.1 * mean}
    return replace(signal, next_algorithm_state=moved, metrics={**signal.metrics, "baseline": baseline})


def rwr(batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
    """Reward-weighted regression (Peters and Schaal, ICML 2007): the weight of a sample is its score, never negative."""
    policy = require_policy_batch(batch, "rwr")
    rewards = [sample.reward for sample in policy.samples]
    return _train("pg", state, rewards, tuple(max(reward, 0.0) for reward in rewards))


def grpo(batch: TrainingBatch, state: Mapping[str, Any]) -> StepSignal:
    """Group-normalised advantages (arXiv 2402.03300): (R - mean) / (std + 1e-6) within each group.

    A group of equal rewards has no signal and gets zeros; when no group has any, the step is skipped.
    """
    policy = require_policy_batch(batch, "grpo")
    groups = policy.group_ids or tuple("" for _ in policy.samples)
    by_group: dict[str, list[float]] = {}
    for group, sample in zip(groups, policy.samples, strict=True):
        by_group.setdefault(group, []).append(sample.reward)
    scale = {group: (statistics.fmean(rewards), statistics.pstdev(rewards)) for group, rewards in by_group.items()}
    advantages = tuple(
        0.0 if scale[group][1] < _STD_FLOOR else (sample.reward - scale[group][0]) / (scale[group][1] + _STD_FLOOR)
        for group, sample in zip(groups, policy.samples, strict=True)
    )
    constant = sum(std < _STD_FLOOR for _, std in scale.values())
    signal = _train("pg", state, [sample.reward for sample in policy.samples], advantages)
    metrics = {**signal.metrics, "groups": len(scale), "constant_groups": constant}
    return replace(signal, action="skip" if constant == len(scale) else "train", metrics=metrics)


PREPARERS: dict[str, Preparer] = {"sft": sft, "pg": pg, "pg_centred": pg_centred, "rwr": rwr, "grpo": grpo}


def preparer_for(name: str) -> Preparer:
    """The preparer called ``name``: a registered one or ``package.module:function``; raises BadConfig."""
    if name in PREPARERS:
        return PREPARERS[name]
    if ":" not in name:
        raise BadConfig(f"no step preparer {name!r}", hint=f"known: {', '.join(PREPARERS)}, or package.module:function")
    found: Preparer = imported(name, "step preparer")
    if not callable(found):
        raise BadConfig(f"step preparer {name!r} is no function")
    return found


def _train(
    family: str, state: Mapping[str, Any], rewards: list[float], advantages: tuple[float, ...] | None
) -> StepSignal:
    steps = next_steps(state)
    if advantages is not None and not all(math.isfinite(value) for value in advantages):
        raise BadRequest(f"{family}: an advantage is not finite", field="advantages")
    metrics = {"steps": steps, "reward_mean": statistics.fmean(rewards), "samples": len(rewards)}
    return StepSignal("train", family, {**state, "steps": steps}, metrics, advantages)
