"""reef export and reef import: what was recorded comes out whole and goes in again, each record once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reef.inference.testing import Script, ScriptedProvider
from tests.cli.test_cli import Ran, reef, refused, schema
from tests.clients import answers
from tests.faults.world import imported
from tests.support import Daemon, daemon, provider

SAME = (
    "agent_record_id", "scenario", "request_type", "state", "created_at", "release_id", "session", "usage", "request",
    "response", "score", "feedback", "references", "metadata",
)  # fmt: skip
ODD = b'{"id": 123456789012345678901234567890, "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok \\udc99 end"}, "finish_reason": "stop"}]}'  # noqa: E501


def exported(home: Path, *words: str) -> list[dict[str, Any]]:
    ran = reef(home, "export", *words)
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def alike(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What must come back, by id; a report is new where it comes to, so its time and state are its own."""
    found = {}
    for row in rows:
        kept = {name: row.get(name) for name in SAME}
        if row["request_type"] == "report":
            kept |= {"created_at": None, "state": None}
        found[row["agent_record_id"]] = kept
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, ScriptedProvider]]:
    """Calls of every kind in two scenarios, with reports."""
    with (
        provider(Script()) as upstream,
        daemon(tmp_path_factory.mktemp("source"), reef_upstream_url=upstream.url) as one,
        one.client("s") as client,
        one.client("other") as other,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "naïve 海 " * 30}], "n": 10**25}
        receipts = []
        for script in (
            answers.chat_plain(tools=False),
            answers.chat_plain(tools=True),
            Script([ODD]),
            Script([b"[1, 2]"]),
        ):
            upstream.scripts[:] = [script]
            receipts.append(client.call(body, session="run 1/x").headers["x-reef-agent-record-id"])
        for script in (
            answers.chat_stream(tools=True),
            Script([b'{"error": "slow down"}'], status=429),
            Script([b"no JSON"], status=500),
        ):
            upstream.scripts[:] = [script]
            with client.stream(body) as answer:
                answer.read()
        client.report(
            score=0.25, feedback={"text": "half", "tags": ["a"]}, references=receipts[:2], metadata={"by": "me"}
        )
        client.report(feedback="only words \u2028", references=[receipts[2]], agent_record_id="mine")
        client.report(score=1, session="run 1/x")
        other.post("/reef/records", {"records": [imported(f"i{number}") for number in range(1, 451)]})
        other.post("/reef/records", {"agent_record_id": "empty", "request": {}, "response": {}})
        other.report(score=0.5, references=["i1"])
        other.report(score=-1.5, references=["i1"])
        yield one, upstream


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "target", reef_upstream_url="http://127.0.0.1:9") as one:
        yield one


def total(one: Daemon) -> int:
    with one.client() as client:
        return int(client.status()["store"]["records"])


def test_what_comes_out_goes_in_and_comes_out_again(
    source: tuple[Daemon, ScriptedProvider], target: Daemon, tmp_path: Path
) -> None:
    home, file = source[0].home, tmp_path / "all.jsonl"
    made = schema(reef(home, "export", "-o", str(file), "--json"), "export")
    assert file.stat().st_mode & 0o777 == 0o600
    assert made["rows"] == total(source[0]) == len(file.read_bytes().splitlines())
    done = schema(reef(target.home, "import", str(file), "--json"), "import")
    assert (done["records"], done["reports"], done["errors"]) == (458, 5, [])
    assert (done["new"], done["known"]) == (463, 0)
    before, after = exported(home), exported(target.home)
    assert alike(after) == alike(before)
    assert [row["agent_record_id"] for row in after if row["request_type"] == "report"] == [
        row["agent_record_id"] for row in before if row["request_type"] == "report"
    ]

    again = schema(reef(target.home, "import", str(file), "--json"), "import")
    assert again["errors"] == [] and total(target) == total(source[0])
    assert (again["new"], again["known"]) == (0, 463)
    assert (
        "458 records and 5 reports are in: 0 new, 463 were there already" in reef(target.home, "import", str(file)).err
    )
    own = schema(reef(home, "import", str(file), "--json"), "import")
    assert own["errors"] == [] and total(source[0]) == made["rows"], "also where they were recorded"


def test_a_line_that_is_changed_is_no_repetition(source: tuple[Daemon, ScriptedProvider], tmp_path: Path) -> None:
    rows = exported(source[0].home, "-s", "s")
    live = next(row for row in rows if row["state"] == "complete" and row["request_type"] == "inference")
    live["request"]["messages"][0]["content"] = "something else"
    (tmp_path / "changed.jsonl").write_text(json.dumps(live))
    before = total(source[0])
    ran = reef(source[0].home, "import", str(tmp_path / "changed.jsonl"))
    assert ran.code == 1 and "line 1: " in ran.err and "other content" in ran.err and total(source[0]) == before


BAD = [
    (b'{"request": {"messages": []}, "response": {}', "not JSON"),
    (b"[1, 2]", "not a JSON object"),
    (b'{"agent_record_id": "b1", "request": null, "response": {}}', "request object"),
    (b'{"agent_record_id": "b2", "request": {}, "response": {}, "state": "open"}', "is none of"),
    (b'{"agent_record_id": "b3", "request": {}, "response": {"training": {"x": NaN}}}', "cannot be sent as JSON"),
    (b'{"agent_record_id": "../b4", "request": {}, "response": {}}', "not a valid name"),
    (b'{"agent_record_id": "b5", "request": {}, "response": {}, "scenario": "no/name"}', "not a valid name"),
    (b'{"agent_record_id": "b6", "references": ["g1"], "score": "high"}', "score"),
    (b'{"agent_record_id": "b7", "request_type": "training", "text": "do"}', "cannot be imported"),
    (b'{"agent_record_id": "g1", "request": {"other": 1}, "response": {}}', "other content"),
    (b"\xff\xfe\xfd", "not JSON"),
    (b'{"agent_record_id": "b8", "scenario": ["s"], "request": {}, "response": {}}', "must be text"),
]


def test_lines_that_are_not_taken_are_named_and_the_others_go_on(target: Daemon, tmp_path: Path) -> None:
    good = [
        json.dumps({"agent_record_id": f"g{n}", "request": {}, "response": {}, "scenario": "s"}).encode()
        for n in range(1, 4)
    ]
    good += [
        b'{"references": ["g1"], "score": 1, "scenario": "s"}',
        b'{"request": {"no": "id"}, "response": {}, "scenario": "s"}',
    ]
    lines = [good[0], b"", *(line for line, _ in BAD), *good[1:]]
    file, rest = tmp_path / "in.jsonl", tmp_path / "rest.jsonl"
    file.write_bytes(b"\n".join(lines))
    ran = reef(target.home, "import", str(file), "--json", "--rejected", str(rest))
    assert ran.code == 1, ran.err
    assert {one["line"] for one in ran.document["errors"]} == set(range(3, 3 + len(BAD)))
    said = {one["line"]: one["message"] for one in ran.document["errors"]}
    for number, (_, words) in enumerate(BAD, start=3):
        assert words in said[number], said[number]
    assert sorted(rest.read_bytes().splitlines()) == sorted(line for line, _ in BAD)
    assert (ran.document["records"], ran.document["reports"]) == (4, 1)
    assert total(target) == 5
    people = reef(target.home, "import", str(file))
    assert (
        people.code == 1 and "line 4: it is not a JSON object" in people.err and "12 lines were not taken" in people.err
    )
    assert total(target) == 5, "a line without an id is stored once too"


def test_pipes_filters_and_names(source: tuple[Daemon, ScriptedProvider], target: Daemon, tmp_path: Path) -> None:
    home = source[0].home
    assert {row["scenario"] for row in exported(home, "-s", "other")} == {"other"}
    assert {row["request_type"] for row in exported(home, "reports")} == {"report"}
    assert len(exported(home, "records", "-s", "other")) == 451
    assert exported(home, "--since", "2099-01-01") == []
    assert len(exported(home, "--since", "1h")) == total(source[0])
    piped = reef(home, "export", "-s", "other").out
    done = reef(target.home, "import", "-", "--json", "-s", "renamed", stdin=piped)
    assert done.code == 0 and {row["scenario"] for row in exported(target.home)} == {"renamed"}
    taken = tmp_path / "taken"
    taken.touch()
    refused(reef(home, "export", "-o", str(taken)), 1, "exists")
    refused(reef(home, "export", "-o", str(tmp_path / "none" / "x.jsonl")), 4, "no directory")
    refused(reef(home, "import", str(tmp_path / "none.jsonl")), 4, "there is no file")
    refused(reef(home, "import", str(tmp_path)), 2, "is a directory", "JSON lines")
    for magic, kind, way in (
        (b"\x28\xb5\x2f\xfd....", "is zstd", "zstd -dc FILE | reef import -"),
        (b"\x1f\x8b....", "is gzip", "gzip -dc FILE | reef import -"),
        (b"PAR1....", "is Parquet", "--format jsonl"),
    ):
        (tmp_path / "other").write_bytes(magic)
        refused(reef(home, "import", str(tmp_path / "other")), 2, kind, way, "reef restore FILE")
    refused(reef(home, "export", "everything"), 2, "nothing is called 'everything'", "training")
    refused(reef(home, "export", "--format", "csv"), 2, "no format 'csv'")
    refused(reef(home, "export", "--format", "parquet"), 2, "-o FILE")
    refused(reef(home, "export", "-s", "nowhere"), 4, "no scenario 'nowhere'")
    taken.write_text("{}")
    refused(reef(tmp_path / "none", "import", str(taken)), 3, "no daemon runs on")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def parquet(home: Path, path: Path, *words: str, **environ: str) -> Ran:
    return reef(home, "export", *words, "--format", "parquet", "-o", str(path), **environ)


def test_parquet(source: tuple[Daemon, ScriptedProvider], tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    home = source[0].home
    assert parquet(home, tmp_path / "all.parquet").code == 0
    rows = {row["agent_record_id"]: row for row in pq.read_table(tmp_path / "all.parquet").to_pylist()}
    for one in exported(home):
        row = rows.pop(one["agent_record_id"])
        assert (row["score"], row["references"] or []) == (one.get("score"), one.get("references") or [])
        for name in ("request", "response", "feedback"):
            assert (None if row[name] is None else json.loads(row[name])) == one.get(name)
        assert abs(row["created_at"] - datetime.fromtimestamp(one["created_at"], UTC)).total_seconds() < 1e-5
    assert rows == {}

    assert parquet(home, tmp_path / "rows.parquet", "training").code == 0
    trained = {row["agent_record_id"]: row for row in pq.read_table(tmp_path / "rows.parquet").to_pylist()}
    assert len(trained) == len(exported(home, "training")) == 450
    block = imported("i7")["response"]["training"]
    assert {name: trained["i7"][name] for name in block} == block and trained["i7"]["release_id"] == "r0"
    assert sorted(trained["i1"]["scores"]) == [-1.5, 0.5] and trained["i2"]["scores"] == []


def test_without_pyarrow_the_extra_is_named(source: tuple[Daemon, ScriptedProvider], tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('not here')")
    ran = parquet(
        source[0].home, tmp_path / "x.parquet", PYTHONPATH=f"{tmp_path}:{':'.join(path for path in sys.path if path)}"
    )
    refused(ran, 1, "pyarrow", "reefd[parquet]")
    assert not (tmp_path / "x.parquet").exists()


def test_a_row_that_does_not_fit_is_named(target: Daemon, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    row = imported("i1")
    row["response"]["training"]["tokens"] = ["not", "numbers"]
    with target.client() as client:
        client.post("/reef/records", row)
    refused(parquet(target.home, tmp_path / "x.parquet", "training"), 2, "i1", "--format jsonl")
    assert len(exported(target.home, "training")) == 1
    assert time.time() - exported(target.home, "training")[0]["created_at"] < 600
