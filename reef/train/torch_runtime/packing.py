"""Rows of a step as packed runs of tokens: equal prompts are computed once, micro-batches are bounded.

Knows nothing of losses or models. Called by the stepper. How rows are packed never changes the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reef.train.torch_runtime.attention import Branches

MAX_LOGITS = 1 << 25
"""Logit numbers of one micro-batch (128 MB in float32), a few copies of which exist at once."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row ready to train. L is the response length, ``mask`` and ``rollout_logp`` have L entries."""

    number: int
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    mask: tuple[int, ...]
    rollout_logp: tuple[float, ...]
    temperature: float
    advantage: float | None
    reward: float
    content_id: str | None

    @property
    def trained(self) -> int:
        """How many of its tokens train."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Packed:
    """One micro-batch: the flat run, the layout's groups, the rows, and the run positions of each row's logits."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    groups: tuple[Branches, ...]
    rows: tuple[StepRow, ...]
    logits_at: tuple[tuple[int, ...], ...]


def pack(rows: Sequence[StepRow], max_tokens: int, vocab: int) -> list[Packed]:
    """Micro-batches of at most ``max_tokens`` tokens where rows allow it, rows with equal prompts side by side."""
    by_prompt: dict[tuple[int, ...], list[StepRow]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, []).append(row)
    batches: list[list[list[StepRow]]] = [[]]
    tokens = logits = 0
    for group in by_prompt.values():
        for number, row in enumerate(group):
            fresh = number == 0
            cost = len(row.response) - 1 + (len(row.prompt) if fresh else 0)
            needs = len(row.response) * vocab
            if batches[-1] and (tokens + cost > max_tokens or logits + needs > MAX_LOGITS):
                batches.append([])
                tokens = logits = 0
                fresh, cost = True, len(row.response) - 1 + len(row.prompt)
            if fresh:
                batches[-1].append([])
            batches[-1][-1].append(row)
            tokens += cost
            logits += needs
    return [_packed(groups) for groups in batches if groups]


def _packed(groups: Sequence[Sequence[StepRow]]) -> Packed:
    ids: list[int] = []
    positions: list[int] = []
    branches: list[Branches] = []
    rows: list[StepRow] = []
    logits_at: list[tuple[int, ...]] = []
    for group in groups:
        start, prompt = len(ids), group[0].prompt
        ids += prompt
        positions += range(len(prompt))
        last = len(ids) - 1
        for row in group:
            # The last response id is only predicted, never read.
            inner = row.response[:-1]
            logits_at.append((last, *range(len(ids), len(ids) + len(inner))))
            positions += range(len(prompt), len(prompt) + len(inner))
            ids += inner
            rows.append(row)
        branches.append(Branches(start, len(prompt), tuple(len(row.response) - 1 for row in group)))
    return Packed(tuple(ids), tuple(positions), tuple(branches), tuple(rows), tuple(logits_at))
