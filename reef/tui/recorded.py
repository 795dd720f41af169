"""What the demo data holds of steps, of the gate's evidence and of harness trees. Data only; used by demo.py."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Data = dict[str, Any]

_TASKS = ("parser", "cache", "rename", "flags", "docs", "types")
_SKILL = """---
name: bugfix
description: Use it when something is reported to be wrong.
---
# Fix a bug

Read the report. Find the place in the code. Say in one sentence what is wrong.

## Steps
{steps}

## Never
Change the test to make it pass.
"""
_OLD_STEPS = "Fix the bug, then add a test."
_NEW_STEPS = """Write a failing test that shows the bug.
Run it and read the failure.
Fix the bug; the test must now pass."""
_SAME = (
    ("agent_command", "review", "Read the diff and name what is risky.\n"),
    ("config", "pi", '{\n  "model": "gemma4:26b"\n}\n'),
    ("rules", "short", "# Short\nAnswer in as few words as it takes.\n"),
)

ADAPTER: Data = {
    "name": "pi", "summary": "pi, a small coding agent", "package": "pi-agent", "version": "1.4.0", "node": "22", "size_mb": 61,
    "kinds": ["agent_command", "config", "rules", "skill"],
}  # fmt: skip


def tree_of(number: int) -> list[Data]:
    """Entries of the harness of release ``number``."""
    entries = [*_SAME, ("skill", "bugfix", _SKILL.format(steps=_NEW_STEPS if number >= 10 else _OLD_STEPS))]
    if number >= 10:
        entries.append(
            ("rules", "test-first", "# Test first\nA change without a test that fails before it is not done.\n")
        )
    if number >= 11:
        entries.append(("code_extension", "run-tests", "export default () => run('make test');\n"))
    return [{"kind": kind, "name": name, "text": text} for kind, name, text in sorted(entries)]


def evidence_of(reason: str) -> Data:
    """A receipt that ends as ``reason`` says: so many pairs won, that E."""
    found = re.match(r"(\d+) of (\d+) pairs won, E ([\d.]+)", reason)
    if found is None:
        return {"checks": {"loads": {"ok": not reason.startswith("load failed"), "value": 1.0, "limit": 1.0}}}
    wins, pairs, final = int(found[1]), int(found[2]), math.log(float(found[3]))
    won = [(at + 1) * wins // pairs > at * wins // pairs for at in range(pairs)]
    raw, here = [], 0.0
    for one in won:
        here += 0.22 if one else -0.3
        raw.append(here)
    rows = [[at, "test", _TASKS[at % len(_TASKS)], at, True, float(one), float(not one)] for at, one in enumerate(won)]
    scale = final / raw[-1] if raw[-1] > 0 else 1.0
    return {"pairs": rows, "trajectory": [round(value * scale, 3) for value in raw], "level": 0.05, "given_away": {}}


def evolving_of() -> Data:
    """A test in hand, and what tests have spent."""
    grown = evidence_of("16 of 24 pairs won, E 9.6")["trajectory"]
    budget = {"alpha": 0.05, "used": 0.61, "tests": 11, "published": 8, "next_level": 0.0041}
    return {"phase": "comparing", "pairs": 24, "pairs_at_most": 32, "minutes_at_most": 12.4, "trajectory": grown,
            "level": 0.05, "drafts": 2, "unboxed": None, "error_budget": budget}  # fmt: skip


def steps_of(releases: Sequence[Mapping[str, Any]], count: int, now: float) -> list[Data]:
    """Past steps, newest first: those that made ``releases``, and between them those that made none."""
    made = {release["step"]: release for release in releases}
    found = []
    for number in range(1, count):
        release = made.get(number)
        reward = round(0.24 + 0.5 * (number / 42) ** 0.7 + (number * 29 % 13 - 6) / 120, 3)
        found.append({
            "step": number, "step_id": f"s{number}", "batch_id": f"b{number}",
            "outcome": "release" if release else "skip", "release_id": release["release_id"] if release else None,
            "reason": None if release else "no_signal: every run of the batch had the same score",
            "verdict": dict(release["verdict"]) if release else {}, "created_at": now - 270 * (count - number),
            "metrics": {"reward_mean": reward, "incumbent_mean": round(reward - 0.02 - number * 7 % 5 / 100, 3),
                        "loss": round(1.4 / (1 + number / 9), 3), "kl_parent": round(0.01 * (number % 7), 3)},
        })  # fmt: skip
    return found[::-1]
