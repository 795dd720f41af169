"""Files that were torn or garbled: refused or noticed, never read as if nothing were wrong, and never changed or removed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reef.errors import ReefError, Unavailable
from reef.records import RecordStore
from reef.store import Store
from tests.faults.world import ROOT
from tests.faults.writing import row

ROWS = 40
Files = dict[str, bytes]


def files(home: Path) -> Files:
    return {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A database whose store was closed: no log is left."""
    home = tmp_path_factory.mktemp("closed")
    records = RecordStore(home / "reef.db")
    for number in range(ROWS):
        records.append(row(number))
    records.close()
    found = files(home)
    assert set(found) == {"reef.db"}
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """What kill -9 leaves: half of the rows are in the database, the others only in the log."""
    home = tmp_path_factory.mktemp("killed")
    code = (
        "import os, signal, sys; from pathlib import Path; from reef.records import RecordStore\n"
        "from tests.faults.writing import row\n"
        f"records = RecordStore(Path(sys.argv[1]))\nfor number in range({ROWS}):\n"
        f"    records.append(row(number))\n    if number == {ROWS // 2}: records.store.checkpoint()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(home / "reef.db")], cwd=ROOT)
    found = files(home)
    assert set(found) == {"reef.db", "reef.db-wal", "reef.db-shm"}
    return found


def laid_out(home: Path, found: Files) -> Path:
    for name, content in found.items():
        (home / name).write_bytes(content)
    return home / "reef.db"


def whole(records: RecordStore) -> int:
    """How many rows come back exactly as they were written; raises at the first that does not."""
    for number in range(ROWS):
        sent = row(number)
        assert dict(records.get(sent.agent_record_id).record.payload.items()) == dict(sent.payload)
    return ROWS


def test_what_kill_leaves_is_whole(tmp_path: Path, killed: Files) -> None:
    records = RecordStore(laid_out(tmp_path, killed))
    assert whole(records) == ROWS
    records.close()


def refused(path: Path) -> Unavailable:
    """The refusal of a start, which must leave every file as it was, and must come again."""
    before = files(path.parent)
    for _ in range(2):
        with pytest.raises(Unavailable) as error:
            RecordStore(path)
        assert error.value.code == "store_damaged"
        assert str(path) in error.value.message and "restore" in error.value.hint
        assert before.items() <= files(path.parent).items()
    return error.value


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda db: b"", "0 bytes"),
        (lambda db: db[:60], "60 bytes"),
        (lambda db: b"x" * 4096 + db[4096:], "first bytes"),
        (lambda db: db[:4096], "ends after 4096"),
        (lambda db: db[: len(db) // 2], "ends after"),
        (lambda db: db[:-1], "ends after"),
    ],
)
def test_a_torn_database_is_refused(tmp_path: Path, closed: Files, harm: Callable[[bytes], bytes], said: str) -> None:
    path = laid_out(tmp_path, {"reef.db": harm(closed["reef.db"])})
    assert said in refused(path).message


@pytest.mark.parametrize("where", [0.02, 0.3, 0.6, 0.95])
def test_a_log_with_a_hole_is_refused(tmp_path: Path, killed: Files, where: float) -> None:
    """SQLite alone opens it without a word and has forgotten every row after the hole."""
    log = bytearray(killed["reef.db-wal"])
    log[int(len(log) * where)] ^= 0xFF
    path = laid_out(tmp_path, {**killed, "reef.db-wal": bytes(log)})
    assert "had been committed" in refused(path).message


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_log_that_was_cut_off_is_refused(tmp_path: Path, killed: Files, keep: float) -> None:
    log = killed["reef.db-wal"]
    path = laid_out(tmp_path, {**killed, "reef.db-wal": log[: int(len(log) * keep)]})
    assert "had been committed" in refused(path).message


def test_a_log_with_a_garbled_beginning_is_refused(tmp_path: Path, killed: Files) -> None:
    for at in (0, 9, 17, 27):
        home = tmp_path / str(at)
        home.mkdir()
        log = bytearray(killed["reef.db-wal"])
        log[at] ^= 0x10
        assert "log" in refused(laid_out(home, {**killed, "reef.db-wal": bytes(log)})).message


def test_an_unfinished_end_of_the_log_is_no_damage(tmp_path: Path, killed: Files) -> None:
    """What a power cut leaves of a transaction that nobody was told of."""
    log = killed["reef.db-wal"]
    records = RecordStore(laid_out(tmp_path, {**killed, "reef.db-wal": log + log[-4120:] + b"\0" * 300}))
    assert whole(records) == ROWS
    records.close()


@pytest.mark.parametrize("index", [b"", b"\0" * 32768, b"garbage" * 5000])
def test_a_lost_index_is_no_damage(tmp_path: Path, killed: Files, index: bytes) -> None:
    """It is made anew from the log; a power cut leaves any of these."""
    records = RecordStore(laid_out(tmp_path, {**killed, "reef.db-shm": index}))
    assert whole(records) == ROWS
    records.close()


def trouble(records: RecordStore) -> str | None:
    found = records.store.trouble
    return found.code if found is not None else None


def noticed(path: Path) -> str:
    """How damage is noticed: by the start, by a read, or by the look at the whole file soon after the start."""
    try:
        records = RecordStore(path)
    except ReefError as error:
        if error.code != "store_damaged":
            raise
        return "at the start"
    try:
        whole(records)
    except ReefError as error:
        if error.code not in ("store_damaged", "not_found", "store_unreadable"):
            raise
        return "when read"
    except (AssertionError, ValueError, KeyError, TypeError):
        pass  # it reads wrong: the look at the whole file must say so
    else:
        return "it is nowhere that anybody reads"
    finally:
        records.store.check()
        found = trouble(records)
        records.close()
    assert found == "store_damaged"
    return "when looked at"


def test_garbled_pages_are_noticed(tmp_path: Path, closed: Files) -> None:
    """4 KiB anywhere in the file, as a bad sector or another program leaves it."""
    db, chance, seen = closed["reef.db"], random.Random(7), set()
    for page in range(len(db) // 4096):
        home = tmp_path / str(page)
        home.mkdir()
        garbage = chance.randbytes(4096)
        path = laid_out(home, {"reef.db": db[: page * 4096] + garbage + db[(page + 1) * 4096 :]})
        seen.add(noticed(path))
    assert {"at the start", "when read"} <= seen


def test_a_single_garbled_byte_of_a_body_is_noticed(tmp_path: Path, closed: Files) -> None:
    """SQLite keeps no checksums of pages, so bodies have their own."""
    db, found = closed["reef.db"], 0
    for number in range(ROWS):
        packed = next(iter(segments_of(closed, tmp_path, number)))
        at = db.find(packed)
        assert at > 0
        home = tmp_path / str(number)
        home.mkdir()
        path = laid_out(home, {"reef.db": db[: at + len(packed) // 2] + b"\xa5" + db[at + len(packed) // 2 + 1 :]})
        records = RecordStore(path)
        with pytest.raises(Unavailable) as error:
            whole(records)
        assert error.value.code == "store_damaged"
        records.close()
        found += 1
    assert found == ROWS


def segments_of(closed: Files, folder: Path, number: int) -> Iterator[bytes]:
    """The packed text of one row, as it lies in the file."""
    path = folder / "look" / "reef.db"
    if not path.exists():
        path.parent.mkdir()
        laid_out(path.parent, closed)
    store = Store(path)
    with store.reading() as db:
        rows = db.execute("SELECT data FROM segments ORDER BY id").fetchall()
    store.close()
    yield bytes(rows[number][0])


def test_damage_that_was_found_is_looked_for_at_the_next_start(tmp_path: Path, closed: Files) -> None:
    db = bytearray(closed["reef.db"])
    page = len(db) // 4096 - 2
    db[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    path = laid_out(tmp_path, {"reef.db": bytes(db)})
    records = RecordStore(path)
    records.store.check()
    assert trouble(records) == "store_damaged"
    with pytest.raises(Unavailable) as error:
        records.append(row(ROWS))
    assert error.value.code == "store_damaged"
    records.close()
    assert "restore" in refused(path).hint
    path.write_bytes(closed["reef.db"])  # the backup is put back
    records = RecordStore(path)
    assert whole(records) == ROWS
    records.append(row(ROWS))
    records.close()
