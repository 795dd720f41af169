"""Homes of other versions: an older one is brought up to date row for row, a newer one is refused, and neither is harmed.

``schemas/N.sql`` is a database as the last commit with schema N wrote it. A migration adds a file; no file ever changes.
``python -m tests.store.test_schema`` prints one for the schema of today.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reef.core.artifacts import Decision, Verdict
from reef.core.records_types import Delivery, Finish, RecordState
from reef.errors import BadConfig, Unavailable
from reef.records import Exchange, Mark, RecordStore
from reef.releases import ReleaseChain, StepCommit
from reef.store import Store, schema
from reef.store.bodies import split_json
from tests.faults.test_damaged_home import reef
from tests.train.factories import inference, report

SCHEMAS = sorted(Path(__file__).with_name("schemas").glob("*.sql"), key=lambda path: int(path.stem))
BODY = b'{ "model": "m", "messages": [{"role": "user", "content": "' + b"caf\xc3\xa9 " * 40 + b'"}]}'
STREAM = b'data: {"choices": []}\n\ndata: [DONE]\n\n'


def fill(store: Store) -> None:
    """A little of everything that a home holds."""
    records, chain = RecordStore(store), ReleaseChain(store)
    chain.create("s", "pg", "weights", "base")
    call = Exchange("call", "s", split_json(BODY)[1], 1000.0, "run", "r0", {"route": "chat", "stream": True})
    records.submit_exchange(call, None, None).result()
    whole = Finish(RecordState.COMPLETE, "empty_answer", "stop", {"input_tokens": 3})
    records.submit_exchange(call, whole, Delivery(STREAM, 200, {"content-type": "text/event-stream"}), opened=True)
    records.submit_exchange(Exchange("open", "s", split_json(BODY)[1], 1001.0), None, None).result()
    for name in ("i1", "i2"):
        records.append(inference(name, range(200), [1] * 100, [-0.5] * 100, release_id="r0"))
    for name, references in (("r1", ["i1"]), ("r2", ["i2"]), ("r3", ["later"])):
        records.append(report(name, references, 0.5, feedback="f" * 100))
    records.mark([Mark("r2", RecordState.REFUSED, "no: not this one")])
    records.keep_verdict("s", "item", {"score": 1})
    verdict = Verdict(Decision.ACCEPT, "checks", "all passed", {})
    step = StepCommit("step1", "s", "b1", "release", {"n": 1}, ("r1", "i1"), content_id="c1", verdict=verdict)
    chain.commit(step)
    chain.pause("s", True, "somebody")


def tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, by column."""
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
        return {name: [dict(row) for row in db.execute(f"SELECT * FROM {name} ORDER BY 1, 2")] for name in names}


def shape(path: Path) -> list[tuple[str, ...]]:
    """The columns of all tables and the statements of all indexes."""
    with closing(sqlite3.connect(path)) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
        columns = [(name, *map(str, row[1:])) for name in names for row in db.execute(f"PRAGMA table_info({name})")]
        return columns + db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' ORDER BY 1").fetchall()


def made(path: Path, source: Path) -> Path:
    """The database that a file of ``schemas`` describes."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(source.read_text(encoding="utf-8"))
        db.execute(f"PRAGMA user_version = {int(source.stem)}")
        db.execute("PRAGMA journal_mode = WAL")
    return path


def test_there_is_a_file_for_every_schema() -> None:
    assert [int(path.stem) for path in SCHEMAS] == list(range(1, len(schema.MIGRATIONS) + 1))


@pytest.mark.parametrize("source", SCHEMAS, ids=lambda path: f"schema {path.stem}")
def test_an_older_home_is_brought_up_to_date_row_for_row(tmp_path: Path, source: Path) -> None:
    old, fresh = made(tmp_path / "old.db", source), tmp_path / "fresh.db"
    before = tables(old)
    Store(fresh).close()
    records = RecordStore(old)
    try:
        assert records.request_bytes("call") == records.request_bytes("open") == BODY
        assert records.response_bytes("call") == STREAM
        assert records.get("i2").record.payload["response"]["training"]["tokens"] == list(range(200))
        assert records.get("r1").record.state is RecordState.CONSUMED and records.verdict("s", "item") == {"score": 1}
        chain = ReleaseChain(records.store)
        assert [one.release_id for one in chain.releases("s")] == ["r1", "r0"] and chain.scenario("s").paused
        after = tables(old)
        for name, rows in before.items():
            assert [{column: row[column] for column in rows[0]} for row in after[name]] == rows, name
        live = {row.record.agent_record_id for row in records.live("s", reports_only=False, context=0)}
        assert live == {"call", "i2", "r3"}
        assert records.close_open("daemon_stopped: it ended") == 1
        records.append(report("new", ["i2"]))
    finally:
        records.close()
    assert shape(old) == shape(fresh)


def test_a_migration_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reef.db"
    store = Store(path)
    fill(store)
    store.close()
    before, whole = tables(path), schema.MIGRATIONS

    def note(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE records ADD COLUMN note TEXT NOT NULL DEFAULT 'none'")
        db.execute("UPDATE records SET note = id")

    def fails(db: sqlite3.Connection) -> None:
        db.execute("UPDATE records SET note = 'lost'")
        db.execute("ALTER TABLE nowhere ADD COLUMN note TEXT")

    monkeypatch.setattr(schema, "MIGRATIONS", (*whole, note, fails))
    with pytest.raises(Unavailable, match="nowhere"):
        Store(path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*whole, note))
    Store(path).close()
    after = tables(path)
    assert [row.pop("note") for row in after["records"]] == [row["id"] for row in after["records"]]
    assert after == before


def test_a_newer_home_is_refused_with_advice_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "reef.db"
    store = Store(path)
    fill(store)
    store.write(lambda db: db.execute("PRAGMA user_version = 99"))
    store.close()
    before = path.read_bytes()
    with pytest.raises(BadConfig, match="newer Reef") as refused:
        Store(path)
    assert "newer version" in (refused.value.hint or "")
    ran = reef("serve", "--home", str(tmp_path), "--upstream-url", "http://127.0.0.1:9", "--port", "0", "--yes")
    assert ran.returncode == BadConfig.exit_code and "schema 99" in ran.stderr and "newer version" in ran.stderr
    assert path.read_bytes() == before


def main() -> None:
    """Print a filled database of the schema of today as SQL."""
    store = Store()
    fill(store)
    with store.reading() as db:
        sys.stdout.write("\n".join(db.iterdump()) + "\n")


if __name__ == "__main__":
    main()
