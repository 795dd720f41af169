"""Records for tests of processors and trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reef.core.records_types import AgentRecord, RecordState, RequestType


def inference(
    record_id: str,
    tokens: Sequence[int] = (10, 20, 30),
    mask: Sequence[int] = (1, 1),
    log_probs: Sequence[float] = (-0.1, -0.2),
    *,
    state: RecordState = RecordState.COMPLETE,
    scenario: str = "s",
    release_id: str | None = None,
    **training: Any,
) -> AgentRecord:
    """A finished inference with its token block."""
    block = {"tokens": list(tokens), "loss_mask": list(mask), "rollout_log_probs": list(log_probs), **training}
    return AgentRecord.create(
        scenario,
        RequestType.INFERENCE,
        {"request": {}, "response": {"training": block}},
        record_id,
        state=state,
        release_id=release_id,
    )


def report(
    record_id: str, references: Sequence[str], score: float | None = 1.0, *, scenario: str = "s", **payload: Any
) -> AgentRecord:
    """A report."""
    body = {"references": list(references), "score": score, **payload}
    return AgentRecord.create(scenario, RequestType.REPORT, body, record_id)
