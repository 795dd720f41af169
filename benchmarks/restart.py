"""What does a restart cost? A home with 50,000 records, 100 of them unconsumed reports, against an empty one.

    python benchmarks/restart.py [--records 50000] [--unconsumed 100] [--rounds 3]

Prints one JSON document: the times from the start of the process to ready, per round. No model is loaded in either case: the
recipe runs on the public stub runtime, so that what differs is the history alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from reef.core.artifacts import Decision, Verdict
from reef.core.records_types import AgentRecord, RequestType
from reef.launch import spawn, stop, wait_ready
from reef.records import RecordStore
from reef.releases import ReleaseChain, StepCommit

ROOT = Path(__file__).parents[1]
SCENARIO = "s"
SETTINGS = {
    "reef.port": "0",
    "reef.upstream_url": "http://127.0.0.1:9",
    "reef.recipe": "tests.faults.world:StubRecipe",
    "reef.batch_size": "500",
}
STEP_PAIRS = 500
"""Reports, each with its inference, that one past step has used."""


def history(home: Path, records: int, unconsumed: int) -> None:
    """Write a database: ``unconsumed`` reports with their inferences still wait, the rest has trained in past steps."""
    home.mkdir(parents=True, exist_ok=True)
    store = RecordStore(home / "reef.db")
    chain = ReleaseChain(store.store)
    chain.create(SCENARIO, "stub", "weights", "base-stub")
    pairs = records // 2
    for start in range(0, pairs, STEP_PAIRS):
        numbers = range(start, min(start + STEP_PAIRS, pairs))
        made = [one for number in numbers for one in pair(number)]
        stored = [one.agent_record_id for one in store.submit(*made).result()]
        spent = stored[: 2 * max(0, pairs - unconsumed - start)]
        if spent:
            chain.commit(step(start // STEP_PAIRS + 1, spent))
    store.close()


def pair(number: int) -> Iterator[AgentRecord]:
    """An inference with its tokens, and the report on it."""
    training = {"tokens": [1, 2, number % 250], "loss_mask": [1], "rollout_log_probs": [-0.5], "temperature": 1.0}
    release_id = f"r{number // STEP_PAIRS}"
    request = {"messages": [{"role": "user", "content": f"question {number}"}]}
    payload = {"request": request, "response": {"text": f"answer {number}", "training": training}}
    yield AgentRecord.create(SCENARIO, RequestType.INFERENCE, payload, f"i{number}", release_id=release_id)
    yield AgentRecord.create(SCENARIO, RequestType.REPORT, {"score": 1.0, "references": [f"i{number}"]}, f"p{number}")


def step(number: int, used: list[str]) -> StepCommit:
    """A past step that used up ``used``."""
    verdict = Verdict(Decision.ACCEPT, "checks", "history")
    content_id = f"{number:032x}"
    return StepCommit(
        f"step-{number}",
        SCENARIO,
        f"{SCENARIO}:{number}",
        "release",
        {"steps": number},
        used,
        content_id=content_id,
        verdict=verdict,
    )


def start_s(home: Path) -> float:
    """Seconds from the start of a daemon on ``home`` to ready."""
    began = time.perf_counter()
    child = spawn(home, SETTINGS)
    wait_ready(child, home, 120.0)
    took_s = time.perf_counter() - began
    stop(home, 60.0)
    child.wait()
    return took_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--unconsumed", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        empty, full = Path(folder) / "empty", Path(folder) / "full"
        history(empty, 0, 0)
        history(full, options.records, options.unconsumed)
        times = [(start_s(empty), start_s(full)) for _ in range(options.rounds)]
    empty_s, full_s = (statistics.median(column) for column in zip(*times, strict=True))
    found = {
        "records": options.records,
        "unconsumed_reports": options.unconsumed,
        "empty_s": [round(one, 3) for one, _ in times],
        "full_s": [round(one, 3) for _, one in times],
        "difference_of_medians_s": round(full_s - empty_s, 3),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
