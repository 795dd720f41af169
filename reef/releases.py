"""ReleaseChain: the versions of each scenario and the steps that made them. A step is one transaction.

Knows nothing of what an artifact holds, of engines or of recipes. Called by scenario, the trainer and the admin routes.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from reef.core.artifacts import Decision, Release, ReleaseState, Verdict
from reef.errors import BadRequest, Conflict, NotFound
from reef.records import Mark
from reef.store import Store

_RELEASE = (
    "release_id, s.name, content_id, parent, r.step, state, r.created_at, size_bytes, step_id, restored_from, verdict,"
    " metrics"
)
_FROM = "FROM releases r JOIN scenarios s ON s.id = r.scenario_id"


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


_STATE_OF = {
    Decision.ACCEPT: ReleaseState.PUBLISHED,
    Decision.HOLD: ReleaseState.HELD,
    Decision.REJECT: ReleaseState.REJECTED,
    Decision.INCONCLUSIVE: ReleaseState.REJECTED,
}


class ReleaseChain:
    """The chains of all scenarios in one Store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- scenarios

    def create(self, name: str, recipe: str, surface: str, base_content_id: str | None) -> ScenarioRow:
        """The scenario, made with its base release ``r0`` when it is new; an existing one is returned as it is."""

        def work(db: sqlite3.Connection) -> None:
            now_s = time.time()
            db.execute(
                "INSERT INTO scenarios(name, recipe, surface, created_at) VALUES (?,?,?,?)"
                " ON CONFLICT(name) DO UPDATE SET recipe = excluded.recipe, surface = excluded.surface"
                " WHERE recipe = ''",
                (name, recipe, surface, now_s),
            )
            scenario_id, head = db.execute("SELECT id, head FROM scenarios WHERE name = ?", (name,)).fetchone()
            if head is None and base_content_id is not None:
                db.execute(
                    "INSERT INTO releases(scenario_id, release_id, content_id, step, state, created_at)"
                    " VALUES (?, 'r0', ?, 0, 'serving', ?)",
                    (scenario_id, base_content_id, now_s),
                )
                db.execute("UPDATE scenarios SET head = 'r0' WHERE id = ?", (scenario_id,))

        self.store.write(work)
        return self.scenario(name)

    def scenario(self, name: str) -> ScenarioRow:
        """One scenario; raises NotFound."""
        found = [row for row in self.scenarios() if row.name == name]
        if not found:
            raise NotFound(f"no scenario {name!r}", hint="list them with: reef scenarios", code="no_scenario")
        return found[0]

    def scenarios(self) -> list[ScenarioRow]:
        """All scenarios, oldest first."""
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT name, recipe, surface, created_at, paused, step, algorithm_state, reserved, head FROM scenarios"
                " ORDER BY id"
            ).fetchall()
        return [
            ScenarioRow(name, recipe, surface, at, bool(paused), step, json.loads(state), json.loads(reserved), head)
            for name, recipe, surface, at, paused, step, state, reserved, head in rows
        ]

    def reserve(self, name: str, owners: Sequence[str]) -> None:
        """Keep which reports the next batch is made of, so that it is the same one after a crash."""
        kept = json.dumps(list(owners))
        self.store.write(lambda db: db.execute("UPDATE scenarios SET reserved = ? WHERE name = ?", (kept, name)))

    def pause(self, name: str, paused: bool, actor: str) -> None:
        """Stop or resume training of one scenario; serving goes on."""

        def work(db: sqlite3.Connection) -> None:
            scenario_id = _scenario_id(db, name)
            db.execute("UPDATE scenarios SET paused = ? WHERE id = ?", (int(paused), scenario_id))
            _log(db, scenario_id, actor, "pause" if paused else "resume", {})

        self.store.write(work)

    # -- the chain

    def head(self, scenario: str) -> Release | None:
        """The release that is committed as the one to serve; None where nothing is versioned."""
        with self.store.reading() as db:
            row = db.execute(
                f"SELECT {_RELEASE} {_FROM} WHERE s.name = ? AND r.release_id = s.head", (scenario,)
            ).fetchone()
        return _release(row) if row else None

    def get(self, scenario: str, release_id: str) -> Release:
        """One release by ``r7`` or by a content id's beginning (8 characters or more); raises NotFound."""
        with self.store.reading() as db:
            row = db.execute(
                f"SELECT {_RELEASE} {_FROM} WHERE s.name = ? AND (r.release_id = ? OR (length(?) >= 8 AND"
                " substr(r.content_id, 1, length(?)) = ?)) ORDER BY r.seq LIMIT 1",
                (scenario, release_id, release_id, release_id, release_id),
            ).fetchone()
        if row is None:
            raise NotFound(
                f"no release {release_id!r} in scenario {scenario!r}",
                hint=f"list them with: reef releases -s {scenario}",
            )
        return _release(row)

    def releases(self, scenario: str, *, limit: int = 200, before: int | None = None) -> list[Release]:
        """Newest first."""
        with self.store.reading() as db:
            rows = db.execute(
                f"SELECT {_RELEASE} {_FROM} WHERE s.name = ? AND (? IS NULL OR CAST(substr(r.release_id, 2) AS INT) < ?)"
                " ORDER BY r.seq DESC LIMIT ?",
                (scenario, before, before, limit),
            ).fetchall()
        return [_release(row) for row in rows]

    def published_after(self, scenario: str, release_id: str) -> int:
        """How many releases went out after ``release_id``: the staleness of what it generated."""
        with self.store.reading() as db:
            found = db.execute(
                f"SELECT COUNT(*) {_FROM} WHERE s.name = ? AND CAST(substr(r.release_id, 2) AS INT) > ?"
                " AND r.state NOT IN ('rejected','held')",
                (scenario, int(release_id[1:])),
            ).fetchone()
        return int(found[0])

    def steps(self, scenario: str, *, limit: int = 200) -> list[StepRow]:
        """Past steps, newest first."""
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT number, step_id, batch_id, outcome, reason, release_id, t.created_at, metrics, verdict FROM steps t"
                " JOIN scenarios s ON s.id = t.scenario_id WHERE s.name = ? ORDER BY t.seq DESC LIMIT ?",
                (scenario, limit),
            ).fetchall()
        return [_step(row) for row in rows]

    def step_records(self, scenario: str, release_id: str) -> list[str]:
        """Ids of the records a release learned from."""
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT c.id FROM records c JOIN steps t ON t.seq = c.consumed_step JOIN scenarios s ON s.id ="
                " t.scenario_id WHERE s.name = ? AND t.release_id = ? ORDER BY c.seq",
                (scenario, release_id),
            ).fetchall()
        return [row[0] for row in rows]

    def step_of(self, step_seq: int) -> StepRow | None:
        """The step a record's ``consumed_step`` points at."""
        with self.store.reading() as db:
            row = db.execute(
                "SELECT number, step_id, batch_id, outcome, reason, release_id, created_at, metrics, verdict FROM steps"
                " WHERE seq = ?",
                (step_seq,),
            ).fetchone()
        return _step(row) if row else None

    def commit(self, step: StepCommit, marks: Sequence[Mark] = ()) -> Release | None:
        """Write a whole step: release, algorithm state, consumed records, verdict, metrics. Idempotent by step id.

        Returns the new release (whatever its state), None for a skip or a refusal.
        """

        release: Release | None = self.store.submit(partial(_commit, step, marks)).result()
        return release

    def served(self, scenario: str, release_id: str) -> None:
        """Every engine has confirmed ``release_id``: it is the serving one now."""

        self.store.submit(partial(_served, scenario, release_id)).result()

    # -- what people do

    def rollback(self, scenario: str, to: str | None, actor: str) -> Release:
        """A new release that restores ``to`` (default: the head's parent), its weights and its algorithm state."""
        head = self.head(scenario)
        if head is None:
            raise Conflict(f"scenario {scenario!r} has no releases", hint="its recipe updates nothing")
        target = self.get(scenario, to if to is not None else self._parent_of(head))
        if target.state in (ReleaseState.REJECTED, ReleaseState.HELD):
            raise Conflict(
                f"{target.release_id} is {target.state} and was never served",
                hint=f"choose another release, or: reef promote {target.release_id}",
            )
        if target.content_id == head.content_id:
            raise Conflict(f"{scenario!r} already serves the content of {target.release_id}", code="already_serving")

        def work(db: sqlite3.Connection) -> str:
            scenario_id = _scenario_id(db, scenario)
            state = db.execute(
                "SELECT algorithm_state FROM releases WHERE scenario_id = ? AND release_id = ?",
                (scenario_id, target.release_id),
            ).fetchone()[0]
            db.execute(
                "UPDATE releases SET state = 'rolled_back' WHERE scenario_id = ? AND state IN ('serving','published')"
                " AND CAST(substr(release_id, 2) AS INT) > ?",
                (scenario_id, target.number),
            )
            restored = Release(
                "",
                scenario,
                target.content_id,
                head.release_id,
                target.step,
                ReleaseState.PUBLISHED,
                time.time(),
                target.size_bytes,
                None,
                target.release_id,
                {"decision": "accept", "rule": "rollback", "reason": f"rolled back by {actor}"},
                target.metrics,
            )
            made = _insert_release(db, scenario_id, state, restored).release_id
            _set_head(db, scenario_id, made, state)
            _log(db, scenario_id, actor, "rollback", {"to": target.release_id, "release": made})
            return made

        return self.get(scenario, self.store.write(work))

    def promote(self, scenario: str, release_id: str, actor: str) -> Release:
        """Make a held release the head. Raises Conflict for any other state or when the chain moved on."""
        release = self.get(scenario, release_id)
        head = self.head(scenario)
        if release.state is not ReleaseState.HELD:
            raise Conflict(f"{release.release_id} is {release.state}, only a held release can be promoted")
        if head is not None and release.parent != head.release_id:
            raise Conflict(
                f"{release.release_id} was made from {release.parent}, but {head.release_id} is served now",
                hint=f"reject it, or roll back to {release.parent} first",
            )
        return self._move(scenario, release, ReleaseState.PUBLISHED, actor, "promote")

    def reject(self, scenario: str, release_id: str, actor: str) -> Release:
        """Refuse a held release for good."""
        release = self.get(scenario, release_id)
        if release.state is not ReleaseState.HELD:
            raise Conflict(f"{release.release_id} is {release.state}, only a held release can be rejected")
        return self._move(scenario, release, ReleaseState.REJECTED, actor, "reject")

    def held(self, scenario: str) -> Release | None:
        """The newest held release, None for none."""
        return next((one for one in self.releases(scenario) if one.state is ReleaseState.HELD), None)

    def content_ids(self) -> set[str]:
        """Every content id that some release row names (the others are orphans)."""
        with self.store.reading() as db:
            return {row[0] for row in db.execute("SELECT DISTINCT content_id FROM releases")}

    def _parent_of(self, head: Release) -> str:
        if head.parent is None:
            raise Conflict(f"{head.release_id} is the first release", hint="there is nothing to roll back to")
        return head.parent

    def _move(self, scenario: str, release: Release, state: ReleaseState, actor: str, action: str) -> Release:
        def work(db: sqlite3.Connection) -> None:
            scenario_id = _scenario_id(db, scenario)
            changed = db.execute(
                "UPDATE releases SET state = ? WHERE scenario_id = ? AND release_id = ? AND state = 'held'",
                (state.value, scenario_id, release.release_id),
            ).rowcount
            if not changed:
                raise Conflict(f"{release.release_id} is not held any more")
            if state is ReleaseState.PUBLISHED:
                kept = db.execute(
                    "SELECT algorithm_state FROM releases WHERE scenario_id = ? AND release_id = ?",
                    (scenario_id, release.release_id),
                ).fetchone()[0]
                _set_head(db, scenario_id, release.release_id, kept)
            _log(db, scenario_id, actor, action, {"release": release.release_id})

        self.store.write(work)
        return self.get(scenario, release.release_id)


def _served(scenario: str, release_id: str, db: sqlite3.Connection) -> None:
    mine = "scenario_id = (SELECT id FROM scenarios WHERE name = ?)"
    db.execute(
        f"UPDATE releases SET state = 'published' WHERE {mine} AND state = 'serving' AND release_id <> ?",
        (scenario, release_id),
    )
    db.execute(f"UPDATE releases SET state = 'serving' WHERE {mine} AND release_id = ?", (scenario, release_id))


def _commit(step: StepCommit, marks: Sequence[Mark], db: sqlite3.Connection) -> Release | None:
    """A whole step in one transaction; a step id that is there already changes nothing and gives its release again."""
    scenario_id, head, number = db.execute(
        "SELECT id, head, step FROM scenarios WHERE name = ?", (step.scenario,)
    ).fetchone()
    done = db.execute("SELECT release_id FROM steps WHERE step_id = ?", (step.step_id,)).fetchone()
    if done is not None:
        return None if done[0] is None else _release(_row_of(db, scenario_id, done[0]))
    state, release = json.dumps(dict(step.next_algorithm_state)), None
    if step.outcome == "release":
        if step.content_id is None or step.verdict is None:
            raise BadRequest("a release needs a content id and a verdict")
        release = _insert_release(
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
            step.reason,
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


def _insert_release(db: sqlite3.Connection, scenario_id: int, algorithm_state: str, release: Release) -> Release:
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


def _row_of(db: sqlite3.Connection, scenario_id: int, release_id: str) -> Sequence[Any]:
    row: Sequence[Any] = db.execute(
        f"SELECT {_RELEASE} {_FROM} WHERE r.scenario_id = ? AND r.release_id = ?", (scenario_id, release_id)
    ).fetchone()
    return row


def _set_head(db: sqlite3.Connection, scenario_id: int, release_id: str, algorithm_state: str) -> None:
    db.execute(
        "UPDATE scenarios SET head = ?, algorithm_state = ? WHERE id = ?", (release_id, algorithm_state, scenario_id)
    )


def _scenario_id(db: sqlite3.Connection, name: str) -> int:
    row = db.execute("SELECT id FROM scenarios WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NotFound(f"no scenario {name!r}", hint="list them with: reef scenarios", code="no_scenario")
    return int(row[0])


def _log(db: sqlite3.Connection, scenario_id: int, actor: str, action: str, detail: Mapping[str, Any]) -> None:
    db.execute(
        "INSERT INTO actions(scenario_id, at, actor, action, detail) VALUES (?,?,?,?,?)",
        (scenario_id, time.time(), actor, action, json.dumps(dict(detail))),
    )


def _step(row: Sequence[Any]) -> StepRow:
    number, step_id, batch_id, outcome, reason, release_id, at, metrics, verdict = row
    return StepRow(number, step_id, batch_id, outcome, reason, release_id, at, json.loads(metrics), json.loads(verdict))


def _release(row: Sequence[Any]) -> Release:
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
