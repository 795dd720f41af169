"""AgentRecord: one stored exchange, report or training request, as a frozen value.

Knows nothing of storage or HTTP. Made by the gateway, the report route, imports and tests.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
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


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(now_s: float | None = None) -> str:
    """A 26-character id that sorts by creation time (48 bits of milliseconds, 80 random bits, Crockford base 32)."""
    value = (int((time.time() if now_s is None else now_s) * 1000) << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


def canonical_json(value: Any) -> bytes:
    """JSON bytes that are equal for equal values: sorted keys, no spaces; NaN and infinities raise ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


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
            agent_record_id or new_id(),
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

    def content_hash(self) -> bytes:
        """16 bytes over type, scenario and payload: equal for an honest retry, different for another content."""
        body = canonical_json([self.request_type, self.scenario, _plain(self.payload)])
        return hashlib.blake2b(body, digest_size=16).digest()


def _plain(value: Any) -> Any:
    """Mappings and tuples as dicts and lists, non-finite floats as text, so that any payload can be hashed."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
