"""The writer's edges: nobody waits forever, and what SQLite says is told in our words."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from reef.errors import ReefError, Unavailable
from reef.records import RecordStore
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
