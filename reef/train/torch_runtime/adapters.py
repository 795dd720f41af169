"""Several adapters over one served model: each forward pass says which token uses which adapter.

Knows nothing of requests or files. Called by the engine, always from its own thread, ``prepare`` aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reef.errors import BadRequest
from reef.train.torch_runtime.lora import Adapter, replace_layer, target_layers

Part = tuple[Tensor, Tensor]
"""One layer of one adapter, ready to use: down [in, rank] and up [rank, out], the factor already in it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An adapter ready to be added: its rank and its parts by layer name."""

    rank: int
    parts: dict[str, Part]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The adapters of one pass. ``mask`` [N, sum of ranks] is 1 where a token uses an adapter, None when all use one."""

    names: tuple[str, ...]
    mask: Tensor | None


class ServedLinear(nn.Module):
    """A linear layer with any number of low-rank parts."""

    def __init__(self, base: nn.Linear, pool: AdapterPool) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.parts: dict[str, Part] = {}
        self.joined: tuple[tuple[str, ...], Part] | None = None
        self._pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for x [1, N, in]."""
        y = linear(x, self.weight, self.bias)
        plan = self._pool.plan
        if plan is None:
            return y
        if plan.mask is None:
            part = self.parts.get(plan.names[0])
            if part is not None:
                y[0].addmm_(x[0] @ part[0], part[1])
            return y
        down, up = self._join(plan.names)
        y[0].addmm_((x[0] @ down).mul_(plan.mask), up)
        return y

    def _join(self, names: tuple[str, ...]) -> Part:
        """The parts of several adapters side by side: one product for all of them, masked in between."""
        if self.joined is None or self.joined[0] != names:
            parts = [self.parts.get(name) or self._nothing(self._pool.ranks[name]) for name in names]
            self.joined = names, (torch.cat([down for down, _ in parts], 1), torch.cat([up for _, up in parts]))
        return self.joined[1]

    def _nothing(self, rank: int) -> Part:
        """An adapter that leaves this layer alone."""
        return self.weight.new_zeros(self.weight.shape[1], rank), self.weight.new_zeros(rank, self.weight.shape[0])


class AdapterPool:
    """The adapters that are loaded, with their ranks by name, and the plan of the pass that comes next."""

    def __init__(self, model: Any) -> None:
        self.plan: _Plan | None = None
        self.ranks: dict[str, int] = {}
        self._layers: dict[str, ServedLinear] = {}
        for name, base in target_layers(model).items():
            self._layers[name] = ServedLinear(base, self)
            replace_layer(model, name, self._layers[name])
        weight = next(iter(self._layers.values())).weight
        self._dtype, self._device = weight.dtype, weight.device

    def prepare(self, adapter: Adapter) -> Prepared:
        """Tensors ready for serving, checked against the model's layers; may run in any thread."""
        parts: dict[str, Part] = {}
        ranks = {a.shape[0] for a, _ in adapter.layers.values()}
        if len(ranks) != 1:
            raise BadRequest(f"the adapter has {len(ranks)} ranks; one for all layers is needed")
        for name, (a, b) in adapter.layers.items():
            layer = self._layers.get(name)
            if layer is None:
                raise BadRequest(f"the adapter changes {name}, which this model does not have")
            if (b.shape[0], a.shape[1]) != tuple(layer.weight.shape) or a.shape[0] != b.shape[1]:
                raise BadRequest(f"the adapter's shapes do not fit layer {name}")
            if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
                raise BadRequest(f"the adapter has non-finite numbers in layer {name}")
            up = (b.float() * adapter.scale).t().contiguous()
            parts[name] = (a.t().contiguous().to(self._device, self._dtype), up.to(self._device, self._dtype))
        return Prepared(ranks.pop(), parts)

    def add(self, name: str, adapter: Prepared) -> None:
        """Make a prepared adapter usable under ``name``."""
        for layer_name, layer in self._layers.items():
            layer.joined = None
            if layer_name in adapter.parts:
                layer.parts[name] = adapter.parts[layer_name]
        self.ranks[name] = adapter.rank

    def remove(self, name: str) -> None:
        """Forget an adapter that no running request uses."""
        for layer in self._layers.values():
            layer.joined = None
            layer.parts.pop(name, None)
        self.ranks.pop(name, None)

    def assign(self, by_token: Sequence[str | None]) -> None:
        """Say which adapter each token of the next pass uses."""
        kinds = set(by_token)
        names = tuple(sorted(kind for kind in kinds if kind is not None))
        if not names:
            self.plan = None
        elif len(kinds) == 1:
            self.plan = _Plan(names, None)
        else:
            widths = torch.tensor([self.ranks[name] for name in names], device=self._device)
            owner = torch.arange(len(names), device=self._device).repeat_interleave(widths)
            at = {name: number for number, name in enumerate(names)}
            used = torch.tensor([-1 if name is None else at[name] for name in by_token], device=self._device)
            self.plan = _Plan(names, (used[:, None] == owner[None, :]).to(self._dtype))
