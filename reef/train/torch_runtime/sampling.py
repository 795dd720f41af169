"""Picks next tokens and their log-probs for a batch of rows, each with its own settings and seed.

Knows nothing of slots or text. Called by the engine after each forward pass. Log-probs are after temperature and
before top-k, top-p and min-p; temperature 0 is greedy with log-probs at temperature 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reef.errors import BadRequest

_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request is sampled; ``seed`` and the position of a token decide its draw, whatever runs beside it."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True

    @property
    def filters(self) -> bool:
        """Whether any part of the distribution is cut off before the draw."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


def sampling_from(values: Mapping[str, Any], seed: int) -> Sampling:
    """The ``sampling_params`` of a request, checked; ``seed`` is used when it names none."""
    known = dict(values)
    stop = known.get("stop") or ()
    sampling = Sampling(
        max_new_tokens=_number(known, "max_new_tokens", 128, 1, 1 << 30, whole=True),
        temperature=_number(known, "temperature", 1.0, 0.0, 100.0),
        top_p=_number(known, "top_p", 1.0, 1e-9, 1.0),
        top_k=_number(known, "top_k", -1, -1, 1 << 30, whole=True),
        min_p=_number(known, "min_p", 0.0, 0.0, 1.0),
        seed=_number(known, "sampling_seed", seed, -(1 << 63), (1 << 64) - 1, whole=True),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(known.get("stop_token_ids") or ()),
        ignore_eos=bool(known.get("ignore_eos", False)),
        no_stop_trim=bool(known.get("no_stop_trim", False)),
        skip_special_tokens=bool(known.get("skip_special_tokens", True)),
    )
    if not all(isinstance(text, str) and text for text in sampling.stop):
        raise BadRequest("sampling_params.stop must be a text or a list of texts", field="sampling_params.stop")
    return sampling


def _number(values: Mapping[str, Any], name: str, default: Any, low: float, high: float, *, whole: bool = False) -> Any:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        raise BadRequest(
            f"sampling_params.{name} must be {'a whole number' if whole else 'a number'} from {low:g} to {high:g}",
            field=f"sampling_params.{name}",
        )
    return value


def draw(seed: int, position: int) -> float:
    """A number in [0, 1) from the seed and the token's position alone, so a resumed request goes on alike."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=7).digest()
    return (int.from_bytes(digest, "big") >> 3) / (1 << 53)


@dataclass(frozen=True, slots=True)
class Picked:
    """One picked token of one row; ``top`` are the likeliest (log-prob, id) pairs where the request asks for them."""

    token: int
    logprob: float
    top: tuple[tuple[float, int], ...] = ()


def scaled(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Float32 logits [n, V] divided by each row's temperature (0 counts as 1)."""
    values = logits.float()
    if all(temperature in (0.0, 1.0) for temperature in temperatures):
        return values
    divisor = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
    return values / divisor[:, None]


def pick(
    logits: Tensor, rows: Sequence[Sampling], positions: Sequence[int], tops: Sequence[int]
) -> list[Picked | None]:
    """One token for each row of ``logits`` [n, V]; None where a row's logits are not finite."""
    values = scaled(logits, [row.temperature for row in rows])
    peak = values.amax(dim=-1, keepdim=True)
    weights = (values - peak).exp_()
    normaliser = peak[:, 0] + weights.sum(dim=-1).log()
    for number, row in enumerate(rows):
        if row.temperature > 0.0 and row.filters:
            weights[number] = filtered(weights[number], row)
    chosen = _inverse(weights, [draw(row.seed, at) for row, at in zip(rows, positions, strict=True)])
    greedy = [number for number, row in enumerate(rows) if row.temperature == 0.0]
    if greedy:
        chosen[greedy] = values[greedy].argmax(dim=-1)
    logprobs = values.gather(1, chosen[:, None])[:, 0] - normaliser
    finite = torch.isfinite(normaliser).tolist()
    tokens, amounts = chosen.tolist(), logprobs.tolist()
    return [
        Picked(tokens[n], amounts[n], _likeliest(values[n] - normaliser[n], tops[n])) if finite[n] else None
        for n in range(len(rows))
    ]


def _inverse(weights: Tensor, draws: Sequence[float]) -> Tensor:
    """Inverse-CDF sampling of rows [n, V] with one number in [0, 1) for each; weights need not sum to 1.

    First the block, then the token in it: a running sum over all of V costs more than a layer of a small model.
    """
    wide = torch.float64 if weights.device.type != "mps" else torch.float32
    count, vocab = weights.shape
    blocks = pad(weights, (0, -vocab % _BLOCK)).view(count, -1, _BLOCK)
    amounts = blocks.sum(dim=-1)
    sums = amounts.cumsum(dim=-1, dtype=wide)
    target = torch.tensor(draws, dtype=wide, device=weights.device)[:, None] * sums[:, -1:]
    block = _first_beyond(sums, target)
    before = sums.gather(1, block) - amounts.gather(1, block)
    inside = blocks.gather(1, block[:, :, None].expand(-1, 1, _BLOCK))[:, 0].cumsum(dim=-1, dtype=wide)
    found = block * _BLOCK + _first_beyond(inside, (target - before).clamp_(min=0.0))
    return found[:, 0].clamp_(max=vocab - 1)  # beyond it only in a row that is not finite


def _first_beyond(cumulative: Tensor, target: Tensor) -> Tensor:
    """Index [n, 1] of the first running sum above the target [n, 1]: never one whose own weight is 0."""
    last = cumulative[:, -1:]
    below = torch.minimum(target, last * (1.0 - torch.finfo(last.dtype).eps))
    return torch.searchsorted(cumulative, below, right=True).clamp_(max=cumulative.shape[1] - 1)


def filtered(weights: Tensor, row: Sampling) -> Tensor:
    """The distribution [V] with what top-k, top-p and min-p leave; not normalised again."""
    probabilities = weights / weights.sum()
    ordered, order = probabilities.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if row.top_k > 0:
        keep[row.top_k :] = False
    if row.top_p < 1.0:
        before = ordered.cumsum(0) - ordered
        keep &= before <= row.top_p
    if row.min_p > 0.0:
        keep &= ordered >= row.min_p * ordered[0]
    keep[0] = True
    return torch.zeros_like(probabilities).scatter_(0, order, ordered * keep)


def _likeliest(logprobs: Tensor, count: int) -> tuple[tuple[float, int], ...]:
    if count <= 0:
        return ()
    found = logprobs.topk(min(count, logprobs.shape[0]))
    return tuple(zip(found.values.tolist(), found.indices.tolist(), strict=True))
