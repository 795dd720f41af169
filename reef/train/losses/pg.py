"""Family ``pg``: policy gradient on recorded rollouts with a clipped ratio; one advantage for each row.

Serves pg, rwr and grpo recipes, which differ in their advantages only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reef.errors import BadRequest
from reef.train.losses.kernels import clipped_ratio
from reef.train.losses.protocol import Options, Reducer, Row, check_presence

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """Clipped policy gradient; ratios outside [1 - clip_low, 1 + clip_high] give no further push."""

    clip_low: float
    clip_high: float
    name: str = "pg"
    needs: frozenset[str] = frozenset({"rollout_log_probs", "advantages"})
    forbids: frozenset[str] = frozenset()
    reducer: Reducer = Reducer.SAMPLE_MEAN

    @classmethod
    def build(cls, options: Options) -> PolicyGradient:
        """The family with the clip bounds of ``options``."""
        return cls(options.clip_low, options.clip_high)

    def validate(self, payload: Mapping[str, Any]) -> None:
        """One finite advantage for each row."""
        check_presence(self, payload)

    def token_loss(self, row: Row) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``kernels.clipped_ratio``; measures ``ratio`` and ``clipped``."""
        if row.rollout_logp is None or row.advantage is None:
            raise BadRequest("family pg needs rollout_log_probs and an advantage in every row")
        loss, ratio, held = clipped_ratio(row.logp, row.rollout_logp, row.advantage, self.clip_low, self.clip_high)
        return loss, {"ratio": ratio, "clipped": held}
