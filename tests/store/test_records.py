"""RecordStore: what is appended comes back whole, once, and cheaply."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.core.records_types import AgentRecord, Delivery, Finish, RecordState, RequestType
from reef.errors import BadRequest, Conflict, Unavailable
from reef.records import Exchange, Mark, RecordStore
from reef.records.figures import total
from reef.store.bodies import join_tensors, split_json, split_tensors


@pytest.fixture
def records(tmp_path: Path):
    store = RecordStore(tmp_path / "reef.db")
    yield store
    store.close()


def report(record_id: str, *references: str, score: float = 1.0, scenario: str = "s") -> AgentRecord:
    payload = {"score": score, "references": list(references)}
    return AgentRecord.create(scenario, RequestType.REPORT, payload, record_id)


def inference(record_id: str, scenario: str = "s") -> AgentRecord:
    training = {"tokens": [1, 2, 3], "loss_mask": [1], "rollout_log_probs": [-0.5], "temperature": 1.0}
    payload = {"request": {"messages": [{"role": "user", "content": "x" * 90}]}, "response": {"training": training}}
    return AgentRecord.create(scenario, RequestType.INFERENCE, payload, record_id)


def exchange(record_id: str, body: bytes) -> Exchange:
    return Exchange(record_id, "s", split_json(body)[1], 1.0, meta={"route": "chat"})


def test_a_record_comes_back_as_it_was(records: RecordStore) -> None:
    records.append(inference("i1"))
    row = records.get("i1")
    assert row.record.payload["response"]["training"]["rollout_log_probs"] == [-0.5]
    assert row.record.payload["request"]["messages"][0]["content"] == "x" * 90
    assert row.record.state is RecordState.COMPLETE


def test_same_id_and_content_is_the_first_record_again(records: RecordStore) -> None:
    first = records.append(report("r1", "i1"))
    again = records.append(report("r1", "i1"))
    assert again.agent_record_id == first.agent_record_id
    assert total(records.store) == 1


@pytest.mark.parametrize("consumed", [False, True])
def test_same_id_other_content_is_a_conflict_before_and_after_training(records: RecordStore, consumed: bool) -> None:
    records.append(report("r1", "i1", score=0.2))
    if consumed:
        records.mark([Mark("r1", RecordState.CONSUMED)])
    with pytest.raises(Conflict, match="other content"):
        records.append(report("r1", "i1", score=0.9))
    assert records.append(report("r1", "i1", score=0.2)).payload["score"] == 0.2


def test_a_bad_item_does_not_fail_its_neighbours(records: RecordStore) -> None:
    records.append(report("taken", "i1", score=0.1))
    failures: list[Exception] = []
    barrier = threading.Barrier(16)

    def append(index: int) -> None:
        barrier.wait()
        try:
            records.append(report("taken" if index % 4 == 0 else f"r{index}", "i1", score=index / 16 + 0.5))
        except Conflict as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 4
    assert total(records.store) == 13


def test_an_open_row_is_durable_and_becomes_final_once(records: RecordStore) -> None:
    body = b'{ "model":"m",  "messages":[{"role":"user","content":"' + b"y" * 100 + b'"}] }'
    call = exchange("i1", body)
    records.submit_exchange(call, None, None).result()
    assert records.get("i1").record.state is RecordState.OPEN
    assert records.pull("s", 0, 10) == []
    records.submit_exchange(call, Finish(RecordState.COMPLETE), Delivery(b'{"ok":1}', 200), opened=True).result()
    records.submit_exchange(call, Finish(RecordState.FAILED, "late"), Delivery(b""), opened=True).result()
    assert records.get("i1").record.state is RecordState.COMPLETE
    assert [row.record.agent_record_id for row in records.pull("s", 0, 10)] == ["i1"]
    assert records.request_bytes("i1") == body
    assert records.response_bytes("i1") == b'{"ok":1}'


def test_a_store_that_does_not_give_back_what_it_was_given_is_found_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = RecordStore()
    store.self_test()
    monkeypatch.setattr("reef.records.store.read_body", lambda db, manifest: b"")
    with pytest.raises(Unavailable) as failed:
        store.self_test()
    assert failed.value.code == "store_damaged"
    with store.store.reading() as db:
        assert db.execute("SELECT COUNT(*) FROM segments").fetchone() == (0,), "it leaves nothing behind"


def test_a_dead_daemons_open_rows_are_aborted(tmp_path: Path) -> None:
    first = RecordStore(tmp_path / "reef.db")
    first.submit_exchange(exchange("i1", b'{"messages":[]}'), None, None).result()
    first.close()
    second = RecordStore(tmp_path / "reef.db")
    assert second.close_open("daemon_stopped: it ended") == 1
    row = second.get("i1")
    assert (row.record.state, row.record.reason) == (RecordState.ABORTED, "daemon_stopped: it ended")
    assert row.rev is not None
    second.close()


def test_forty_turns_cost_less_than_twice_the_conversation(tmp_path: Path) -> None:
    """Show 8: a conversation that resends its history (60 KB at the end)."""
    words = random.Random(1)
    text = lambda size: " ".join(f"{words.getrandbits(20):x}" for _ in range(size))  # noqa: E731
    records = RecordStore(tmp_path / "reef.db")
    records.store.checkpoint()
    before = records.store.size_bytes()
    messages: list[dict[str, str]] = [{"role": "system", "content": text(100)}]
    body = b""
    for turn in range(40):
        messages.append({"role": "user", "content": text(100)})
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": 10 + turn}).encode()
        answer = {"role": "assistant", "content": text(130)}
        messages.append(answer)
        delivery = Delivery(json.dumps({"choices": [{"message": answer}]}).encode())
        records.submit_exchange(exchange(f"turn{turn}", body), Finish(RecordState.COMPLETE), delivery).result()
    assert 55_000 < len(body) < 70_000
    assert records.request_bytes("turn39") == body
    records.store.checkpoint()
    grown = records.store.size_bytes() - before
    records.close()
    assert grown < 2 * len(body), f"{grown} bytes for a conversation of {len(body)}"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner, max_size=5),
    max_leaves=25,
)


@given(value=json_values, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_any_json_is_parsed_and_cut_without_loss(value: object, indent: int | None, ascii_only: bool) -> None:
    raw = f"  {json.dumps(value, indent=indent, ensure_ascii=ascii_only)}\n".encode(errors="surrogatepass")
    try:
        raw.decode()
    except UnicodeDecodeError:
        with pytest.raises(BadRequest, match="UTF-8"):
            split_json(raw)
        return
    parsed, segments = split_json(raw)
    assert parsed == json.loads(raw)
    assert b"".join(data for _, data in segments) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"   ",
        b"{",
        b'{"a"',
        b'{"a":',
        b'{"a":1,}',
        b'{"a":[1,}',
        b'{"a":[1}',
        b"[1] x",
        b"{} {}",
        b"nul",
        b"{1:2}",
    ],
)
def test_what_is_not_json_is_refused_with_a_position(raw: bytes) -> None:
    with pytest.raises(BadRequest, match="not JSON"):
        split_json(raw)


def test_a_body_nested_too_deeply_is_refused() -> None:
    with pytest.raises(BadRequest, match="deep"):
        split_json(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}")


@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=700),
    log_probs=st.lists(st.floats(max_value=0, allow_nan=False, allow_infinity=False), max_size=300),
)
def test_tensors_keep_every_bit(tokens: list[int], log_probs: list[float]) -> None:
    block = {"tokens": tokens, "rollout_log_probs": log_probs, "temperature": 0.7, "versions": [{"version": "a"}]}
    assert join_tensors(b"".join(data for _, data in split_tensors(block))) == block


def test_nothing_else_can_write_and_readers_do_not_block_the_writer(records: RecordStore, tmp_path: Path) -> None:
    records.append(report("r1", "i1"))
    foreign = sqlite3.connect(tmp_path / "reef.db")
    foreign.execute("BEGIN")
    foreign.execute("SELECT COUNT(*) FROM records").fetchone()
    for index in range(50):
        records.append(report(f"more{index}", "i1", score=index))
    assert foreign.execute("SELECT COUNT(*) FROM records").fetchone()[0] == 1
    foreign.close()
    with records.store.reading() as db, pytest.raises(sqlite3.OperationalError):
        db.execute("DELETE FROM records")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    RecordStore(tmp_path / "reef.db").close()
    db = sqlite3.connect(tmp_path / "reef.db")
    db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(Exception, match="newer Reef"):
        RecordStore(tmp_path / "reef.db")


def test_a_garbled_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "reef.db"
    path.write_bytes(b"this is no database" * 400)
    with pytest.raises(Unavailable, match="is damaged"):
        RecordStore(path)
    assert path.read_bytes() == b"this is no database" * 400
