"""What goes into the records table and what comes out of it, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reef.core.records_types import AgentRecord, RecordState
from reef.core.texts import writable
from reef.store.bodies import Segment

ResponseReader = Callable[[Mapping[str, Any], bytes], Any]
"""``(record's meta, wire bytes)`` -> the plain response object; given by the composition root."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model call on its way into the store. ``segments`` are the request's bytes, cut by ``split_json``."""

    record_id: str
    scenario: str
    segments: Sequence[Segment]
    created_at: float
    session: str | None = None
    release_id: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    lent: Sequence[bytes] = ()
    """Keys for other servers that the request hands to the provider: they are in no segment, nor may they be in the answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record with what only the store knows of it: order numbers and the step that consumed it."""

    seq: int
    rev: int | None
    record: AgentRecord
    consumed_step: int | None
    purged_at: float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A judgment to keep: the report's new state with its reason code and sentence."""

    record_id: str
    state: RecordState
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:  # it may quote an error of code that is not ours
            object.__setattr__(self, "reason", writable(self.reason))
