"""Attention over packed tokens, for any transformers model: one flat run of tokens, a layout says who sees whom.

Knows nothing of requests, rows or losses. The layouts are ``SlotLayout`` (serving, keys and values kept in slots) and
``TreeLayout`` (training, rows that share a prompt share its keys). Shapes: H query heads, G key heads, D head size,
N tokens in the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from reef.errors import BadConfig

NAME = "reef_packed"
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


class Layout(Protocol):
    """Who sees whom in one forward pass."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention output [N, H, D] for query [H, N, D], key and value [G, N, D]."""


def register() -> None:
    """Make the packed attention known to transformers under ``NAME``."""
    AttentionInterface.register(NAME, packed_attention)


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers calls in each attention layer; tensors are [1, heads, N, D]."""
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            raise BadConfig(f"this model needs attention with {name!r}, which the embedded engine cannot do")
    scale = options.get("scaling")
    output = options["layout"].attend(
        module.layer_idx,
        query[0],
        key[0],
        value[0],
        query.shape[-1] ** -0.5 if scale is None else scale,
        options.get("sliding_window"),
    )
    return output.unsqueeze(0), None


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Boolean [queries, keys], True where seen; the last query sees the last key."""
    at = torch.arange(keys - queries, keys, device=device)[:, None]
    seen_at = torch.arange(keys, device=device)[None, :]
    mask = seen_at <= at
    return mask if window is None else mask & (seen_at > at - window)


def grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention for query [B, H, M, D] over key and value [B, G, T, D] without copying keys: [B, M, H, D].

    ``mask`` is [B or 1, M, T]; the query heads of one key head become further queries.
    """
    batch, heads, queries, size = query.shape
    key_heads = key.shape[1]
    share = heads // key_heads
    folded = query.reshape(batch, key_heads, share * queries, size)
    if mask is not None:
        mask = mask[:, None].repeat(1, 1, share, 1) if queries > 1 else mask[:, None].expand(-1, -1, share, -1)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale)
    return out.reshape(batch, heads, queries, value.shape[-1]).transpose(1, 2)


class SlotCache:
    """Keys and values of up to ``slots`` running sequences, [slots, G, capacity, D] for each layer; grows on demand."""

    def __init__(self, slots: int, capacity: int = 512) -> None:
        self.slots = slots
        self.capacity = capacity
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The buffers of layer ``index``, allocated like ``key`` and ``value`` [G, N, D] on first use."""
        found = self._layers.get(index)
        if found is None:
            found = self._empty(key), self._empty(value)
            self._layers[index] = found
        return found

    def reserve(self, length: int, used: Sequence[int]) -> None:
        """Make room for ``length`` tokens in a slot; ``used`` are the tokens held by slots 0, 1, ..."""
        if length <= self.capacity:
            return
        while self.capacity < length:
            self.capacity *= 2
        for index, pair in self._layers.items():
            grown = self._grow(pair[0], used), self._grow(pair[1], used)
            self._layers[index] = grown

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of slot ``source`` to slot ``target``."""
        for pair in self._layers.values():
            for buffer in pair:
                buffer[target, :, :length] = buffer[source, :, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot whose keys are not finite: even unseen positions would spoil the sums of the next user."""
        for pair in self._layers.values():
            for buffer in pair:
                buffer[slot].zero_()

    def release(self) -> None:
        """Give the memory back; only when no slot is in use."""
        self._layers.clear()
        self.capacity = 512

    def _empty(self, like: Tensor) -> Tensor:
        # Zeros, not whatever the memory held: a masked NaN is still a NaN.
        return torch.zeros(
            (self.slots, like.shape[0], self.capacity, like.shape[2]), dtype=like.dtype, device=like.device
        )

    def _grow(self, buffer: Tensor, used: Sequence[int]) -> Tensor:
        grown = torch.zeros(
            (self.slots, buffer.shape[1], self.capacity, buffer.shape[3]), dtype=buffer.dtype, device=buffer.device
        )
        for slot, length in enumerate(used):
            grown[slot, :, :length] = buffer[slot, :, :length]
        return grown


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` new tokens of one slot that already holds ``past``; they lie at ``start`` in the run."""

    slot: int
    past: int
    start: int
    count: int


class SlotLayout:
    """Serving: single new tokens of many slots and longer pieces of others in the same run.

    ``single`` are pieces with one token, in the order of their slots and first in the run; ``longer`` follow.
    """

    def __init__(
        self, cache: SlotCache, single: Sequence[Piece], longer: Sequence[Piece], device: torch.device
    ) -> None:
        self._cache = cache
        self._longer = longer
        self._device = device
        self._count = len(single)
        self._slots = torch.tensor([piece.slot for piece in single], device=device)
        self._at = torch.tensor([piece.past for piece in single], device=device)
        self._runs = [_Run(pieces) for pieces in _runs(single)]
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Store the new keys and values, then attend; see ``Layout``."""
        keys, values = self._cache.layer(layer, key, value)
        parts: list[Tensor] = []
        count = self._count
        if count:
            keys[self._slots, :, self._at] = key[:, :count].transpose(0, 1)
            values[self._slots, :, self._at] = value[:, :count].transpose(0, 1)
            by_row = query[:, :count].transpose(0, 1).unsqueeze(2)
            for number, run in enumerate(self._runs):
                rows = slice(run.slot, run.slot + run.count)
                part = grouped(
                    by_row[run.start : run.start + run.count],
                    keys[rows, :, : run.length],
                    values[rows, :, : run.length],
                    self._run_mask(number, run, window),
                    scale,
                )
                parts.append(part[:, 0])
        for number, piece in enumerate(self._longer):
            end, stop = piece.past + piece.count, piece.start + piece.count
            keys[piece.slot, :, piece.past : end] = key[:, piece.start : stop]
            values[piece.slot, :, piece.past : end] = value[:, piece.start : stop]
            part = grouped(
                query[None, :, piece.start : stop],
                keys[None, piece.slot, :, :end],
                values[None, piece.slot, :, :end],
                self._piece_mask(len(self._runs) + number, piece, window),
                scale,
            )
            parts.append(part[0])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _run_mask(self, number: int, run: _Run, window: int | None) -> Tensor | None:
        name = (number, window)
        if name not in self._masks:
            self._masks[name] = run.mask(window, self._device)
        return self._masks[name]

    def _piece_mask(self, number: int, piece: Piece, window: int | None) -> Tensor | None:
        name = (number, window)
        if name not in self._masks:
            self._masks[name] = causal_mask(piece.count, piece.past + piece.count, window, self._device)[None]
        return self._masks[name]


class _Run:
    """Single-token pieces of neighbouring slots, attended in one call over the longest of them."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.slot = pieces[0].slot
        self.start = pieces[0].start
        self.count = len(pieces)
        self.lengths = [piece.past + 1 for piece in pieces]
        self.length = max(self.lengths)

    def mask(self, window: int | None, device: torch.device) -> Tensor | None:
        """Boolean [count, 1, length], None when every slot sees all of it."""
        if min(self.lengths) == self.length and (window is None or window >= self.length):
            return None
        seen_at = torch.arange(self.length, device=device)[None, :]
        end = torch.tensor(self.lengths, device=device)[:, None]
        mask = seen_at < end
        if window is not None:
            mask = mask & (seen_at >= end - window)
        return mask[:, None]


def _runs(single: Sequence[Piece]) -> list[list[Piece]]:
    """Neighbouring slots together, but no run that would read more than twice what its slots hold."""
    runs: list[list[Piece]] = []
    for piece in single:
        run = runs[-1] if runs else None
        if run is not None and run[-1].slot + 1 == piece.slot and _dense([*run, piece]):
            run.append(piece)
        else:
            runs.append([piece])
    return runs


def _dense(run: Sequence[Piece]) -> bool:
    lengths = [piece.past + 1 for piece in run]
    return len(lengths) * max(lengths) <= 2 * sum(lengths) + 128 * len(lengths)


@dataclass(frozen=True, slots=True)
class Branches:
    """One shared prompt and its continuations: the prompt lies at ``start`` in the run, the branches behind it."""

    start: int
    prompt: int
    lengths: tuple[int, ...]

    @property
    def end(self) -> int:
        """The first position behind the last branch."""
        return self.start + self.prompt + sum(self.lengths)


@dataclass(slots=True)
class TreeLayout:
    """Training: each prompt is computed once, its branches see the prompt and themselves."""

    groups: Sequence[Branches]
    device: torch.device
    _masks: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)
    _indices: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """See ``Layout``."""
        parts: list[Tensor] = []
        for number, group in enumerate(self.groups):
            parts.append(self._prompt(group, query, key, value, scale, window))
            if any(group.lengths):
                parts.append(self._branches(number, group, query, key, value, scale, window))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _prompt(
        self, group: Branches, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
    ) -> Tensor:
        rows = slice(group.start, group.start + group.prompt)
        mask = self._mask(group.prompt, group.prompt, window)[None]
        return grouped(query[None, :, rows], key[None, :, rows], value[None, :, rows], mask, scale)[0]

    def _branches(
        self,
        number: int,
        group: Branches,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        gather, back = self._index(number, group)
        count, longest = len(group.lengths), max(group.lengths)
        shared = slice(group.start, group.start + group.prompt)

        def padded(tensor: Tensor) -> Tensor:
            heads, _, size = tensor.shape
            return tensor.index_select(1, gather).view(heads, count, longest, size).transpose(0, 1)

        def full(tensor: Tensor) -> Tensor:
            return torch.cat([tensor[None, :, shared].expand(count, -1, -1, -1), padded(tensor)], dim=2)

        # Padding stands behind each branch, and no token sees what stands behind it: one mask serves all branches.
        mask = self._mask(longest, group.prompt + longest, window)[None]
        out = grouped(padded(query), full(key), full(value), mask, scale)
        return out.reshape(count * longest, *out.shape[2:]).index_select(0, back)

    def _mask(self, queries: int, keys: int, window: int | None) -> Tensor:
        name = (queries, keys, window)
        if name not in self._masks:
            self._masks[name] = causal_mask(queries, keys, window, self.device)
        return self._masks[name]

    def _index(self, number: int, group: Branches) -> tuple[Tensor, Tensor]:
        """Positions that pad the branches to one length, and the places of the real tokens among them."""
        if number not in self._indices:
            gather, back = [], []
            start, longest = group.start + group.prompt, max(group.lengths)
            for branch, length in enumerate(group.lengths):
                gather += [start + at if at < length else group.start for at in range(longest)]
                back += [branch * longest + at for at in range(length)]
                start += length
            self._indices[number] = torch.tensor(gather, device=self.device), torch.tensor(back, device=self.device)
        return self._indices[number]
