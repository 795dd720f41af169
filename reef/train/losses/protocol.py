"""What a loss family is: the values it works on, its five members, and the weights of its reducer.

Knows nothing of models or files. Read by the torch trainer, the Slime hook and every family. L is a response's length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from reef.errors import BadRequest

if TYPE_CHECKING:
    from torch import Tensor


class Reducer(StrEnum):
    """How per-token losses become one number; denominators are those of the whole step, never of a micro-batch."""

    SAMPLE_MEAN = "sample_mean"
    """Mean over a row's trained tokens, then over rows."""
    TOKEN_MEAN = "token_mean"
    """Mean over all trained tokens of the step."""
    TOKEN_SUM = "token_sum"
    """Sum over all trained tokens of the step."""


@dataclass(frozen=True, slots=True)
class Options:
    """Numbers that families take from the training settings."""

    clip_low: float = 0.2
    clip_high: float = 0.28


@dataclass(frozen=True, slots=True)
class Row:
    """One row as a family sees it; tensors are [L], float32.

    ``logp``: log-probs of the response ids under the weights that train, with gradient. ``mask``: 1 where trained.
    ``extras``: results of further model passes, by the name in ``needs``.
    """

    logp: Tensor
    mask: Tensor
    rollout_logp: Tensor | None = None
    advantage: float | None = None
    logits: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)


class LossFunction(Protocol):
    """One loss family with its options."""

    @property
    def name(self) -> str:
        """As in the payload's ``loss``."""

    @property
    def needs(self) -> frozenset[str]:
        """Among ``rollout_log_probs``, ``advantages``, and names of further model passes."""

    @property
    def forbids(self) -> frozenset[str]:
        """Payload entries that this family would silently ignore."""

    @property
    def reducer(self) -> Reducer:
        """How its token losses become one number."""

    def validate(self, payload: Mapping[str, Any]) -> None:
        """Raise BadRequest naming the entry that is missing, forbidden or wrong; plain Python."""

    def token_loss(self, row: Row) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses [L] with gradient, and named per-token measurements [L] without."""


def check_presence(loss: LossFunction, payload: Mapping[str, Any]) -> None:
    """The part of ``validate`` that follows from ``needs`` and ``forbids``."""
    for name in sorted(loss.forbids):
        if payload.get(name) is not None:
            raise BadRequest(f"loss family {loss.name} has no place for {name}", field=name)
    if "advantages" in loss.needs:
        values = payload.get("advantages")
        rows = payload.get("rows") or ()
        if not isinstance(values, Sequence) or len(values) != len(rows):
            raise BadRequest(f"loss family {loss.name} needs one advantage for each row", field="advantages")
        for number, value in enumerate(values):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise BadRequest(f"advantage {number} is {value!r}, not a finite number", field="advantages")


def weights(reducer: Reducer, trained: Sequence[int]) -> list[float]:
    """The factor of each row's summed token losses, from the number of trained tokens of every row of the step."""
    total = sum(trained)
    if reducer is Reducer.SAMPLE_MEAN:
        return [1.0 / (len(trained) * count) if count else 0.0 for count in trained]
    return [1.0 / total if reducer is Reducer.TOKEN_MEAN else 1.0] * len(trained)
