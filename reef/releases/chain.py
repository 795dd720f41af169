"""ReleaseChain: every way to read the chains of all scenarios, and what steps and people may do to them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from functools import partial

from reef.core.artifacts import Release, ReleaseState
from reef.errors import Conflict, NotFound
from reef.records import Mark
from reef.releases.rows import (
    FROM_RELEASES,
    RELEASE_COLUMNS,
    ScenarioRow,
    StepRow,
    insert_release,
    log_action,
    release_of_row,
    scenario_row_id,
    set_head,
    step_of_row,
)
from reef.releases.steps import StepCommit, commit_step, mark_served
from reef.store import Store


class ReleaseChain:
    """The chains of all scenarios in one Store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- scenarios

    def create(self, name: str, recipe: str, surface: str, base_content_id: str | None) -> ScenarioRow:
        """The scenario, made with its base release ``r0`` when it is new; an existing one is returned as it is, but one that
        had nothing to update becomes the recipe's."""

        def work(db: sqlite3.Connection) -> None:
            now_s = time.time()
            db.execute(
                "INSERT INTO scenarios(name, recipe, surface, created_at) VALUES (?,?,?,?)"
                " ON CONFLICT(name) DO UPDATE SET recipe = excluded.recipe, surface = excluded.surface"
                " WHERE recipe = '' OR (surface = 'nothing' AND head IS NULL AND excluded.surface != 'nothing')",
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
        found = self._scenarios("WHERE name = ?", (name,))
        if not found:
            raise NotFound(f"no scenario {name!r}", hint="list them with: reef scenarios", code="no_scenario")
        return found[0]

    def scenarios(self) -> list[ScenarioRow]:
        """All scenarios, oldest first."""
        return self._scenarios("ORDER BY id", ())

    def reserve(self, name: str, owners: Sequence[str]) -> None:
        """Keep which reports the next batch is made of, so that it is the same one after a crash."""
        kept = json.dumps(list(owners))
        self.store.write(lambda db: db.execute("UPDATE scenarios SET reserved = ? WHERE name = ?", (kept, name)))

    def pause(self, name: str, paused: bool, actor: str) -> None:
        """Stop or resume training of one scenario; serving goes on."""

        def work(db: sqlite3.Connection) -> None:
            scenario_id = scenario_row_id(db, name)
            db.execute("UPDATE scenarios SET paused = ? WHERE id = ?", (int(paused), scenario_id))
            log_action(db, scenario_id, actor, "pause" if paused else "resume", {})

        self.store.write(work)

    # -- the chain

    def head(self, scenario: str) -> Release | None:
        """The release that is committed as the one to serve; None where nothing is versioned."""
        with self.store.reading() as db:
            row = db.execute(
                f"SELECT {RELEASE_COLUMNS} {FROM_RELEASES} WHERE s.name = ? AND r.release_id = s.head", (scenario,)
            ).fetchone()
        return release_of_row(row) if row else None

    def get(self, scenario: str, release_id: str) -> Release:
        """One release by ``r7`` or by a content id's beginning (8 characters or more); raises NotFound."""
        with self.store.reading() as db:
            row = db.execute(
                f"SELECT {RELEASE_COLUMNS} {FROM_RELEASES} WHERE s.name = ? AND (r.release_id = ? OR (length(?) >= 8 AND"
                " substr(r.content_id, 1, length(?)) = ?)) ORDER BY r.seq LIMIT 1",
                (scenario, release_id, release_id, release_id, release_id),
            ).fetchone()
        if row is None:
            raise NotFound(
                f"no release {release_id!r} in scenario {scenario!r}",
                hint=f"list them with: reef releases -s {scenario}",
            )
        return release_of_row(row)

    def releases(self, scenario: str, *, limit: int = 200, before: int | None = None) -> list[Release]:
        """Newest first."""
        with self.store.reading() as db:
            rows = db.execute(
                f"SELECT {RELEASE_COLUMNS} {FROM_RELEASES} WHERE s.name = ?"
                " AND (? IS NULL OR CAST(substr(r.release_id, 2) AS INT) < ?) ORDER BY r.seq DESC LIMIT ?",
                (scenario, before, before, limit),
            ).fetchall()
        return [release_of_row(row) for row in rows]

    def published_after(self, scenario: str, release_id: str) -> int:
        """How many releases went out after ``release_id``: the staleness of what it generated."""
        with self.store.reading() as db:
            found = db.execute(
                f"SELECT COUNT(*) {FROM_RELEASES} WHERE s.name = ? AND CAST(substr(r.release_id, 2) AS INT) > ?"
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
        return [step_of_row(row) for row in rows]

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
        return step_of_row(row) if row else None

    def commit(self, step: StepCommit, marks: Sequence[Mark] = ()) -> Release | None:
        """Write a whole step: release, algorithm state, consumed records, verdict, metrics. Idempotent by step id.

        Returns the new release (whatever its state), None for a skip or a refusal.
        """

        release: Release | None = self.store.submit(partial(commit_step, step, marks)).result()
        return release

    def served(self, scenario: str, release_id: str) -> None:
        """Every engine has confirmed ``release_id``: it is the serving one now."""

        self.store.submit(partial(mark_served, scenario, release_id)).result()

    # -- what people do

    def rollback_target(self, scenario: str, to: str | None) -> Release:
        """The release that a rollback to ``to`` (default: the head's parent) restores; raises Conflict or NotFound."""
        return self._restorable(scenario, self._head_of(scenario), to)

    def rollback(self, scenario: str, to: str | None, actor: str) -> Release:
        """A new release that restores ``rollback_target``, its weights and its algorithm state."""
        head = self._head_of(scenario)
        target = self._restorable(scenario, head, to)

        def work(db: sqlite3.Connection) -> str:
            scenario_id = scenario_row_id(db, scenario)
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
            made = insert_release(db, scenario_id, state, restored).release_id
            set_head(db, scenario_id, made, state)
            log_action(db, scenario_id, actor, "rollback", {"to": target.release_id, "release": made})
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
        with self.store.reading() as db:
            row = db.execute(
                f"SELECT {RELEASE_COLUMNS} {FROM_RELEASES} WHERE s.name = ? AND state = 'held' ORDER BY r.seq DESC LIMIT 1",
                (scenario,),
            ).fetchone()
        return release_of_row(row) if row else None

    def _scenarios(self, which: str, values: Sequence[str]) -> list[ScenarioRow]:
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT name, recipe, surface, created_at, paused, step, algorithm_state, reserved, head FROM scenarios"
                f" {which}",
                values,
            ).fetchall()
        return [
            ScenarioRow(name, recipe, surface, at, bool(paused), step, json.loads(state), json.loads(reserved), head)
            for name, recipe, surface, at, paused, step, state, reserved, head in rows
        ]

    def _head_of(self, scenario: str) -> Release:
        head = self.head(scenario)
        if head is None:
            raise Conflict(f"scenario {scenario!r} has no releases", hint="its recipe updates nothing")
        return head

    def _restorable(self, scenario: str, head: Release, to: str | None) -> Release:
        # Back from a rollback means further back: the release it restored had a parent of its own.
        origin = self.get(scenario, head.restored_from) if head.restored_from is not None else head
        wanted = to if to is not None else origin.parent
        if wanted is None:
            raise Conflict(
                f"{head.release_id} is the first release", hint=f"see the chain: reef releases -s {scenario}"
            )
        target = self.get(scenario, wanted)
        if target.state in (ReleaseState.REJECTED, ReleaseState.HELD):
            raise Conflict(
                f"{target.release_id} is {target.state} and was never served",
                hint="choose another release"
                + (f", or: reef promote {target.release_id}" if target.state is ReleaseState.HELD else ""),
            )
        if target.content_id == head.content_id:
            raise Conflict(f"{scenario!r} already serves the content of {target.release_id}", code="already_serving")
        return target

    def _move(self, scenario: str, release: Release, state: ReleaseState, actor: str, action: str) -> Release:
        def work(db: sqlite3.Connection) -> None:
            scenario_id = scenario_row_id(db, scenario)
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
                set_head(db, scenario_id, release.release_id, kept)
            log_action(db, scenario_id, actor, action, {"release": release.release_id})

        self.store.write(work)
        return self.get(scenario, release.release_id)
