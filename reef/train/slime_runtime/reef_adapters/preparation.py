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
from reef.train.algos.preparers import Preparer, preparer_for
from reef.train.slime_runtime.training_algos.registry import FAMILIES, loss_family
from reef.train.types import TrainingBatch

_ROW_FIELDS = (
    "tokens",
    "loss_mask",
    "rollout_log_probs",
    "reward",
    "temperature",
    "record_ids",
    "release_id",
    "content_id",
)


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """What is to be done with a batch; ``payload`` is JSON-able and empty for a skip."""

    action: Literal["train", "skip"]
    signal: StepSignal
    payload: Mapping[str, Any] = field(default_factory=dict)


def prepare_slime_step(batch: TrainingBatch, step_preparer: str | Preparer, state: Mapping[str, Any]) -> PreparedStep:
    """Run the preparer (by name, or itself) and check its signal against the loss family.

    Raises BadRequest naming what does not fit.
    """
    preparer = preparer_for(step_preparer) if isinstance(step_preparer, str) else step_preparer
    signal = preparer(batch, state)
    if signal.action == "skip":
        return PreparedStep("skip", signal)
    name = preparer.__name__
    if signal.action != "train":
        raise BadRequest(f"{name}: action must be 'train' or 'skip', not {signal.action!r}")
    policy = require_policy_batch(batch, name)
    family = FAMILIES.get(signal.loss_family) or loss_family(signal.loss_family)
    payload: dict[str, Any] = {
        "loss": family.name,
        "batch_id": policy.batch_id,
        "rows": [{field: getattr(sample, field) for field in _ROW_FIELDS} for sample in policy.samples],
        "metrics": dict(signal.metrics),
    }
    if signal.advantages is not None:
        if len(signal.advantages) != len(policy.samples):
            said = f"{name}: {len(signal.advantages)} advantages for {len(policy.samples)} samples"
            raise BadRequest(said, field="advantages")
        payload["advantages"] = [float(value) for value in signal.advantages]
        for index, value in enumerate(payload["advantages"]):
            if not math.isfinite(value):
                raise BadRequest(f"{name}: advantage {index} is {value}", field="advantages")
    for taken in sorted(signal.extras.keys() & payload.keys()):
        raise BadRequest(f"{name}: extras may not replace {taken}", hint="name it otherwise", field=taken)
    payload |= signal.extras
    for given in sorted(family.forbids & payload.keys()):
        raise BadRequest(
            f"loss family {family.name} has no place for {given}, and training would silently ignore it",
            hint="use family pg for per-sample weights, or leave them out",
            field=given,
        )
    for missing in sorted(family.needs - payload.keys() - {"rollout_log_probs"}):
        raise BadRequest(f"loss family {family.name} needs {missing}", hint=f"return it from {name}", field=missing)
    return PreparedStep("train", signal, payload)
