"""A small process that writes with the real store and says what was acknowledged; run by the tests of failing calls.

``python -m tests.faults.writing DATABASE ROWS WAIT_S``: appends ROWS inferences, one report for every fourth, with one
checkpoint half-way. What is refused is tried again until WAIT_S have passed. Prints ``ack ID``, and ``refused CODE`` when it
could not even start.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from reef.core.records_types import AgentRecord, RequestType
from reef.errors import ReefError
from reef.records import RecordStore
from reef.store import Store


def row(number: int) -> AgentRecord:
    """The record of this number; a fourth are reports on the one before."""
    if number % 4 == 3:
        payload = {"score": number / 10, "references": [f"i{number - 1}"], "feedback": text(number)}
        return AgentRecord.create("s", RequestType.REPORT, payload, f"p{number}")
    payload = {"request": {"text": text(number)}, "response": {"text": text(number)[::-1]}}
    return AgentRecord.create("s", RequestType.INFERENCE, payload, f"i{number}")


def text(number: int) -> str:
    """Different for every number, and too long to stay in the row."""
    return " ".join(str(number * factor) for factor in range(40))


def main(path: Path, rows: int, wait_s: float) -> int:
    """Returns 6 when the store could not be opened, 1 when not everything was acknowledged in time."""
    try:
        records = RecordStore(Store(path, reserve_bytes=2**20))
    except ReefError as error:
        print("refused", error.code, error.message, flush=True)
        return 6
    deadline = time.monotonic() + wait_s
    number = 0
    while number < rows and time.monotonic() < deadline:
        try:
            print("ack", records.append(row(number)).agent_record_id, flush=True)
            number += 1
            if number == rows // 2:
                records.store.checkpoint()
        except ReefError:
            time.sleep(0.02)
    records.close()
    return 0 if number == rows else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
