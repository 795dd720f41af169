"""Loss families as pure functions of tensors, shared by the torch runtime and the Slime hook. Importing loads no torch.

``loss_function("pg", clip_low=0.2, clip_high=0.28)`` gives a family; a family says what it needs, checks a payload, and
turns a row into per-token losses. Who calls it owns temperature, packing, denominators, clipping and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable

from reef.errors import BadRequest
from reef.train.losses.pg import PolicyGradient
from reef.train.losses.protocol import LossFunction, Options, Reducer, Row, weights
from reef.train.losses.sft import SupervisedTokens

_BUILDERS: dict[str, Callable[[Options], LossFunction]] = {
    "pg": PolicyGradient.build,
    "sft": SupervisedTokens.build,
}


def loss_names() -> frozenset[str]:
    """Names of the loss families that have a torch implementation."""
    return frozenset(_BUILDERS)


def loss_function(name: str, options: Options | None = None) -> LossFunction:
    """The family ``name`` with its options; raises BadRequest with the known names."""
    build = _BUILDERS.get(name)
    if build is None:
        raise BadRequest(
            f"no loss family {name!r} can be trained here", hint=f"it has: {', '.join(sorted(_BUILDERS))}", field="loss"
        )
    return build(options or Options())


__all__ = ["LossFunction", "Options", "Reducer", "Row", "loss_function", "loss_names", "weights"]
