"""Rows of scenarios, steps and releases: their values, how they are read, and the writes that several acts share.

Knows nothing of what an act means. Called by releases.chain and releases.steps, the writes inside their transactions.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reef.core.artifacts import Release, ReleaseState
from reef.errors import NotFound

RELEASE_COLUMNS = (
    "release_id, s.name, content_id, parent, r.step, state, r.created_at, size_bytes, step_id, restored_from, verdict,"
    " metrics"
)
FROM_RELEASES = "FROM releases r JOIN scenarios s ON s.id = r.scenario_id"


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    """What the store keeps of a scenario."""

    name: str
    recipe: str
    surface: str
    created_at: float
    paused: bool
    step: int
    algorithm_state: Mapping[str, Any]
    reserved: Sequence[str]
    head: str | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One past step."""

    number: int
    step_id: str
    batch_id: str
    outcome: str
    reason: str | None
    release_id: str | None
    created_at: float
    metrics: Mapping[str, Any]
    verdict: Mapping[str, Any]


def insert_release(db: sqlite3.Connection, scenario_id: int, algorithm_state: str, release: Release) -> Release:
    """Write ``release`` under the next number of its chain and return it with that number."""
    newest = db.execute(
        "SELECT COALESCE(MAX(CAST(substr(release_id, 2) AS INT)), -1) FROM releases WHERE scenario_id = ?",
        (scenario_id,),
    ).fetchone()[0]
    made = replace(release, release_id=f"r{newest + 1}")
    db.execute(
        "INSERT INTO releases(scenario_id, release_id, content_id, parent, step, step_id, state, created_at, size_bytes,"
        " restored_from, algorithm_state, verdict, metrics) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (
            scenario_id,
            made.release_id,
            made.content_id,
            made.parent,
            made.step,
            made.step_id,
            made.state.value,
            made.created_at,
            made.size_bytes,
            made.restored_from,
            algorithm_state,
            json.dumps(dict(made.verdict)),
            json.dumps(dict(made.metrics)),
        ),
    )
    return made


def row_of(db: sqlite3.Connection, scenario_id: int, release_id: str) -> Sequence[Any]:
    """The row of one release that is known to be there."""
    row: Sequence[Any] = db.execute(
        f"SELECT {RELEASE_COLUMNS} {FROM_RELEASES} WHERE r.scenario_id = ? AND r.release_id = ?",
        (scenario_id, release_id),
    ).fetchone()
    return row


def set_head(db: sqlite3.Connection, scenario_id: int, release_id: str, algorithm_state: str) -> None:
    """Make a release the one to serve, with the algorithm state it was made with."""
    db.execute(
        "UPDATE scenarios SET head = ?, algorithm_state = ? WHERE id = ?", (release_id, algorithm_state, scenario_id)
    )


def scenario_row_id(db: sqlite3.Connection, name: str) -> int:
    """The row id of a scenario; raises NotFound."""
    row = db.execute("SELECT id FROM scenarios WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NotFound(f"no scenario {name!r}", hint="list them with: reef scenarios", code="no_scenario")
    return int(row[0])


def log_action(db: sqlite3.Connection, scenario_id: int, actor: str, action: str, detail: Mapping[str, Any]) -> None:
    """Keep who did what to a scenario, in the same transaction as the act."""
    db.execute(
        "INSERT INTO actions(scenario_id, at, actor, action, detail) VALUES (?,?,?,?,?)",
        (scenario_id, time.time(), actor, action, json.dumps(dict(detail))),
    )


def step_of_row(row: Sequence[Any]) -> StepRow:
    """A step as a value."""
    number, step_id, batch_id, outcome, reason, release_id, at, metrics, verdict = row
    return StepRow(number, step_id, batch_id, outcome, reason, release_id, at, json.loads(metrics), json.loads(verdict))


def release_of_row(row: Sequence[Any]) -> Release:
    """A release as a value; ``row`` holds RELEASE_COLUMNS."""
    release_id, name, content_id, parent, step, state, at, size, step_id, restored, verdict, metrics = row
    return Release(
        release_id,
        name,
        content_id,
        parent,
        step,
        ReleaseState(state),
        at,
        size,
        step_id,
        restored,
        json.loads(verdict),
        json.loads(metrics),
    )
