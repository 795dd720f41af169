"""A record's payload, put together from its stored bodies when somebody looks at it.

Knows nothing of who may read what. Called by RecordStore with a connection of its own, or with the writer's.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, ItemsView, Iterator, Mapping
from typing import Any

from reef.core.records_types import RequestType
from reef.records.values import ResponseReader
from reef.store.bodies import join_tensors, read_body


def read_payload(
    db: sqlite3.Connection, seq: int, kind: RequestType, meta: Mapping[str, Any], read_response: ResponseReader | None
) -> dict[str, Any]:
    """The payload of one row as it is on ``db`` now. Without ``read_response`` an answer of a provider is a text."""
    request, response, training = db.execute(
        "SELECT request, response, training FROM records WHERE seq = ?", (seq,)
    ).fetchone()
    raw_request, raw_response, raw_training = (read_body(db, body) for body in (request, response, training))
    parsed = json.loads(raw_request) if raw_request else None
    if kind is not RequestType.INFERENCE:
        return parsed if isinstance(parsed, dict) else {}
    answer: Any = None
    if raw_response and meta.get("kind") == "json":
        answer = json.loads(raw_response)
    elif raw_response and read_response is not None:
        answer = read_response(meta, raw_response)
    elif raw_response:
        answer = {"text": raw_response.decode(errors="replace")}
    if raw_training:
        answer = {**(answer if isinstance(answer, dict) else {}), "training": join_tensors(raw_training)}
    return {"request": parsed, "response": answer}


class StoredPayload(Mapping[str, Any]):
    """A record's payload that is read from the store on use and not kept: thousands of records cost no memory."""

    __slots__ = ("_load",)

    def __init__(self, load: Callable[[], dict[str, Any]]) -> None:
        self._load = load

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def items(self) -> ItemsView[str, Any]:
        """Everything in one read: ``dict(payload.items())`` where several keys are wanted."""
        return self._load().items()
