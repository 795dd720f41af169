"""Several adapters over one served model: each forward pass says which tokens use which adapter.

Knows nothing of requests or files. Called by the engine, always from its own thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reef.errors import BadRequest
from reef.train.torch_runtime.lora import Adapter, replace_layer, target_layers

Share = tuple[str, Tensor | None]
"""An adapter's name and the run positions that use it; None means all of them."""


class ServedLinear(nn.Module):
    """A linear layer with any number of low-rank parts, kept transposed and scaled for one fused product."""

    def __init__(self, base: nn.Linear, pool: AdapterPool) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self._pool = pool
        self.parts: dict[str, tuple[Tensor, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for x [1, N, in]."""
        y = linear(x, self.weight, self.bias)
        for name, positions in self._pool.shares:
            part = self.parts.get(name)
            if part is None:
                continue
            if positions is None:
                y[0].addmm_(x[0] @ part[0], part[1])
            else:
                y[0].index_add_(0, positions, x[0].index_select(0, positions) @ part[0] @ part[1])
        return y


class AdapterPool:
    """The adapters that are loaded, by name, and the shares of the pass that comes next."""

    def __init__(self, model: Any) -> None:
        self.shares: list[Share] = []
        self.names: set[str] = set()
        self._layers: dict[str, ServedLinear] = {}
        for name, base in target_layers(model).items():
            self._layers[name] = ServedLinear(base, self)
            replace_layer(model, name, self._layers[name])
        weight = next(iter(self._layers.values())).weight
        self._dtype, self._device = weight.dtype, weight.device

    def prepare(self, adapter: Adapter) -> dict[str, tuple[Tensor, Tensor]]:
        """Tensors ready for serving, checked against the model's layers; may run in any thread."""
        parts: dict[str, tuple[Tensor, Tensor]] = {}
        for name, (a, b) in adapter.layers.items():
            layer = self._layers.get(name)
            if layer is None:
                raise BadRequest(f"the adapter changes {name}, which this model does not have")
            if (b.shape[0], a.shape[1]) != tuple(layer.weight.shape) or a.shape[0] != b.shape[1]:
                raise BadRequest(f"the adapter's shapes do not fit layer {name}")
            if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
                raise BadRequest(f"the adapter has non-finite numbers in layer {name}")
            right = (b.float() * adapter.scale).t().contiguous()
            parts[name] = (
                a.t().contiguous().to(self._device, self._dtype),
                right.to(self._device, self._dtype),
            )
        return parts

    def add(self, name: str, parts: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Make a prepared adapter usable under ``name``."""
        for layer, pair in parts.items():
            self._layers[layer].parts[name] = pair
        self.names.add(name)

    def remove(self, name: str) -> None:
        """Forget an adapter that no running request uses."""
        for layer in self._layers.values():
            layer.parts.pop(name, None)
        self.names.discard(name)

    def assign(self, by_token: Sequence[str | None]) -> None:
        """Say which adapter each token of the next pass uses."""
        kinds = set(by_token)
        if kinds == {None}:
            self.shares = []
        elif len(kinds) == 1:
            self.shares = [(str(by_token[0]), None)]
        else:
            self.shares = [
                (name, torch.tensor([n for n, used in enumerate(by_token) if used == name], device=self._device))
                for name in sorted(kind for kind in kinds if kind is not None)
            ]
