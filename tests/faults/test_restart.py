"""A restart costs what is unconsumed, not what has happened (issue 2, Show 9).

With 50,000 records, and on the clock: benchmarks/restart.py.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from benchmarks.restart import SETTINGS, history
from tests.faults.world import ROOT
from tests.support import Daemon, eventually

RECORDS, UNCONSUMED = 10_000, 100
JUDGES_MEMORY = 256
"""Judged reports that are shown again to a judge, at most."""


def taken_up(home: Path) -> list[int]:
    """How many records each start of the trainer ingested, from the daemon's log."""
    lines = map(json.loads, (home / "logs" / "reef.jsonl").read_text(encoding="utf-8").splitlines())
    found = (re.fullmatch(r"s took up (\d+) records", line["message"]) for line in lines)
    return [int(match[1]) for match in found if match]


def test_a_restart_takes_up_only_what_is_unconsumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    history(tmp_path, RECORDS, UNCONSUMED)
    one = Daemon(tmp_path, SETTINGS)
    try:
        for _ in range(2):
            one.start()
            with one.client() as client:
                eventually(lambda client=client: client.get("/reef/scenarios/s")["batch"]["have"] == UNCONSUMED)
                found = client.get("/reef/scenarios/s")
                assert client.status()["store"]["records"] == RECORDS
            assert found["counts"]["report"] == {"accepted": UNCONSUMED, "consumed": RECORDS // 2 - UNCONSUMED}
            assert found["release_id"] == "r10"
            one.kill()
        counts = taken_up(tmp_path)
        assert len(counts) == 2
        assert all(UNCONSUMED <= count <= UNCONSUMED + JUDGES_MEMORY for count in counts)
    finally:
        one.kill()
