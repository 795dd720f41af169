"""Looks at a candidate beside its parent: do replies still begin, and how far has the distribution moved?

Knows nothing of losses or files. Called by the stepper, before the update and after it was read back from disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reef.train.torch_runtime.attention import Branches, TreeLayout
from reef.train.torch_runtime.loading import forward_packed
from reef.train.torch_runtime.packing import StepRow

TEXTS = ("The capital of France is Paris.", "def add(a, b):\n    return a + b\n", "Once there was a small boat.")
MAX_PROMPTS = 4
MAX_PROMPT_TOKENS = 256
REPLY_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Canaries:
    """Fixed runs of ids [P] with the positions to look at; ``reply_starts`` index into all looked-at positions."""

    runs: tuple[tuple[int, ...], ...]
    look_at: tuple[tuple[int, ...], ...]
    reply_starts: tuple[int, ...]
    temperature: float = 1.0


def canaries(tokenizer: Tokenizer, rows: Sequence[StepRow], context: int) -> Canaries:
    """Fixed texts, and the beginnings of the replies to the first few short prompts of the batch."""
    runs = [tuple(tokenizer.encode(text, add_special_tokens=False).ids)[:context] for text in TEXTS]
    look_at = [tuple(range(len(run))) for run in runs]
    starts: list[int] = []
    seen: set[tuple[int, ...]] = set()
    count = sum(len(looks) for looks in look_at)
    for row in rows:
        if row.prompt in seen or len(row.prompt) > MAX_PROMPT_TOKENS or len(seen) >= MAX_PROMPTS:
            continue
        seen.add(row.prompt)
        run = (*row.prompt, *row.response[: REPLY_TOKENS - 1])
        runs.append(run)
        look_at.append(tuple(range(len(row.prompt) - 1, len(run))))
        starts.append(count)
        count += len(look_at[-1])
    return Canaries(tuple(runs), tuple(look_at), tuple(starts))


def distributions(model: Any, canary: Canaries, device: torch.device) -> Tensor:
    """Log-probs [P, V] at the looked-at positions."""
    ids: list[int] = []
    positions: list[int] = []
    keep: list[int] = []
    groups: list[Branches] = []
    for run, looks in zip(canary.runs, canary.look_at, strict=True):
        groups.append(Branches(len(ids), len(run), ()))
        keep += [len(ids) + at for at in looks]
        ids += run
        positions += range(len(run))
    with torch.no_grad():
        logits = forward_packed(
            model,
            torch.tensor(ids, device=device),
            torch.tensor(positions, device=device),
            TreeLayout(groups, device),
            torch.tensor(keep, device=device),
        )
        return torch.log_softmax(logits.float(), dim=-1)


def check(
    canary: Canaries, parent: Tensor, candidate: Tensor, stop_ids: frozenset[int], max_kl: float
) -> dict[str, dict[str, Any]]:
    """Named checks: all finite, mean KL to the parent bounded, replies not empty where the parent's were not."""
    finite = bool(torch.isfinite(candidate).all())
    divergence = float((parent.exp() * (parent - candidate)).sum(-1).mean()) if finite else float(max_kl) * 1e6
    before, after = _begun(canary, parent, stop_ids), _begun(canary, candidate, stop_ids)
    return {
        "canary_finite": {"ok": finite, "value": float(finite), "limit": 1.0},
        "kl_parent": {"ok": divergence <= max_kl, "value": divergence, "limit": max_kl},
        "canary_replies": {"ok": after >= before / 2, "value": after, "limit": before / 2},
    }


def _begun(canary: Canaries, logprobs: Tensor, stop_ids: frozenset[int]) -> float:
    """Share of the prompts whose likeliest first token does not end the reply; 1 when there are none."""
    if not canary.reply_starts:
        return 1.0
    first = logprobs[list(canary.reply_starts)].argmax(dim=-1).tolist()
    return sum(token not in stop_ids for token in first) / len(first)
