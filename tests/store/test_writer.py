"""The writer's edges: nobody waits forever, and what SQLite says is told in our words."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.core.records_types import AgentRecord, Delivery, Finish, RecordState, RequestType
from reef.errors import Conflict, ReefError, Unavailable
from reef.records import Exchange, RecordStore
from reef.store import Store
from reef.store.retention import Limits, Retention
from tests.train.factories import inference


def test_nothing_that_is_handed_in_while_it_closes_is_left_without_an_answer(tmp_path: Path) -> None:
    store = Store(tmp_path / "reef.db")
    answered: list[str] = []

    def hand_in() -> None:
        for _ in range(500):
            try:
                store.submit(lambda db: None).result(timeout=10)
                answered.append("done")
            except Unavailable as error:
                answered.append(error.message)

    threads = [threading.Thread(target=hand_in) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(answered) < 100:
        pass
    store.close()
    for thread in threads:
        thread.join()
    assert len(answered) == 2000 and {"done", "the store is closed"} == set(answered)
    with pytest.raises(Unavailable, match="closed"):
        store.checkpoint()


def append_many(records: RecordStore, name: str) -> None:
    for number in range(300):
        records.append(inference(f"{name}{number}", list(range(number, number + 200))))


def test_a_damaged_file_is_named_and_never_a_bare_error(tmp_path: Path) -> None:
    path = tmp_path / "reef.db"
    records = RecordStore(path)
    append_many(records, "i")
    records.close()
    whole = bytearray(path.read_bytes())
    for page in range(len(whole) // 8192, len(whole) // 4096):
        whole[page * 4096 : page * 4096 + 4096] = b"\xff" * 4096
    path.write_bytes(whole)
    records = RecordStore(path)
    with pytest.raises(ReefError) as failed:
        append_many(records, "more")
    assert failed.value.code == "store_damaged"
    records.close()


def test_retention_outlives_a_store_that_cannot_write(tmp_path: Path) -> None:
    store = Store(tmp_path / "reef.db")
    store.close()
    retention = Retention(store, tmp_path, Limits(1, 1, 1))
    retention.start()
    retention.stop()  # an error in its thread would fail this test


@contextlib.contextmanager
def held_up(store: Store) -> Iterator[None]:
    """Have the writer stand still, so that what is handed in meanwhile is taken up together."""
    held, go_on = threading.Event(), threading.Event()

    def stand(db: sqlite3.Connection) -> None:
        held.set()
        go_on.wait()

    store.submit(stand)
    held.wait()
    try:
        yield
    finally:
        go_on.set()


def test_what_has_begun_can_be_ended_however_full_the_queue_is(tmp_path: Path) -> None:
    records = RecordStore(tmp_path / "reef.db")
    exchange = Exchange("a", "s", [], 0.0)
    records.submit_exchange(exchange, None, None).result()
    with held_up(records.store):
        while (last := records.store.submit(lambda db: None)).running():
            pass
        ended = records.submit_exchange(exchange, Finish(RecordState.COMPLETE), None, opened=True)
    with pytest.raises(Unavailable, match="queue is full"):
        last.result()
    ended.result()
    assert records.get("a").record.state is RecordState.COMPLETE
    records.close()


def test_a_call_may_come_back_in_the_transaction_that_records_it(tmp_path: Path) -> None:
    """What an item is compared with is read where it is written: a reader would not see it yet."""
    records = RecordStore(tmp_path / "reef.db")
    exchange = Exchange("a", "s", [(False, b'{"n": 1}')], 0.0)
    back = {"request": {"n": 1}, "response": {"text": "ok"}}
    with held_up(records.store):
        first = records.submit_exchange(exchange, Finish(RecordState.COMPLETE), Delivery(b"ok", 200))
        same = records.submit(AgentRecord.create("s", RequestType.INFERENCE, back, "a"))
        other = records.submit(AgentRecord.create("s", RequestType.INFERENCE, {**back, "request": {"n": 2}}, "a"))
    first.result()
    assert same.result()[0].agent_record_id == "a"
    with pytest.raises(Conflict, match="other content"):
        other.result()
    records.close()


def test_an_item_that_is_wrong_in_itself_fails_alone(tmp_path: Path) -> None:
    records = RecordStore(tmp_path / "reef.db")
    submit = records.store.submit
    with held_up(records.store):
        before = records.submit(inference("before"))
        wrong = [submit(lambda db, text=text: (db.execute("INSERT INTO report_refs VALUES ('x', 1)"), db.execute(text)))
                  for text in ("INSERT INTO nowhere VALUES (1)", "SELECT json_extract('{', '$.a')")]  # fmt: skip
        after = records.submit(inference("after"))
    assert {before.result()[0].agent_record_id, after.result()[0].agent_record_id} == {"before", "after"}
    for future in wrong:
        with pytest.raises(Unavailable) as told:
            future.result()
        assert told.value.code == "store_unwritable"
    assert records.referencing("x") == [] and records.store.trouble is None
    records.close()


def test_nothing_is_committed_behind_a_failure_in_the_same_turn(tmp_path: Path) -> None:
    store = Store(tmp_path / "reef.db")
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorname = "SQLITE_IOERR_FSYNC"

    def fail(db: sqlite3.Connection) -> None:
        raise failure

    with held_up(store):
        failed = store.submit(fail, True, between=True)
        behind = store.submit(lambda db: db.execute("CREATE TABLE behind(it)"))
    for future in (failed, behind):
        with pytest.raises(Unavailable) as told:
            future.result()
        assert told.value.code == "store_io_error"
    while store.trouble is not None:
        threading.Event().wait(0.05)
    assert store.write(
        lambda db: db.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'behind'").fetchone()
    ) == (0,)
    store.close()


def test_what_runs_between_transactions_may_fail_and_the_writer_goes_on(tmp_path: Path) -> None:
    records = RecordStore(tmp_path / "reef.db")
    writer = records.store._writer
    assert writer is not None

    def wrong(db: sqlite3.Connection) -> None:
        raise ValueError("a bug of the caller")

    with pytest.raises(ValueError, match="a bug of the caller"):
        writer.submit(wrong, between=True).result(30)
    assert records.append(inference("after")).agent_record_id == "after"
