"""What a batch means numerically: StepSignal and the helpers every preparer starts with.

Pure computation; imports neither torch, ray nor Slime. Called by the loop through ``prepare_slime_step``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reef.errors import BadRequest
from reef.train.types import PolicyBatch, TrainingBatch


@dataclass(frozen=True, slots=True)
class StepSignal:
    """What a preparer says of a batch.

    ``action`` "train", or "skip" for a change of algorithm state without a step of the runtime. ``advantages``: one finite float
    per sample, in batch order, or None for families that take none. ``next_algorithm_state`` is committed only with the step.
    """

    action: Literal["train", "skip"]
    loss_family: str
    next_algorithm_state: Mapping[str, Any]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    advantages: tuple[float, ...] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)


def require_policy_batch(batch: TrainingBatch, preparer: str) -> PolicyBatch:
    """``batch`` as a PolicyBatch with samples; raises BadRequest naming the preparer otherwise."""
    if not isinstance(batch, PolicyBatch):
        raise BadRequest(
            f"{preparer} needs a PolicyBatch, not {type(batch).__name__}", hint="set the processor's output_schema"
        )
    if not batch.samples:
        raise BadRequest(f"{preparer} was given batch {batch.batch_id!r} without samples")
    return batch


def next_steps(state: Mapping[str, Any]) -> int:
    """The step counter of an algorithm state, advanced by one; raises BadRequest when it is not a count."""
    steps = state.get("steps", 0)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise BadRequest(f"algorithm state holds steps={steps!r}, which is not a count")
    return steps + 1
