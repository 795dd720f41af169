"""What a forward pass needs to know about its rows: shared beginnings, positions with logits, prompt log-probs.

Functions of rows and pieces, without state. Called by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reef.train.torch_runtime.attention import Piece
from reef.train.torch_runtime.generation import Running
from reef.train.torch_runtime.sampling import scaled


def common_prefix(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """How many of the first ``limit`` tokens are the same."""
    if list(left[:limit]) == list(right[:limit]):
        return limit
    return next(at for at in range(limit) if left[at] != right[at])


def kept_positions(rows: Sequence[Running], pieces: Sequence[Piece]) -> tuple[list[int], list[tuple[int, int]]]:
    """Run positions whose logits are needed, and for each piece its part of them (first, last)."""
    keep: list[int] = []
    spans: list[tuple[int, int]] = []
    for row, piece in zip(rows, pieces, strict=True):
        first = len(keep)
        end = piece.start + piece.count
        if row.wants_prompt_logprobs:
            keep += range(piece.start, end)
        elif piece.count == row.todo:
            keep.append(end - 1)
        spans.append((first, len(keep)))
    return keep, spans


def score_prompt(row: Running, piece: Piece, logits: Tensor) -> None:
    """Add the log-probs of the prompt tokens that this piece predicts; the first token of a prompt has none."""
    start = row.request.logprob_start
    if start == 0 and piece.past == 0:
        row.prompt_logprobs.append([None, row.ids[0], None])
    values = torch.log_softmax(scaled(logits, [row.request.sampling.temperature] * logits.shape[0]), dim=-1)
    for offset in range(piece.count):
        target = piece.past + offset + 1
        if max(start, 1) <= target < len(row.request.prompt):
            token = row.ids[target]
            row.prompt_logprobs.append([float(values[offset, token]), token, None])
