"""Values that travel from processor to preparer to runtime: samples, batches, the processor's context.

Knows nothing of records' storage, torch or HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reef.core.records_types import AgentRecord

Resolver = Callable[[Sequence[str]], Mapping[str, AgentRecord]]
"""Looks up records by id; missing or unfinished ones are left out."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Accepted units reserved together, named so that a retry can be recognised."""

    batch_id: str


@dataclass(frozen=True, slots=True)
class PolicySample:
    """One trainable rollout.

    ``tokens``: prompt and response ids; ``loss_mask`` (0/1) and ``rollout_log_probs``: one entry per response token, log-probs
    after temperature. ``reward``: the reported score. ``release_id``/``content_id``: what generated it.
    """

    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    rollout_log_probs: tuple[float, ...]
    reward: float
    temperature: float = 1.0
    release_id: str | None = None
    content_id: str | None = None
    record_ids: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The ids the model was given before its first own token."""
        return self.tokens[: len(self.tokens) - len(self.loss_mask)]


@dataclass(frozen=True, slots=True)
class PolicyBatch(TrainingBatch):
    """A batch of rollouts for a policy update; ``group_ids`` names each sample's group when the units were groups."""

    samples: tuple[PolicySample, ...] = ()
    group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessorContext:
    """What a processor is built with: its scenario and the recipe's data-side knobs.

    The trainer adds ``resolve`` (look a record up in the store), ``lag`` (releases between a record's and the head) and
    ``wake`` (something became ready on another thread); a processor tested on its own does without and remembers what it
    ingested.
    """

    scenario: str
    config: Mapping[str, Any] = field(default_factory=dict)
    resolve: Resolver | None = None
    lag: Callable[[str | None], int] | None = None
    wake: Callable[[], None] | None = None


class RowError(ValueError):
    """A training block breaks a rule of the tensor contract; ``str(error)`` names the rule."""


def check_tensors(block: Mapping[str, Any]) -> None:
    """Raise RowError naming the first rule that ``response.training`` breaks. Nothing is padded or repaired."""
    tokens, mask, log_probs = (block.get(key) for key in ("tokens", "loss_mask", "rollout_log_probs"))
    for name, value in (("tokens", tokens), ("loss_mask", mask), ("rollout_log_probs", log_probs)):
        if not isinstance(value, list | tuple) or not value:
            raise RowError(f"{name} is missing or empty")
    assert tokens is not None and mask is not None and log_probs is not None
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise RowError("tokens must be non-negative whole numbers")
    if not all(type(bit) is int and bit in (0, 1) for bit in mask):
        raise RowError("loss_mask must hold only 0 and 1")
    if len(log_probs) != len(mask):
        raise RowError(f"{len(log_probs)} rollout_log_probs for {len(mask)} response tokens")
    if len(mask) >= len(tokens):
        raise RowError(f"{len(mask)} response tokens leave no prompt in {len(tokens)} tokens")
    if not any(mask):
        raise RowError("loss_mask has no 1: nothing to train on")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in log_probs):
        raise RowError("rollout_log_probs must be finite numbers")
    if any(value > 1e-6 for value in log_probs):
        raise RowError("rollout_log_probs must not be above 0")
    temperature = block.get("temperature", 1.0)
    if not isinstance(temperature, int | float) or not math.isfinite(temperature) or temperature <= 0:
        raise RowError("temperature must be a positive number")
