"""Family ``sft``: imitate accepted answers; every row counts the same, whatever its score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reef.train.losses.kernels import nll
from reef.train.losses.protocol import Options, Reducer, Row, check_presence

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SupervisedTokens:
    """Negative log-likelihood of the response tokens."""

    name: str = "sft"
    needs: frozenset[str] = frozenset()
    forbids: frozenset[str] = frozenset({"advantages"})
    reducer: Reducer = Reducer.SAMPLE_MEAN

    @classmethod
    def build(cls, options: Options) -> SupervisedTokens:
        """The family; it takes no options."""
        return cls()

    def validate(self, payload: Mapping[str, Any]) -> None:
        """No advantages."""
        check_presence(self, payload)

    def token_loss(self, row: Row) -> tuple[Tensor, dict[str, Tensor]]:
        """Negative log-probs."""
        return nll(row.logp), {}
