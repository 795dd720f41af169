"""How a record becomes a row: the statements that run on the writer's thread, inside its transaction.

Knows nothing of who asks. Called by RecordStore, whose futures are settled after the commit.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from reef.core.records_types import AgentRecord, Delivery, Finish
from reef.errors import Conflict, ReefError
from reef.records.values import Exchange
from reef.store.bodies import Segment, split_tensors

Put = Callable[[sqlite3.Connection, Sequence[Segment]], bytes | None]
"""Stores a body's segments and gives the manifest for its row (``Segments.put``)."""

_INLINE_BYTES = 64
"""A body longer than this is shared with equal ones."""
_REPEATED_WITHIN = 1000
"""A client repeats a call at once or not at all: so many records back its first try is looked for."""
NEXT_REV = "(SELECT COALESCE(MAX(r.rev), 0) + 1 FROM records r WHERE r.scenario_id = ?)"
_END_COLUMNS = "state, reason, release_id, meta, response, training, size_bytes, rev"
_END_VALUES = f"?, ?, ?, ?, ?, ?, ?, CASE WHEN ? THEN {NEXT_REV} END"
_END = (
    "state = ?, reason = ?, release_id = ?, meta = ?, response = ?, training = ?, size_bytes = ?,"
    f" rev = CASE WHEN ? THEN {NEXT_REV} END"
)


def make_scenario(db: sqlite3.Connection, name: str) -> int:
    """The row id of a scenario, made without a recipe when it is new.

    Nobody remembers it from here: a rolled-back insert would leave a wrong id. Readers remember what is on disk.
    """
    row = db.execute("SELECT id FROM scenarios WHERE name = ?", (name,)).fetchone()
    if row is not None:
        return int(row[0])
    made = db.execute(
        "INSERT INTO scenarios(name, recipe, surface, created_at) VALUES (?, '', 'nothing', ?)", (name, time.time())
    )
    assert made.lastrowid is not None
    return made.lastrowid


def abort_open(ends: Sequence[tuple[str, str]], db: sqlite3.Connection) -> None:
    """Make open rows final without an answer; ``ends`` are reasons and record ids."""
    db.executemany(
        "UPDATE records SET state = 'aborted', reason = ?, rev = (SELECT COALESCE(MAX(r.rev), 0) + 1 FROM records r"
        " WHERE r.scenario_id = records.scenario_id) WHERE id = ? AND state = 'open'",
        ends,
    )


def insert_record(
    db: sqlite3.Connection,
    record: AgentRecord,
    scenario_id: int,
    references: Sequence[str],
    digest: bytes,
    bodies: Sequence[bytes],
    training: Mapping[str, Any] | None,
    put: Put,
) -> None:
    """A whole record: ``bodies`` are its request and response as JSON, ``digest`` tells a retry from another content.

    Raises Conflict when a reference is not an inference of the same scenario; nothing is stored then.
    """
    for reference in references:
        named = db.execute("SELECT scenario_id, type FROM records WHERE id = ?", (reference,)).fetchone()
        if named is not None and named != (scenario_id, "inference"):
            raise _wrong_reference(reference, record.scenario, same_scenario=named[0] == scenario_id)
    cursor = db.execute(
        "INSERT INTO records(id, scenario_id, type, state, reason, created_at, rev, release_id, session, hash,"
        " meta, size_bytes, request, response, training) VALUES (?,?,?,?,?,?,"
        f" CASE ? WHEN 'open' THEN NULL ELSE {NEXT_REV} END,?,?,?,?,?,?,?,?)",
        (
            record.agent_record_id,
            scenario_id,
            record.request_type.value,
            record.state.value,
            record.reason,
            record.created_at,
            record.state.value,
            scenario_id,
            record.release_id,
            record.session,
            digest,
            orjson.dumps({"kind": "json", **record.meta}).decode(),
            sum(map(len, bodies)),
            *(put(db, [(len(body) > _INLINE_BYTES, body)] if body else ()) for body in bodies),
            None if training is None else put(db, split_tensors(training)),
        ),
    )
    for reference in references:
        db.execute("INSERT OR IGNORE INTO report_refs VALUES (?, ?)", (reference, cursor.lastrowid))


def write_exchange(
    known_ids: Mapping[str, int],
    put: Put,
    exchange: Exchange,
    finish: Finish | None,
    delivery: Delivery | None,
    opened: bool,
    db: sqlite3.Connection,
) -> None:
    """A whole exchange, its open row (no ``finish``), or the end of an ``opened`` one.

    With its end a row becomes final, and visible to the trainer, in the same transaction.
    """
    scenario_id = known_ids.get(exchange.scenario) or make_scenario(db, exchange.scenario)
    meta, sent, training = dict(exchange.meta), b"", None
    request = None if opened else put(db, exchange.segments)
    if meta.pop("retry", False):
        meta |= _repeated(db, scenario_id, exchange.record_id, request)
    if finish is not None and delivery is not None:
        sent, training = delivery.sent, finish.training
        known = {
            "status": delivery.status,
            "content_type": delivery.headers.get("content-type"),
            "content_encoding": delivery.headers.get("content-encoding"),
            "duration_ms": round(delivery.duration_ms, 1),
            "first_byte_ms": None if delivery.first_byte_ms is None else round(delivery.first_byte_ms, 1),
            "finish_reason": finish.finish_reason,
            "usage": dict(finish.usage) or None,
            "model": finish.model,
            "training_error": finish.training_error,
        }
        meta |= {name: value for name, value in known.items() if value is not None}
    end = (
        "open" if finish is None else finish.state.value,
        None if finish is None else finish.reason,
        exchange.release_id,
        orjson.dumps(meta).decode(),
        put(db, [(len(sent) > _INLINE_BYTES, sent)] if sent else ()),
        None if training is None else put(db, split_tensors(training)),
        sum([len(data) for _, data in exchange.segments], len(sent)),
        finish is not None,
        scenario_id,
    )
    if opened:
        db.execute(f"UPDATE records SET {_END} WHERE id = ? AND state = 'open'", (*end, exchange.record_id))
        return
    db.execute(
        f"INSERT INTO records({_END_COLUMNS}, id, scenario_id, type, created_at, session, hash, request)"
        f" VALUES ({_END_VALUES}, ?, ?, 'inference', ?, ?, ?, ?)",
        (
            *end,
            exchange.record_id,
            scenario_id,
            exchange.created_at,
            exchange.session,
            hashlib.blake2b(exchange.record_id.encode(), digest_size=16).digest(),
            request,
        ),
    )


def _repeated(db: sqlite3.Connection, scenario_id: int, record_id: str, request: bytes | None) -> dict[str, str]:
    """Which recent call a client says it repeats: the newest earlier one of the same bytes, which are the same segments.

    ``request`` None: the row of ``record_id`` is there already.
    """
    row = db.execute(
        "SELECT id FROM records WHERE scenario_id = ?1 AND type = 'inference'"
        " AND request = COALESCE(?2, (SELECT request FROM records WHERE id = ?3))"
        " AND seq < COALESCE((SELECT seq FROM records WHERE id = ?3), 1 << 62)"
        " AND seq > (SELECT COALESCE(MAX(seq), 0) FROM records) - ?4 ORDER BY seq DESC LIMIT 1",
        (scenario_id, request, record_id, _REPEATED_WITHIN),
    ).fetchone()
    return {"retry_of": row[0]} if row else {}


def _wrong_reference(reference: str, scenario: str, *, same_scenario: bool) -> ReefError:
    if same_scenario:
        return Conflict(
            f"{reference} is not an inference",
            hint="name a receipt of a model call",
            code="not_an_inference",
            field="references",
        )
    return Conflict(
        f"{reference} belongs to another scenario than {scenario!r}",
        hint="send the report with the scenario that the call was made in",
        code="other_scenario",
    )
