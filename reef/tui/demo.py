"""Recorded data that looks like a daemon at work, for docs, tests and screenshots: ``reef tui --demo``. Never needs one.

Answers the reads of source.Source from a fixed list; acts are refused, because nothing here could change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from reef.errors import Conflict, NotFound
from reef.tui.recorded import ADAPTER, evidence_of, evolving_of, steps_of, tree_of

Data = dict[str, Any]

_STEP_S = 1.4
_MAIN = "my-harness"
# release, state, minutes ago, reward, why the gate decided so
_CHAIN: tuple[tuple[str, int, float | None, str], ...] = (
    ("published", 194, None, ""),
    ("published", 171, 0.31, "12 of 16 pairs won, E 24.1"),
    ("rejected", 160, 0.28, "reward fell from 0.31 to 0.28"),
    ("published", 141, 0.44, "14 of 18 pairs won, E 31.0"),
    ("published", 118, 0.52, "15 of 20 pairs won, E 22.7"),
    ("published", 84, 0.61, "16 of 22 pairs won, E 27.9"),
    ("rolled_back", 62, 0.66, "17 of 24 pairs won, E 20.3"),
    ("published", 24, 0.64, "13 of 18 pairs won, E 21.8"),
    ("rejected", 17, None, "load failed: rules/tests.md is empty"),
    ("rejected", 12, 0.58, "reward fell from 0.64 to 0.58"),
    ("serving", 8, 0.71, "19 of 24 pairs won, E 44.2"),
    ("held", 1, 0.73, "11 of 14 pairs won, E 25.3; publish: review"),
)
_FEEDBACK = ("test first, then fixed", "ran the whole suite twice", "changed the test to make it pass", "")
_ASKS = (
    "fix the failing parser test",
    "add a --json flag to the list command",
    "why does the cache grow without end?",
    "rename Session to Run in the client",
)
_DIFF = """--- a/skills/bugfix/SKILL.md
+++ b/skills/bugfix/SKILL.md
@@ -9,5 +9,7 @@
 ## Steps
-Fix the bug, then add a test.
+Write a failing test that shows the bug.
+Run it and read the failure.
+Fix the bug; the test must now pass.

 ## Never
 Change the test to make it pass.
--- /dev/null
+++ b/rules/test-first.md
@@ -0,0 +1,2 @@
+# Test first
+A change without a test that fails before it is not done.
"""


class Demo:
    """A source of recorded data; with ``play`` more of it happens every second or so."""

    url = "demo data"

    def __init__(self, clock: Callable[[], float] = time.time, *, play: bool = True) -> None:
        self._now = clock()
        self._clock = clock
        self._play = play
        self._records = [self._record(number, self._now - 3.2 * (60 - number) - 1) for number in range(60)]
        self._count = 1025
        self._steps = 41

    async def get(self, path: str, **query: Any) -> Data:
        """What a daemon would answer; raises NotFound for what is not recorded."""
        parts = path.strip("/").split("/")[1:]
        match parts:
            case ["status"]:
                return self._status()
            case ["knobs"]:
                return _KNOBS
            case ["logs"]:
                return {"lines": [line for line in _log(self._now) if line["number"] > int(query.get("after") or 0)]}
            case ["scenarios", name, "releases"]:
                return {"releases": self._releases(name)[: int(query.get("limit") or 200)]}
            case ["scenarios", name, "releases", release_id]:
                release = next((row for row in self._releases(name) if row["release_id"] == release_id), None)
                if release is not None:
                    return release | {"records": [row["agent_record_id"] for row in self._records[:16]]}
            case ["scenarios", name, "releases", _, "diff"]:
                return {"from": None, "to": {}, "diff": _DIFF if name == _MAIN else ""}
            case ["scenarios", name, "steps"]:
                count = {_MAIN: 42, "math-tutor": 13}.get(name, 0)
                return {"steps": steps_of(self._releases(name), count, self._now)}
            case ["scenarios", name, "records"]:
                rows = [row for row in reversed(self._records) if row["scenario"] == name]
                return {"records": [_without_bodies(row) for row in rows[: int(query.get("limit") or 50)]]}
            case ["scenarios", name, "proposals"]:
                return {"proposals": self._proposals(name)}
            case ["harness"]:
                return {"entries": tree_of(int(str(query["release"])[1:]))}
            case ["harness", "adapters"]:
                return {"adapters": [ADAPTER]}
            case ["records", record_id]:
                found = next((row for row in self._records if row["agent_record_id"] == record_id), None)
                if found is not None:
                    return found
        raise NotFound(f"{path} is not in the demo data", hint="leave --demo away to see a daemon")

    async def change_knobs(self, knobs: Mapping[str, Any]) -> Data:
        """Nothing can be changed here."""
        return await self.post("/reef/knobs", knobs)

    async def post(self, path: str, body: Mapping[str, Any]) -> Data:
        """Nothing can be changed here."""
        raise Conflict("this is demo data: nothing is changed", hint="start a daemon with: reef up, then: reef tui")

    async def events(self, after: int | None = None) -> AsyncIterator[Data]:
        """The newest records and what became of them, then, with ``play``, more of the same."""
        number = 0
        for record in self._records[-24:]:
            number += 1
            yield self._event(number, record)
        for kind, ago_s, data in self._told():
            number += 1
            yield {"id": number, "kind": kind, "scenario": _MAIN, "at": self._now - ago_s, "data": data}
        while True:
            await asyncio.sleep(_STEP_S if self._play else 3600)
            number += 1
            record = self._record(len(self._records), self._clock())
            self._records.append(record)
            self._count += record["request_type"] == "inference"
            yield self._event(number, record)

    async def close(self) -> None:
        """Nothing to give back."""

    # -- what was recorded

    def _record(self, number: int, at: float) -> Data:
        name, inference = (_MAIN if number % 4 else "math-tutor"), number % 3 != 2
        record_id = f"{(number * 7919 + 4093) % 0xFFFFFF:06x}"
        score, head = round((number * 37 % 11) / 10, 1), "r10" if name == _MAIN else "r7"
        ask, answered = _ASKS[number % len(_ASKS)], 700 + number * 131 % 900
        common: Data = {
            "agent_record_id": record_id, "seq": number + 1, "scenario": name, "created_at": at, "session": f"run-{number // 6}",
            "reason": None, "purged_at": None, "meta": {},
        }  # fmt: skip
        if inference:
            usage = {"input_tokens": 812, "output_tokens": answered}
            took = {"duration_ms": 300 + number * 53 % 400, "status": 200, "model": "gemma4:26b"}
            said = "I'll reproduce it first, then look at the parser."
            return common | {
                "request_type": "inference", "state": "complete", "release_id": head, "usage": usage,
                "request": {"model": "gemma4:26b", "messages": [{"role": "user", "content": ask}]},
                "response": {"choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}]},
                "reports": [], "consumed_by": None, "consumed_step": None, "meta": took,
            }  # fmt: skip
        before = f"{((number - 1) * 7919 + 4093) % 0xFFFFFF:06x}"
        return common | {
            "request_type": "report", "state": "consumed" if number % 2 else "accepted", "release_id": None, "usage": None,
            "score": score, "references": [before], "feedback": _FEEDBACK[number % len(_FEEDBACK)] or None, "metadata": {},
            "consumed_by": {"step": 41, "release_id": head} if number % 2 else None, "consumed_step": 41 if number % 2 else None,
        }  # fmt: skip

    def _event(self, number: int, record: Data) -> Data:
        if record["request_type"] == "inference":
            data = {"id": record["agent_record_id"], "state": "complete", "status": 200, "ms": record["meta"]["duration_ms"],
                    "usage": record["usage"], "release": record["release_id"]}  # fmt: skip
        else:
            data = {"id": record["agent_record_id"], "score": record["score"]}
        return {"id": number, "kind": record["request_type"], "scenario": record["scenario"],
                "at": record["created_at"], "data": data}  # fmt: skip

    def _told(self) -> list[tuple[str, float, Data]]:
        return [
            ("step", 3.0, {"outcome": "release", "release": "r11", "reason": "held for review",
                           "metrics": {"reward_mean": 0.73}}),
            ("trainer", 1.5, {"state": "training", "detail": "comparing: 24 pairs of at most 32"}),
        ]  # fmt: skip

    def _releases(self, name: str) -> list[Data]:
        if name != _MAIN:
            chain = _CHAIN[:8] if name == "math-tutor" else _CHAIN[:1]
            chain = (*tuple(("published", *row[1:]) for row in chain[:-1]), ("serving", *chain[-1][1:]))
        else:
            chain = _CHAIN
        rows: list[Data] = []
        parent: str | None = None
        for number, (state, minutes, reward, reason) in enumerate(chain):
            verdict = (
                {
                    "decision": _DECISIONS.get(state, "accept"),
                    "rule": "paired-e",
                    "reason": reason,
                    "evidence": evidence_of(reason),
                }
                if reason
                else {}
            )
            metrics: Data = (
                {} if reward is None else {"reward_mean": reward, "pairs": 24, "loss": round(0.9 - reward, 3)}
            )
            rows.append(
                {
                    "release_id": f"r{number}", "content_id": f"{number * 2654435761 % 2**64:016x}", "scenario": name,
                    "parent": parent, "step": number * 41 // 11, "step_id": f"s{number}", "state": state,
                    "created_at": self._now - 60 * minutes, "restored_from": None, "size_bytes": 4200 + 310 * number,
                    "verdict": verdict, "metrics": metrics,
                }
            )  # fmt: skip
            if state not in ("rejected", "held"):
                parent = f"r{number}"
        return rows[::-1]

    def _proposals(self, name: str) -> list[Data]:
        if name != _MAIN:
            return []
        edit = {"action": "put", "kind": "rule", "name": "test-first", "text": "# Test first\n"}
        return [
            {"seq": 7, "step_id": "s11", "origin": "model", "state": "held", "reason": None, "created_at": self._now - 60,
             "proposal": {"why": "Reports praise runs that begin with a failing test.", "edits": [edit]}, "seen": {},
             "release_id": "r11"},
        ]  # fmt: skip

    def _status(self) -> Data:
        evolving = evolving_of()
        rows = (
            (_MAIN, "evolve", "harness", "r10", 41, "training", "comparing: 24 pairs of at most 32", 12, 16, 650, 210),
            ("math-tutor", "evolve", "harness", "r7", 12, "idle", "", 3, 16, 340, 96),
            ("support-bot", "evolve", "harness", "r0", 0, "idle", "", 0, 16, 35, 0),
        )
        scenarios = [
            {
                "name": name, "recipe": recipe, "surface": surface, "created_at": self._now - 11640, "release_id": head,
                "step": step, "state": state, "detail": detail, "evolving": evolving if state == "training" else {},
                "batch": {"have": have, "need": need}, "pending_receipts": [], "bytes": 18_400_000,
                "reasons": {"stale": 2, "no_score": 1} if calls > 600 else {},
                "waiting_for": "the step that is running" if state == "training" else f"{need - have} more accepted reports",
                "counts": {"inference": {"complete": calls + (self._count - 1025 if name == _MAIN else 0)},
                           "report": {"consumed": max(0, reports - have - 6),
                                      "parked": min(3, reports), "accepted": have, "refused": 3 * (calls > 600)}},
            }
            for name, recipe, surface, head, step, state, detail, have, need, calls, reports in rows
        ]  # fmt: skip
        return {
            "version": 1,
            "daemon": {"version": "0.1.0", "pid": 1, "uptime_s": 8049.0 + self._clock() - self._now, "home": "demo",
                       "url": "http://127.0.0.1:8900", "ready": True, "recipe": "evolve"},
            "inference": {"backend": "provider", "model": "gemma4:26b", "speaks": [], "ready": True, "engine": None,
                          "upstream": {"url": "http://127.0.0.1:11434/v1", "failing": False, "last_failure": None}},
            "store": {"records": self._count + 306, "bytes": 18_400_000, "queue": 0, "commits": 1204, "fsync_ms": 1.9,
                      "unrecorded": 0, "degraded": None},
            "scenarios": scenarios,
        }  # fmt: skip


def _log(now: float) -> list[Data]:
    """What the daemon wrote, oldest first."""
    said: tuple[tuple[int, str, str, Data], ...] = (
        (8049, "info", "ready at http://127.0.0.1:8900", {}),
        (2400, "info", "my-harness: a step ended: release r8, load failed", {}),
        (1420, "warning", "the provider failed: no answer within 300 s", {"url": "http://127.0.0.1:11434/v1"}),
        (1380, "warning", "the provider answers again", {}),
        (640, "info", "my-harness: a step ended: release r10, 19 of 24 pairs won", {}),
        (31, "error", "training of math-tutor waits: the disk is nearly full", {}),
    )  # fmt: skip
    return [
        {
            "number": number, "time": datetime.fromtimestamp(now - ago, UTC).isoformat(timespec="milliseconds"),
            "level": level, "logger": "reef", "message": message, **({"fields": fields} if fields else {}),
        }
        for number, (ago, level, message, fields) in enumerate(said, 1)
    ]  # fmt: skip


_KNOBS: Data = {
    "recipe": "EvolveRecipe", "file": "serve.yaml", "knobs": [
        {"name": name, "value": value, "default": default, "origin": origin, "help": help, "applies": applies}
        for name, value, default, origin, help, applies in (
            ("reef.batch_size", 16, 1, "serve.yaml:6", "failed reports per step", "next_batch"),
            ("reef.fail_below", 0.5, 0.5, "default", "a report with a score under this is a failed run", "next_batch"),
            ("reef.gate_alpha", 0.1, 0.05, "set by cli", "share of published releases that may be no improvement", "next_batch"),
            ("reef.gate_pairs", 32, 60, "serve.yaml:8", "most pairs of the test", "next_batch"),
            ("reef.max_minutes", 0.0, 0.0, "default", "most minutes of a step, 0 for no limit", "next_batch"),
            ("reef.adapter", "pi", "minimal", "serve.yaml:5", "agent of the episodes", "restart"),
            ("reef.port", 8900, 8900, "default", "port to listen on", "restart"),
            ("reef.tasks", "tasks", None, "env REEF_TASKS", "folder of tasks that proposals are compared on", "restart"),
            ("reef.token", None, None, "default", "access token; one is made in the state directory when unset", "restart"),
        )
    ],
}  # fmt: skip
_DECISIONS = {"rejected": "reject", "held": "hold"}


def _without_bodies(row: Data) -> Data:
    return {
        key: value
        for key, value in row.items()
        if key not in ("request", "response", "feedback", "reports", "consumed_by")
    }
