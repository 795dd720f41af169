"""Retention: bodies go by age and size, rows stay, what is still to train is never touched."""

from __future__ import annotations

import json
import time
from pathlib import Path

from reef.core.records_types import Delivery, Finish, RecordState
from reef.errors import Conflict
from reef.records import Exchange, Mark, RecordStore
from reef.store.bodies import split_json
from reef.store.clock import SteadyClock
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


YEAR_S = 365 * DAY_S


def test_a_wrong_stamp_makes_nothing_old(tmp_path: Path) -> None:
    """The clock was in 1970 and in 2100 for a while; the order of arrival says what is old."""
    records, now = RecordStore(tmp_path / "reef.db"), time.time()
    at = {
        "old": now - 10 * DAY_S,
        "old from 2100": now + 74 * YEAR_S,
        "old too": now - 9 * DAY_S,
        "young": now - DAY_S,
        "young from 1970": 0.0,
        "young from 2100": now + 74 * YEAR_S,
        "newest": now,
    }
    for record_id, created_at in at.items():
        call(records, record_id, record_id, created_at)
    sweep(records.store, tmp_path, Limits(5, 0, 0), now)
    purged = {record_id for record_id in at if records.get(record_id).purged_at is not None}
    assert purged == {"old", "old too"}
    assert [row.record.agent_record_id for row in records.page("s", after_seq=0)] == list(at), "listed as they came"
    assert [row.record.agent_record_id for row in records.pull("s", 0, 100)] == list(at), "judged as they came"
    records.close()


def test_the_oldest_for_the_size_limit_are_those_that_came_first(tmp_path: Path) -> None:
    records, now = RecordStore(tmp_path / "reef.db"), time.time()
    for number in range(100):
        call(records, f"i{number}", f"text number {number} ", now - number * DAY_S)  # the clock runs backwards
    sweep(records.store, tmp_path, Limits(0, 0.000006, 0), now)
    left = [records.get(f"i{number}").purged_at is None for number in range(100)]
    assert left == sorted(left) and {True, False} == set(left)
    records.close()


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.wall_s, self.running_s = 1.8e9, 100.0

    def go(self, seconds: float) -> None:
        self.wall_s += seconds
        self.running_s += seconds


def test_a_clock_is_believed_after_it_has_gone_steadily() -> None:
    hand = Hand()
    clock = SteadyClock(3600, wall=lambda: hand.wall_s, running=lambda: hand.running_s)
    assert not clock.believed()
    hand.go(3601)
    assert clock.believed()
    hand.wall_s += 74 * YEAR_S  # to 2100
    assert not clock.believed()
    hand.go(3 * 3600)
    assert not clock.believed()
    hand.wall_s -= 74 * YEAR_S  # and back
    assert not clock.believed()
    hand.go(DAY_S + 1)
    assert clock.believed()
    hand.wall_s += 3600  # somebody in the wrong time zone
    assert not clock.believed()
    hand.go(2 * DAY_S)  # asleep for the weekend
    assert clock.believed()


def test_ages_of_a_clock_that_is_not_believed_remove_nothing(tmp_path: Path) -> None:
    records, now = RecordStore(tmp_path / "reef.db"), time.time()
    call(records, "i", "text", now)
    (tmp_path / "artifacts" / "of a step that a crash interrupted").mkdir(parents=True)
    found = sweep(records.store, tmp_path, Limits(5, 0, 2), now + 74 * YEAR_S, ages=False)
    assert (found.bodies, found.artifacts) == (0, 0)
    assert sweep(records.store, tmp_path, Limits(5, 0, 2), now + 74 * YEAR_S).artifacts == 1
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


def test_a_garbled_body_does_not_keep_the_others_from_making_room(tmp_path: Path) -> None:
    records, now = RecordStore(tmp_path / "reef.db"), time.time()
    call(records, "old", "only mine", now - 10 * DAY_S)
    call(records, "garbled", "text of the garbled one", now)
    call(records, "new", "text of the new one", now)
    records.store.write(lambda db: db.execute("UPDATE records SET request = x'01ff' WHERE id = 'garbled'"))
    purged = sweep(records.store, tmp_path, Limits(5, 0, 0), now)
    assert purged.bodies == 1 and purged.segments >= 1
    assert b"text of the new one" in records.request_bytes("new")
    records.close()
