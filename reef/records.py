"""RecordStore: append, resolve, page, mark. The only module that knows the records table.

Knows nothing of recipes, releases' files or HTTP. Called by the gateway, the report route, the trainer and readers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.errors import Conflict, NotFound
from reef.store import Store
from reef.store.bodies import Segment, join_tensors, read_body, split_bytes, split_json, split_tensors

ResponseReader = Callable[[Mapping[str, Any], bytes], Any]
"""``(record's meta, wire bytes)`` -> the plain response object; given by the composition root."""

_COLUMNS = "seq, id, type, state, reason, created_at, rev, release_id, session, consumed_step, purged_at, meta"
_LIVE = "state IN ('parked','accepted')"


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


@dataclass(frozen=True, slots=True)
class ExchangeEnd:
    """How a call ended: final state, answer's wire bytes, training block, more for ``meta``."""

    state: RecordState
    reason: str | None
    response: bytes
    training: Mapping[str, Any] | None
    meta: Mapping[str, Any]


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


class RecordStore:
    """Records in one Store. Without a path everything is in memory, as tests and smoke tests want it."""

    def __init__(self, store: Store | Path | str | None = None, *, read_response: ResponseReader | None = None) -> None:
        self.store = store if isinstance(store, Store) else Store(Path(store) if store is not None else None)
        self._read_response = read_response
        self._scenario_ids: dict[str, int] = {}

    # -- writing

    def append(self, record: AgentRecord) -> AgentRecord:
        """Store ``record``; the same id with the same content returns the stored one, other content is a Conflict."""
        return self.store.write(self._appending(record))

    def submit(self, record: AgentRecord) -> asyncio.Future[AgentRecord]:
        """As ``append``, awaited on the event loop."""
        return self.store.submit(self._appending(record))

    def submit_exchange(self, exchange: Exchange, end: ExchangeEnd | None) -> asyncio.Future[int]:
        """A whole exchange in one transaction, or its open row when ``end`` is None; the future gives its seq."""

        def work(db: sqlite3.Connection) -> int:
            seq = self._insert_exchange(db, exchange)
            if end is not None:
                self._finish(db, exchange, end)
            return seq

        return self.store.submit(work)

    def submit_end(self, exchange: Exchange, end: ExchangeEnd) -> asyncio.Future[None]:
        """Complete an open row; it becomes final, and visible to the trainer, in this transaction."""
        return self.store.submit(lambda db: self._finish(db, exchange, end))

    def close_open(self, reason: str) -> int:
        """Mark rows that a dead daemon left open as aborted; returns how many."""

        def work(db: sqlite3.Connection) -> int:
            rows = db.execute("SELECT seq, scenario_id FROM records WHERE state = 'open'").fetchall()
            for seq, scenario_id in rows:
                db.execute(
                    "UPDATE records SET state = 'aborted', reason = ?, rev = ? WHERE seq = ?",
                    (reason, _next_rev(db, scenario_id), seq),
                )
            return len(rows)

        return self.store.write(work)

    def mark(self, marks: Iterable[Mark]) -> None:
        """Keep judgments; a report that a step consumed meanwhile stays consumed."""
        rows = [(mark.state.value, mark.reason, mark.record_id) for mark in marks]
        if rows:
            self.store.write(
                lambda db: db.executemany(f"UPDATE records SET state = ?, reason = ? WHERE id = ? AND {_LIVE}", rows)
            )

    # -- reading

    def get(self, record_id: str) -> Row:
        """One record; raises NotFound."""
        with self.store.reading() as db:
            row = db.execute(
                f"SELECT {_COLUMNS}, (SELECT name FROM scenarios s WHERE s.id = scenario_id) FROM records WHERE id = ?",
                (record_id,),
            ).fetchone()
        if row is None:
            raise NotFound(f"no record {record_id!r}", hint="list them with: reef records")
        return self._row(row[:-1], row[-1])

    def resolve(self, record_ids: Sequence[str]) -> dict[str, Row]:
        """The records among ``record_ids`` that exist, by id."""
        found: dict[str, Row] = {}
        for start in range(0, len(record_ids), 500):
            some = list(record_ids[start : start + 500])
            marks = ",".join("?" * len(some))
            with self.store.reading() as db:
                rows = db.execute(
                    f"SELECT {_COLUMNS}, (SELECT name FROM scenarios s WHERE s.id = scenario_id)"
                    f" FROM records WHERE id IN ({marks})",
                    some,
                ).fetchall()
            found |= {row[1]: self._row(row[:-1], row[-1]) for row in rows}
        return found

    def page(
        self,
        scenario: str,
        *,
        before_seq: int | None = None,
        after_seq: int | None = None,
        limit: int = 50,
        type: str | None = None,
        state: str | None = None,
        session: str | None = None,
        consumed_step: int | None = None,
    ) -> list[Row]:
        """Newest first (oldest first after ``after_seq``); bodies are not read."""
        where, values = ["scenario_id = ?"], [self._known_scenario(scenario)]
        conditions: list[tuple[str, Any]] = [
            ("seq < ?", before_seq),
            ("seq > ?", after_seq),
            ("type = ?", type),
            ("state = ?", state),
            ("session = ?", session),
            ("consumed_step = ?", consumed_step),
        ]
        for condition, value in conditions:
            if value is not None:
                where.append(condition)
                values.append(value)
        order = "ASC" if after_seq is not None else "DESC"
        return self._select(scenario, f"{' AND '.join(where)} ORDER BY seq {order} LIMIT ?", [*values, limit])

    def pull(self, scenario: str, after_rev: int, limit: int) -> list[Row]:
        """What became final after ``after_rev``, in that order: what a trainer has not seen yet."""
        return self._select(
            scenario,
            "scenario_id = ? AND rev > ? ORDER BY rev LIMIT ?",
            [self._scenario_or_none(scenario), after_rev, limit],
        )

    def consumed(self, record_ids: Sequence[str]) -> str | None:
        """The first of ``record_ids`` that a step has used up, None when all are free."""
        rows = self.resolve(record_ids)
        return next((one for one in record_ids if one in rows and rows[one].consumed_step is not None), None)

    def last_rev(self, scenario: str) -> int:
        """The newest rev of ``scenario``, 0 for none."""
        with self.store.reading() as db:
            found = db.execute(
                "SELECT COALESCE(MAX(rev), 0) FROM records WHERE scenario_id = ?", (self._scenario_or_none(scenario),)
            ).fetchone()
        return int(found[0])

    def live(self, scenario: str, *, reports_only: bool, context: int) -> list[Row]:
        """What a restarted trainer must ingest again, in original order: everything unconsumed and not refused, and
        the ``context`` newest judged reports before it, which rebuild the memory of a stateful judge."""
        scenario_id = self._scenario_or_none(scenario)
        rows = self._select(
            scenario, f"scenario_id = ? AND type <> 'inference' AND {_LIVE} ORDER BY rev", [scenario_id]
        )
        if not reports_only:
            rows += self._select(
                scenario,
                "scenario_id = ? AND type = 'inference' AND rev IS NOT NULL AND consumed_step IS NULL"
                " AND purged_at IS NULL ORDER BY rev",
                [scenario_id],
            )
        first = min((row.rev or 0 for row in rows), default=None)
        newest = "" if first is None else f" AND rev < {first}"
        if context:
            rows += self._select(
                scenario,
                f"scenario_id = ? AND type = 'report' AND NOT {_LIVE} AND purged_at IS NULL{newest}"
                " ORDER BY rev DESC LIMIT ?",
                [scenario_id, context],
            )
        return sorted({row.seq: row for row in rows}.values(), key=lambda row: row.rev or 0)

    def session_receipts(self, scenario: str, session: str) -> list[str]:
        """Receipts of the inferences of one session, oldest first, helper calls left out."""
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT id FROM records WHERE session = ? AND scenario_id = ? AND type = 'inference'"
                " AND json_extract(meta, '$.helper') IS NULL ORDER BY seq",
                (session, self._scenario_or_none(scenario)),
            ).fetchall()
        return [row[0] for row in rows]

    def referencing(self, record_id: str) -> list[str]:
        """Ids of the reports that name ``record_id``."""
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT id FROM report_refs JOIN records ON seq = report_seq WHERE reference = ? ORDER BY seq",
                (record_id,),
            ).fetchall()
        return [row[0] for row in rows]

    def counts(self, scenario: str) -> dict[str, dict[str, int]]:
        """``{type: {state: count}}`` of one scenario."""
        found: dict[str, dict[str, int]] = {}
        with self.store.reading() as db:
            for kind, state, count in db.execute(
                "SELECT type, state, COUNT(*) FROM records WHERE scenario_id = ? GROUP BY type, state",
                (self._scenario_or_none(scenario),),
            ):
                found.setdefault(kind, {})[state] = count
        return found

    def reasons(self, scenario: str) -> dict[str, int]:
        """How many reports each reason code parks or refuses: the answer to "why is nothing training?"."""
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT substr(reason, 1, instr(reason || ':', ':') - 1), COUNT(*) FROM records WHERE scenario_id = ?"
                " AND type = 'report' AND state IN ('parked','refused') AND reason IS NOT NULL GROUP BY 1 ORDER BY 2 DESC",
                (self._scenario_or_none(scenario),),
            ).fetchall()
        return dict(rows)

    def total(self) -> int:
        """Number of records of all scenarios."""
        with self.store.reading() as db:
            return int(db.execute("SELECT COUNT(*) FROM records").fetchone()[0])

    def request_bytes(self, record_id: str) -> bytes:
        """The exact bytes of a request as it was sent (after decompression)."""
        return self._body(record_id, "request")

    def response_bytes(self, record_id: str) -> bytes:
        """The exact bytes of an answer as they were passed on."""
        return self._body(record_id, "response")

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    # -- inside

    def _appending(self, record: AgentRecord) -> Callable[[sqlite3.Connection], AgentRecord]:
        digest = record.content_hash()
        return lambda db: self._append(db, record, digest)

    def _append(self, db: sqlite3.Connection, record: AgentRecord, digest: bytes) -> AgentRecord:
        row = db.execute(f"SELECT hash, {_COLUMNS} FROM records WHERE id = ?", (record.agent_record_id,)).fetchone()
        if row is not None:
            if row[0] != digest:
                raise Conflict(
                    f"record {record.agent_record_id!r} exists with other content",
                    hint="a retry must repeat the first request exactly; a new report needs a new id",
                    code="id_reused",
                )
            return self._row(row[1:], record.scenario).record
        scenario_id = self._scenario_id(db, record.scenario)
        response = record.payload.get("response") if record.request_type is RequestType.INFERENCE else None
        training = response.get("training") if isinstance(response, Mapping) else None
        request = record.payload.get("request") if record.request_type is RequestType.INFERENCE else record.payload
        put = self.store.segments.put
        parts = (_json_segments(request), _json_segments(_without_training(response)))
        cursor = db.execute(
            "INSERT INTO records(id, scenario_id, type, state, reason, created_at, rev, release_id, session, hash, meta,"
            " size_bytes, request, response, training) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                record.agent_record_id,
                scenario_id,
                record.request_type.value,
                record.state.value,
                record.reason,
                record.created_at,
                None if record.state is RecordState.OPEN else _next_rev(db, scenario_id),
                record.release_id,
                record.session,
                digest,
                json.dumps({"kind": "json", **record.meta}),
                sum(len(data) for part in parts for _, data in part),
                put(db, parts[0]),
                put(db, parts[1]),
                put(db, split_tensors(training)) if training is not None else None,
            ),
        )
        for reference in record.references if record.request_type is RequestType.REPORT else ():
            db.execute("INSERT OR IGNORE INTO report_refs VALUES (?, ?)", (reference, cursor.lastrowid))
        return record

    def _insert_exchange(self, db: sqlite3.Connection, exchange: Exchange) -> int:
        digest = hashlib.blake2b(exchange.record_id.encode(), digest_size=16).digest()
        cursor = db.execute(
            "INSERT INTO records(id, scenario_id, type, state, created_at, release_id, session, hash, meta, size_bytes,"
            " request) VALUES (?,?,'inference','open',?,?,?,?,?,?,?)",
            (
                exchange.record_id,
                self._scenario_id(db, exchange.scenario),
                exchange.created_at,
                exchange.release_id,
                exchange.session,
                digest,
                orjson.dumps(exchange.meta).decode(),
                sum(len(data) for _, data in exchange.segments),
                self.store.segments.put(db, exchange.segments),
            ),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _finish(self, db: sqlite3.Connection, exchange: Exchange, end: ExchangeEnd) -> None:
        put = self.store.segments.put
        db.execute(
            "UPDATE records SET state = ?, reason = ?, rev = ?, meta = ?, size_bytes = size_bytes + ?, response = ?,"
            " training = ? WHERE id = ? AND state = 'open'",
            (
                end.state.value,
                end.reason,
                _next_rev(db, self._scenario_id(db, exchange.scenario)),
                orjson.dumps({**exchange.meta, **end.meta}).decode(),
                len(end.response),
                put(db, split_bytes(end.response)),
                put(db, split_tensors(end.training)) if end.training is not None else None,
                exchange.record_id,
            ),
        )

    def _scenario_id(self, db: sqlite3.Connection, name: str) -> int:
        known = self._scenario_ids.get(name)
        if known is not None:
            return known
        # Not remembered here: a rolled-back insert would leave a wrong id. Readers remember what is on disk.
        row = db.execute("SELECT id FROM scenarios WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return int(row[0])
        made = db.execute(
            "INSERT INTO scenarios(name, recipe, surface, created_at) VALUES (?, '', 'nothing', ?)", (name, time.time())
        )
        assert made.lastrowid is not None
        return made.lastrowid

    def _scenario_or_none(self, name: str) -> int | None:
        known = self._scenario_ids.get(name)
        if known is None:
            with self.store.reading() as db:
                row = db.execute("SELECT id FROM scenarios WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            known = self._scenario_ids[name] = int(row[0])
        return known

    def _known_scenario(self, name: str) -> int:
        known = self._scenario_or_none(name)
        if known is None:
            raise NotFound(f"no scenario {name!r}", hint="list them with: reef scenarios", code="no_scenario")
        return known

    def _select(self, scenario: str, where: str, values: Sequence[Any]) -> list[Row]:
        with self.store.reading() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM records WHERE {where}", values).fetchall()
        return [self._row(row, scenario) for row in rows]

    def _row(self, row: Sequence[Any], scenario: str) -> Row:
        seq, record_id, kind, state, reason, created_at, rev, release_id, session, consumed, purged, meta = row
        details = json.loads(meta)
        record = AgentRecord(
            record_id,
            scenario,
            RequestType(kind),
            StoredPayload(self, seq, RequestType(kind), details),
            created_at,
            RecordState(state),
            release_id,
            session,
            reason,
            details,
        )
        return Row(seq, rev, record, consumed, purged)

    def _body(self, record_id: str, column: str) -> bytes:
        with self.store.reading() as db:
            row = db.execute(f"SELECT {column} FROM records WHERE id = ?", (record_id,)).fetchone()
            if row is None:
                raise NotFound(f"no record {record_id!r}", hint="list them with: reef records")
            return read_body(db, row[0])

    def load(self, seq: int, kind: RequestType, meta: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of one row, read from disk now."""
        with self.store.reading() as db:
            request, response, training = db.execute(
                "SELECT request, response, training FROM records WHERE seq = ?", (seq,)
            ).fetchone()
            raw_request, raw_response = read_body(db, request), read_body(db, response)
            raw_training = read_body(db, training)
        parsed = json.loads(raw_request) if raw_request else None
        if kind is not RequestType.INFERENCE:
            return parsed if isinstance(parsed, dict) else {}
        answer = self._answer(meta, raw_response)
        if raw_training:
            answer = {**(answer if isinstance(answer, dict) else {}), "training": join_tensors(raw_training)}
        return {"request": parsed, "response": answer}

    def _answer(self, meta: Mapping[str, Any], raw: bytes) -> Any:
        if not raw:
            return None
        if meta.get("kind") == "json":
            return json.loads(raw)
        if self._read_response is None:
            return {"text": raw.decode(errors="replace")}
        return self._read_response(meta, raw)


class StoredPayload(Mapping[str, Any]):
    """A record's payload that is read from the store on use and not kept: thousands of records cost no memory."""

    __slots__ = ("_kind", "_meta", "_records", "_seq")

    def __init__(self, records: RecordStore, seq: int, kind: RequestType, meta: Mapping[str, Any]) -> None:
        self._records, self._seq, self._kind, self._meta = records, seq, kind, meta

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def _load(self) -> dict[str, Any]:
        return self._records.load(self._seq, self._kind, self._meta)


def _next_rev(db: sqlite3.Connection, scenario_id: int) -> int:
    row = db.execute("SELECT COALESCE(MAX(rev), 0) + 1 FROM records WHERE scenario_id = ?", (scenario_id,)).fetchone()
    return int(row[0])


def _json_segments(value: Any) -> Sequence[Segment]:
    return () if value is None else split_json(json.dumps(_plain(value)).encode())[1]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _without_training(response: Any) -> Any:
    if not isinstance(response, Mapping):
        return response
    return {key: value for key, value in response.items() if key != "training"} or None
