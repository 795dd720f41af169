"""A step as one transaction: release, algorithm state, consumed records, judgments, verdict and metrics.

Knows nothing of runtimes. Called by ReleaseChain on the writer's thread.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reef.core.artifacts import Decision, Release, ReleaseState, Verdict
from reef.core.texts import writable
from reef.errors import BadRequest
from reef.records import Mark
from reef.releases.rows import insert_release, release_of_row, row_of

_STATE_OF = {
    Decision.ACCEPT: ReleaseState.PUBLISHED,
    Decision.HOLD: ReleaseState.HELD,
    Decision.REJECT: ReleaseState.REJECTED,
    Decision.INCONCLUSIVE: ReleaseState.REJECTED,
}


@dataclass(frozen=True, slots=True)
class StepCommit:
    """Everything one step changes. ``consumed`` are the record ids it used up (reports and their inferences).

    ``outcome``: ``release`` (with ``content_id`` and ``verdict``), ``skip`` or ``refused``. Algorithm state advances with
    a release that is not rejected and with a skip.
    """

    step_id: str
    scenario: str
    batch_id: str
    outcome: str
    next_algorithm_state: Mapping[str, Any]
    consumed: Sequence[str]
    reason: str | None = None
    content_id: str | None = None
    size_bytes: int = 0
    verdict: Verdict | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


def commit_step(step: StepCommit, marks: Sequence[Mark], db: sqlite3.Connection) -> Release | None:
    """A whole step in one transaction; a step id that is there already changes nothing and gives its release again."""
    scenario_id, head, number = db.execute(
        "SELECT id, head, step FROM scenarios WHERE name = ?", (step.scenario,)
    ).fetchone()
    done = db.execute("SELECT release_id FROM steps WHERE step_id = ?", (step.step_id,)).fetchone()
    if done is not None:
        return None if done[0] is None else release_of_row(row_of(db, scenario_id, done[0]))
    state, release = json.dumps(dict(step.next_algorithm_state)), None
    if step.outcome == "release":
        if step.content_id is None or step.verdict is None:
            raise BadRequest("a release needs a content id and a verdict")
        release = insert_release(
            db,
            scenario_id,
            state,
            Release(
                "",
                step.scenario,
                step.content_id,
                head,
                number + 1,
                _STATE_OF[step.verdict.decision],
                time.time(),
                step.size_bytes,
                step.step_id,
                None,
                {**asdict(step.verdict), "decision": step.verdict.decision.value},
                step.metrics,
            ),
        )
    became_head = release is not None and release.state is ReleaseState.PUBLISHED
    db.execute(
        "UPDATE scenarios SET step = step + 1, reserved = '[]', head = CASE WHEN ? THEN ? ELSE head END,"
        " algorithm_state = CASE WHEN ? THEN ? ELSE algorithm_state END WHERE id = ?",
        (
            became_head,
            None if release is None else release.release_id,
            became_head or step.outcome == "skip",
            state,
            scenario_id,
        ),
    )
    made = db.execute(
        "INSERT INTO steps(step_id, scenario_id, number, batch_id, outcome, reason, release_id, created_at, metrics,"
        " verdict) VALUES (?,?,?,?,?,?,?,?,?,?)",
        (
            step.step_id,
            scenario_id,
            number + 1,
            step.batch_id,
            step.outcome,
            None if step.reason is None else writable(step.reason),
            None if release is None else release.release_id,
            time.time(),
            json.dumps(dict(step.metrics)),
            json.dumps({} if release is None else dict(release.verdict)),
        ),
    )
    db.executemany(
        "UPDATE records SET consumed_step = ?, state = CASE type WHEN 'inference' THEN state ELSE 'consumed' END"
        " WHERE id = ?",
        [(made.lastrowid, record_id) for record_id in step.consumed],
    )
    db.executemany(
        "UPDATE records SET state = ?, reason = ? WHERE id = ? AND state IN ('parked','accepted')",
        [(mark.state.value, mark.reason, mark.record_id) for mark in marks],
    )
    return release


def mark_served(scenario: str, release_id: str, db: sqlite3.Connection) -> None:
    """One release serves, and what served before it is merely published."""
    mine = "scenario_id = (SELECT id FROM scenarios WHERE name = ?)"
    db.execute(
        f"UPDATE releases SET state = 'published' WHERE {mine} AND state = 'serving' AND release_id <> ?",
        (scenario, release_id),
    )
    db.execute(f"UPDATE releases SET state = 'serving' WHERE {mine} AND release_id = ?", (scenario, release_id))
