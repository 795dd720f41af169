"""RecordStore: what may be done with records, and every way to read them; what is counted is in records.figures.

Knows nothing of how a row is written (records.writing does) or of what a body means. Built by daemon.app and by tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from reef.core.records_types import AgentRecord, Delivery, Finish, RecordState, RequestType
from reef.errors import Conflict, NotFound, Unavailable
from reef.records.payload import StoredPayload, read_payload
from reef.records.values import Exchange, Mark, ResponseReader, Row
from reef.records.writing import abort_open, insert_record, make_scenario, write_exchange
from reef.store import Store
from reef.store.bodies import read_body

_COLUMNS = "seq, id, type, state, reason, created_at, rev, release_id, session, consumed_step, purged_at, meta"
_LIVE = "state IN ('parked','accepted')"
_NOT_RETIRED = "json_extract(meta, '$.retired') IS NULL"


class RecordStore:
    """Records in one Store. Without a path everything is in memory, as tests and smoke tests want it."""

    def __init__(self, store: Store | Path | str | None = None, *, read_response: ResponseReader | None = None) -> None:
        self.store = store if isinstance(store, Store) else Store(Path(store) if store is not None else None)
        self._read_response = read_response
        self._scenario_ids: dict[str, int] = {}
        self._abandoned: dict[str, str] = {}

    # -- writing

    def append(self, record: AgentRecord) -> AgentRecord:
        """Store ``record``; the same id with the same content returns the stored one, other content is a Conflict."""
        return self.submit(record).result()[0]

    def submit(self, *records: AgentRecord) -> Future[list[AgentRecord]]:
        """As ``append``, as a future; of several either all are stored or none.

        A report on another scenario's inference is a Conflict, and nothing is stored.
        """
        prepared: list[tuple[AgentRecord, str, bytes, list[bytes], Any]] = []
        for record in records:
            response = record.payload.get("response") if record.request_type is RequestType.INFERENCE else None
            training = response.get("training") if isinstance(response, Mapping) else None
            if isinstance(response, Mapping):
                plain = {key: value for key, value in response.items() if key != "training"}
                response = plain if plain or training is None else None
            request = record.payload.get("request") if record.request_type is RequestType.INFERENCE else record.payload
            parts = [
                b"" if value is None else json.dumps(value, default=dict).encode() for value in (request, response)
            ]
            said = json.dumps([record.request_type, record.scenario, record.payload], sort_keys=True, default=dict)
            digest = hashlib.blake2b(said.encode(), digest_size=16).digest()
            prepared.append((record, said, digest, parts, training))

        def work(db: sqlite3.Connection) -> list[AgentRecord]:
            stored = []
            for record, said, digest, parts, training in prepared:
                row = db.execute("SELECT hash FROM records WHERE id = ?", (record.agent_record_id,)).fetchone()
                if row is not None:
                    same = row[0] == digest or self._recorded(db, record, row[0], said)
                    stored.append(self._again(db, record, same=same))
                    continue
                references = record.references if record.request_type is RequestType.REPORT else ()
                scenario_id = self._scenario_ids.get(record.scenario) or make_scenario(db, record.scenario)
                insert_record(db, record, scenario_id, references, digest, parts, training, self.store.segments.put)
                stored.append(record)
            return stored

        return self.store.submit(work)

    def submit_exchange(
        self, exchange: Exchange, finish: Finish | None, delivery: Delivery | None, *, opened: bool = False
    ) -> Future[None]:
        """A whole exchange in one transaction; its open row when ``finish`` is None; the open row's end when ``opened``.

        With its end a row becomes final, and visible to the trainer, in the same transaction.
        """

        put = self.store.segments.put
        work = partial(write_exchange, self._scenario_ids, put, exchange, finish, delivery, opened)
        return self.store.submit(work, opened)

    def abandon(self, record_id: str, reason: str) -> None:
        """Mark an open row aborted whose answer could not be stored: now, or by ``end_abandoned`` when that is possible."""
        self._abandoned[record_id] = reason
        self.end_abandoned()

    def end_abandoned(self) -> None:
        """Try again to end what ``abandon`` was told; reports that wait for such a row get their answer then."""
        ends = [(reason, record_id) for record_id, reason in self._abandoned.copy().items()]
        if not ends:
            return

        def done(future: Future[None]) -> None:
            if future.exception() is None:
                for _, record_id in ends:
                    self._abandoned.pop(record_id, None)

        self.store.submit(partial(abort_open, ends), True).add_done_callback(done)

    def self_test(self) -> None:
        """Store a body and read it back, and leave nothing of it; raises Unavailable when it comes back otherwise."""
        body = os.urandom(256)

        def work(db: sqlite3.Connection) -> None:
            manifest = self.store.segments.put(db, [(False, b"self-test "), (True, body)])
            same = read_body(db, manifest) == b"self-test " + body
            db.execute("DELETE FROM segments WHERE id = (SELECT MAX(id) FROM segments)")
            self.store.segments.forget()
            if not same:
                raise Unavailable(
                    "the store does not give back what it was given",
                    hint="see: reef doctor, and restore a backup: reef restore FILE --force",
                    code="store_damaged",
                )

        self.store.write(work)

    def close_open(self, reason: str) -> int:
        """Mark rows that a dead daemon left open as aborted; returns how many."""

        def work(db: sqlite3.Connection) -> int:
            rows = db.execute("SELECT id FROM records WHERE state = 'open' ORDER BY seq").fetchall()
            abort_open([(reason, row[0]) for row in rows], db)
            return len(rows)

        return self.store.write(work)

    def mark(self, marks: Iterable[Mark]) -> None:
        """Keep judgments. A report that a step consumed meanwhile stays consumed; a retired inference keeps its state, and
        its reason when it has one, and is not replayed any more."""
        rows = [(mark.state.value, mark.reason, mark.reason, mark.reason, mark.record_id) for mark in marks]
        if not rows:
            return
        self.store.write(
            lambda db: db.executemany(
                f"UPDATE records SET state = CASE WHEN {_LIVE} THEN ? ELSE state END, reason = CASE WHEN {_LIVE} THEN ? ELSE"
                " COALESCE(reason, ?) END, meta = CASE WHEN type = 'inference' THEN json_set(meta, '$.retired', ?) ELSE meta"
                f" END WHERE id = ? AND ({_LIVE} OR (type = 'inference' AND {_NOT_RETIRED}))",
                rows,
            )
        )

    def verdict(self, scenario: str, key: str) -> Any | None:
        """A derived judge's verdict kept for ``key``, None for none."""
        with self.store.reading() as db:
            row = db.execute(
                "SELECT value FROM verdicts WHERE scenario_id = ? AND key = ?", (self.known(scenario), key)
            ).fetchone()
        return None if row is None else json.loads(row[0])

    def keep_verdict(self, scenario: str, key: str, value: Any) -> None:
        """Keep a verdict, so that a restart does not pay for it again."""
        text = json.dumps(value)
        self.store.write(
            lambda db: db.execute(
                "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)",
                (self._scenario_ids.get(scenario) or make_scenario(db, scenario), key, text),
            )
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
        since: float | None = None,
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
            ("created_at >= ?", since),
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
            [self.known(scenario), after_rev, limit],
        )

    def consumed(self, record_ids: Sequence[str]) -> str | None:
        """The first of ``record_ids`` that a step has used up, None when all are free."""
        rows = self.resolve(record_ids)
        return next((one for one in record_ids if one in rows and rows[one].consumed_step is not None), None)

    def last_rev(self, scenario: str) -> int:
        """The newest rev of ``scenario``, 0 for none."""
        with self.store.reading() as db:
            found = db.execute(
                "SELECT COALESCE(MAX(rev), 0) FROM records WHERE scenario_id = ?", (self.known(scenario),)
            ).fetchone()
        return int(found[0])

    def live(self, scenario: str, *, reports_only: bool, context: int) -> list[Row]:
        """What a restarted trainer must see again, in original order: everything unconsumed and neither refused nor retired,
        however it ended, and the ``context`` newest judged reports, which rebuild the memory of a stateful judge."""
        scenario_id = self.known(scenario)
        rows = self._select(
            scenario, f"scenario_id = ? AND type <> 'inference' AND {_LIVE} ORDER BY rev", [scenario_id]
        )
        if not reports_only:
            rows += self._select(
                scenario,
                "scenario_id = ? AND type = 'inference' AND rev IS NOT NULL AND consumed_step IS NULL"
                f" AND purged_at IS NULL AND {_NOT_RETIRED} ORDER BY rev",
                [scenario_id],
            )
        if context:
            rows += self._select(
                scenario,
                f"scenario_id = ? AND type = 'report' AND NOT {_LIVE} AND purged_at IS NULL ORDER BY rev DESC LIMIT ?",
                [scenario_id, context],
            )
        return sorted({row.seq: row for row in rows}.values(), key=lambda row: row.rev or 0)

    def ended_later(self, report_seqs: Sequence[int]) -> dict[int, list[Row]]:
        """Of each of these reports the calls that it names and that ended after it came, by its seq."""
        with self.store.reading() as db:
            pairs = db.execute(
                "SELECT f.report_seq, i.id FROM report_refs f JOIN records r ON r.seq = f.report_seq"
                " JOIN records i ON i.id = f.reference AND i.scenario_id = r.scenario_id"
                " WHERE f.report_seq IN (SELECT value FROM json_each(?)) AND i.rev > r.rev",
                (json.dumps(list(report_seqs)),),
            ).fetchall()
        rows = self.resolve(list(dict.fromkeys(record_id for _, record_id in pairs)))
        found: dict[int, list[Row]] = {}
        for seq, record_id in pairs:
            found.setdefault(seq, []).append(rows[record_id])
        return found

    def session_receipts(self, scenario: str, session: str) -> list[str]:
        """Receipts of the turns of one session, oldest first.

        Helper calls, calls that a later one repeats, and calls that did not end well are no turns.
        """
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT id, json_extract(meta, '$.helper'), json_extract(meta, '$.retry_of'), state FROM records"
                " WHERE session = ? AND scenario_id = ? AND type = 'inference' ORDER BY seq",
                (session, self.known(scenario)),
            ).fetchall()
        repeated = {earlier for _, _, earlier, _ in rows}
        return [
            receipt
            for receipt, helper, _, state in rows
            if helper is None and receipt not in repeated and state in ("open", "complete")
        ]

    def referencing(self, record_id: str) -> list[str]:
        """Ids of the reports that name ``record_id``."""
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT id FROM report_refs JOIN records ON seq = report_seq WHERE reference = ? ORDER BY seq",
                (record_id,),
            ).fetchall()
        return [row[0] for row in rows]

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

    def _recorded(self, db: sqlite3.Connection, record: AgentRecord, kept: bytes, said: str) -> bool:
        """True when ``record`` is an exchange that was recorded here, exported and now comes back: those have no hash of
        their content, because nobody but Reef ever names their id."""
        if kept != hashlib.blake2b(record.agent_record_id.encode(), digest_size=16).digest():
            return False
        seq, meta, name = db.execute(
            "SELECT r.seq, meta, s.name FROM records r JOIN scenarios s ON s.id = scenario_id WHERE r.id = ?",
            (record.agent_record_id,),
        ).fetchone()
        held = read_payload(db, seq, RequestType.INFERENCE, json.loads(meta), self._read_response)
        return said == json.dumps([RequestType.INFERENCE, name, held], sort_keys=True, default=dict)

    def _again(self, db: sqlite3.Connection, record: AgentRecord, *, same: bool) -> AgentRecord:
        """The stored record of a retry, or a Conflict when the retry says something else."""
        if not same:
            raise Conflict(
                f"record {record.agent_record_id!r} exists with other content",
                hint="a retry must repeat the first request exactly; a new report needs a new id",
                code="id_reused",
            )
        row = db.execute(f"SELECT {_COLUMNS} FROM records WHERE id = ?", (record.agent_record_id,)).fetchone()
        return self._row(row, record.scenario).record

    def known(self, name: str) -> int | None:
        """The row id of a scenario that is on disk, remembered from then on; None for no such scenario."""
        known = self._scenario_ids.get(name)
        if known is None:
            with self.store.reading() as db:
                row = db.execute("SELECT id FROM scenarios WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            known = self._scenario_ids[name] = int(row[0])
        return known

    def _known_scenario(self, name: str) -> int:
        known = self.known(name)
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
            StoredPayload(partial(self._load, seq, RequestType(kind), details)),
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

    def _load(self, seq: int, kind: RequestType, meta: Mapping[str, Any]) -> dict[str, Any]:
        with self.store.reading() as db:
            return read_payload(db, seq, kind, meta, self._read_response)
