"""Per-token formulas as tensor expressions; no torch import is needed, only tensors that come in.

Every kernel takes and gives [L] tensors. Called by the families.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def nll(logp: Tensor) -> Tensor:
    """Negative log-likelihood of the response ids."""
    return -logp


def clipped_ratio(
    logp: Tensor, rollout_logp: Tensor, advantage: float, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Pessimistic clipped surrogate max(-r A, -clip(r, 1-low, 1+high) A), the ratio r, and 1 where the clip holds."""
    ratio = (logp - rollout_logp).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    plain, bounded = -advantage * ratio, -advantage * clipped
    held = (bounded > plain).to(ratio.dtype)
    return plain.maximum(bounded), ratio.detach(), held.detach()
