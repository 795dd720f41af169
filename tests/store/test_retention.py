"""Retention: bodies go by age and size, rows stay, what is still to train is never touched."""

from __future__ import annotations

import json
import time
from pathlib import Path

from reef.core.records_types import Delivery, Finish, RecordState
from reef.errors import Conflict
from reef.records import Exchange, Mark, RecordStore
from reef.store.bodies import split_json
from reef.store.retention import Limits, sweep
from tests.train.factories import inference, report

DAY_S = 86400.0


def call(records: RecordStore, record_id: str, text: str, at: float) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text * 30}]}).encode()
    exchange = Exchange(record_id, "s", split_json(body)[1], at)
    records.submit_exchange(
        exchange, Finish(RecordState.COMPLETE), Delivery(b'{"answer":"%s"}' % text.encode())
    ).result()


def segments(records: RecordStore) -> int:
    with records.store.reading() as db:
        return int(db.execute("SELECT COUNT(*) FROM segments").fetchone()[0])


def test_old_bodies_go_and_rows_hashes_and_shared_segments_stay(tmp_path: Path) -> None:
    records, now = RecordStore(tmp_path / "reef.db"), time.time()
    call(records, "old", "shared text", now - 10 * DAY_S)
    call(records, "old2", "only mine", now - 10 * DAY_S)
    call(records, "new", "shared text", now)
    records.append(report("r", ["gone"], 0.5))
    records.mark([Mark("r", RecordState.REFUSED, "x")])
    purged = sweep(records.store, tmp_path, Limits(5, 0, 0), now)
    assert (purged.bodies, purged.segments) == (2, 1)
    assert records.get("old").purged_at is not None
    assert records.request_bytes("old") == b""
    assert b"shared text" in records.request_bytes("new")
    call(records, "again", "only mine", now)
    assert b"only mine" in records.request_bytes("again"), "a purged text can come back"
    sweep(records.store, tmp_path, Limits(0.000001, 0, 0), now + DAY_S)
    try:
        records.append(report("r", ["gone"], 0.9))
        raise AssertionError("the changed retry was accepted")
    except Conflict:
        assert records.append(report("r", ["gone"], 0.5)).agent_record_id == "r"
    records.close()


def test_what_is_still_to_be_trained_is_never_touched(tmp_path: Path) -> None:
    records, now = RecordStore(tmp_path / "reef.db"), time.time()
    records.append(inference("i"))
    records.append(report("r", ["i"]))
    records.append(inference("free"))
    assert sweep(records.store, tmp_path, Limits(0.000001, 0, 0), now + DAY_S).bodies == 1
    assert records.get("i").record.payload["response"]["training"]["tokens"] == [10, 20, 30]
    records.close()


def test_the_size_limit_takes_the_oldest_first_and_stops(tmp_path: Path) -> None:
    records, now = RecordStore(tmp_path / "reef.db"), time.time()
    for number in range(1200):
        call(records, f"i{number}", f"text number {number} ", now + number)
    before = segments(records)
    sweep(records.store, tmp_path, Limits(0, 0.0001, 0), now)
    assert records.get("i0").purged_at is not None
    assert records.get("i1199").purged_at is None
    assert 0 < segments(records) < before
    records.close()


def test_artifacts_of_old_releases_and_of_nothing_go(tmp_path: Path) -> None:
    from reef.recipes import PGRecipe
    from reef.runtime.testing import StubTrainingRuntime

    records = RecordStore(tmp_path / "reef.db")
    trainer = PGRecipe(StubTrainingRuntime(), batch_size=1).build("s", records)
    for number in range(5):
        records.append(inference(f"i{number}", [number + 1, 20, 30]))
        records.append(report(f"r{number}", [f"i{number}"]))
        assert trainer.run_step() is not None
    for release in trainer.chain.releases("s"):
        (tmp_path / "artifacts" / release.content_id).mkdir(parents=True)
    (tmp_path / "artifacts" / "orphan").mkdir()
    later = time.time() + 2 * DAY_S
    assert sweep(records.store, tmp_path, Limits(0, 0, 2), later).artifacts == 5
    left = {path.name for path in (tmp_path / "artifacts").iterdir()}
    assert left == {release.content_id for release in trainer.chain.releases("s")[:2]}
    records.close()
