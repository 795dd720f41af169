"""AgentRecord: one stored exchange, report or training request, as a frozen value.

Knows nothing of storage or HTTP. Made by the gateway, the report route, imports and tests.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RequestType(StrEnum):
    """What a record is."""

    INFERENCE = "inference"
    """One model call and its answer."""
    REPORT = "report"
    """Feedback about one or more inferences."""
    TRAINING = "training"
    """A request in words for a harness change."""


class RecordState(StrEnum):
    """Where a record stands; the first five are an inference's, the rest a report's."""

    OPEN = "open"
    """The upstream is being called."""
    COMPLETE = "complete"
    """The answer ended as the protocol says it must."""
    INCOMPLETE = "incomplete"
    """The upstream stopped in the middle."""
    ABORTED = "aborted"
    """The client or the daemon went away."""
    FAILED = "failed"
    """The upstream answered with an error."""
    PARKED = "parked"
    """A report that waits for an inference, or has not been judged yet."""
    ACCEPTED = "accepted"
    """A report that will train with the next full batch."""
    CONSUMED = "consumed"
    """A report that a committed step has used."""
    REFUSED = "refused"
    """A report that will never train; the reason says why."""


@dataclass(frozen=True, slots=True)
class Finish:
    """How an answer ended. ``state`` is final; a reason code is given for anything but a plain complete answer.

    ``training`` is the token block (``tokens``, ``loss_mask``, ``rollout_log_probs``, ``temperature``, ``versions``...)
    or None; ``training_error`` says why a trainable engine gave none.
    """

    state: RecordState
    reason: str | None = None
    finish_reason: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    model: str | None = None
    training: Mapping[str, Any] | None = None
    training_error: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was passed on to the client: wire bytes, status, the headers that say how to read them, and how long it took."""

    sent: bytes
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    duration_ms: float = 0.0
    first_byte_ms: float | None = None


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One record; never changed after its final state is written.

    ``payload`` of an inference: ``{"request": ..., "response": {...}}``; trainable ones hold the token tensors at
    ``response.training`` (``tokens``, ``loss_mask``, ``rollout_log_probs``). Of a report: ``{"score", "feedback",
    "references", "metadata"}``. It may be a lazy mapping that reads bodies from the store on first use.
    """

    agent_record_id: str
    scenario: str
    request_type: RequestType
    payload: Mapping[str, Any]
    created_at: float
    state: RecordState
    release_id: str | None = None
    session: str | None = None
    reason: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        scenario: str,
        request_type: RequestType,
        payload: Mapping[str, Any],
        agent_record_id: str | None = None,
        *,
        created_at: float | None = None,
        state: RecordState | None = None,
        release_id: str | None = None,
        session: str | None = None,
        reason: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> AgentRecord:
        """A new record; an inference is complete and a report parked unless ``state`` says otherwise."""
        if state is None:
            state = RecordState.COMPLETE if request_type is RequestType.INFERENCE else RecordState.PARKED
        now_s = time.time() if created_at is None else created_at
        return cls(
            agent_record_id or uuid.uuid4().hex,
            scenario,
            request_type,
            payload,
            now_s,
            state,
            release_id,
            session,
            reason,
            {} if meta is None else meta,
        )

    @property
    def references(self) -> tuple[str, ...]:
        """The receipts a report names, each once, in order; empty for other records."""
        return tuple(dict.fromkeys(str(ref) for ref in self.payload.get("references") or ()))
