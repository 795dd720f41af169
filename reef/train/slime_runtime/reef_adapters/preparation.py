"""prepare_slime_step: a reserved batch and a preparer become the payload a driver or the torch trainer receives.

Pure; exactly what the loop runs, so a smoke test that calls it proves the wire contract.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reef.errors import BadRequest
from reef.train.algos import StepSignal, require_policy_batch
from reef.train.algos.preparers import preparer_for
from reef.train.slime_runtime.training_algos.registry import loss_family
from reef.train.types import PolicyBatch, PolicySample, TrainingBatch


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """What is to be done with a batch; ``payload`` is JSON-able and empty for a skip."""

    action: Literal["train", "skip"]
    signal: StepSignal
    payload: Mapping[str, Any] = field(default_factory=dict)


def prepare_slime_step(batch: TrainingBatch, step_preparer: str, state: Mapping[str, Any]) -> PreparedStep:
    """Run the preparer and check its signal against the loss family; raises BadRequest naming what does not fit."""
    signal = preparer_for(step_preparer)(batch, state)
    if signal.action == "skip":
        return PreparedStep("skip", signal)
    if signal.action != "train":
        raise BadRequest(f"{step_preparer}: action must be 'train' or 'skip', not {signal.action!r}")
    policy = require_policy_batch(batch, step_preparer)
    family = loss_family(signal.loss_family)
    payload: dict[str, Any] = {
        "loss": family.name,
        "batch_id": policy.batch_id,
        "rows": [_row(sample) for sample in policy.samples],
        "metrics": dict(signal.metrics),
    }
    if signal.advantages is not None:
        payload["advantages"] = _advantages(signal.advantages, policy, step_preparer)
    payload |= dict(signal.extras)
    for name in sorted(family.forbids & payload.keys()):
        raise BadRequest(
            f"loss family {family.name} has no place for {name}, and training would silently ignore it",
            hint="use family pg for per-sample weights, or leave them out",
            field=name,
        )
    for name in sorted(family.needs - payload.keys() - {"rollout_log_probs"}):
        raise BadRequest(f"loss family {family.name} needs {name}", hint=f"return it from {step_preparer}", field=name)
    return PreparedStep("train", signal, payload)


def _advantages(values: tuple[float, ...], batch: PolicyBatch, preparer: str) -> list[float]:
    if len(values) != len(batch.samples):
        raise BadRequest(f"{preparer}: {len(values)} advantages for {len(batch.samples)} samples", field="advantages")
    for index, value in enumerate(values):
        if not math.isfinite(value):
            raise BadRequest(f"{preparer}: advantage {index} is {value}", field="advantages")
    return [float(value) for value in values]


def _row(sample: PolicySample) -> dict[str, Any]:
    return {
        "tokens": list(sample.tokens),
        "loss_mask": list(sample.loss_mask),
        "rollout_log_probs": list(sample.rollout_log_probs),
        "reward": sample.reward,
        "temperature": sample.temperature,
        "record_ids": list(sample.record_ids),
        "release_id": sample.release_id,
        "content_id": sample.content_id,
    }
