"""What a step of evolution has done so far, kept as it goes: a killed daemon goes on where it was, and counts nothing twice.

Two tables of the store: ``proposals`` (one row a step) and ``episodes`` (one row for each finished side of a pair).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reef.core.texts import writable
from reef.evolve.episode import Result
from reef.evolve.values import Proposal, Refusal, Rejected, proposal_of
from reef.gate import Pair, Slot
from reef.store import Store

_SHOWN_EDITS, _SHOWN_REASON = 8, 400
"""A refused proposal may be of any length, and it is shown to the next proposer."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a step has used so far: episodes, model calls and tokens of agents and proposer, seconds of episodes."""

    episodes: int
    seconds: float
    calls: int
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one step; every method is durable when it returns. ``ground`` as LocalTrainingBackend has it."""

    store: Store
    scenario: str
    step_id: str
    ground: str = ""

    def proposal(self) -> Proposal | None:
        """The step's proposal, None when none was made yet; raises Refusal when it was refused."""
        with self.store.reading() as db:
            row = db.execute(
                "SELECT proposal, state, reason FROM proposals WHERE step_id = ?", (self.step_id,)
            ).fetchone()
        if row is not None and row[1] == "refused":
            raise Refusal(row[2])
        return None if row is None else proposal_of(json.loads(row[0]))

    def keep_proposal(
        self, proposal: Mapping[str, Any], parent: str, origin: str, seen: Mapping[str, Any], refused: str | None
    ) -> None:
        """Keep what was proposed (as JSON, without credentials) for ``parent`` (a content id), by whom, what it was made
        from, and when it goes no further, why."""
        texts = json.dumps(proposal), json.dumps(dict(seen)), "open" if refused is None else "refused", refused
        self.store.write(
            lambda db: db.execute(
                "INSERT OR IGNORE INTO proposals(step_id, scenario_id, parent, origin, proposal, seen, state, reason,"
                " created_at) SELECT ?, id, ?, ?, ?, ?, ?, ?, ? FROM scenarios WHERE name = ?",
                (self.step_id, parent, origin, *texts, time.time(), self.scenario),
            )
        )

    def judged(self, state: str, reason: str) -> None:
        """How the proposal ended: refused, rejected, inconclusive, held or published."""
        self.store.write(
            lambda db: db.execute(
                "UPDATE proposals SET state = ?, reason = ? WHERE step_id = ?", (state, writable(reason), self.step_id)
            )
        )

    def rejected(self, limit: int = 10) -> list[Rejected]:
        """Earlier proposals of the scenario that were not published, newest first."""
        with self.store.reading() as db:
            rows = db.execute(
                f"SELECT p.proposal, CASE WHEN p.state IN ('published','held') THEN ? ELSE p.reason END {_PROPOSALS}"
                f" AND {_STATE} IN ('refused','rejected','inconclusive') ORDER BY p.seq DESC LIMIT ?",
                (_REFUSED_LATER, self.scenario, limit),
            ).fetchall()
        return [
            Rejected(one["why"], _summary(one), (reason or "")[:_SHOWN_REASON])
            for one, reason in ((json.loads(text), why) for text, why in rows)
        ]

    def pair(self, slot: Slot) -> Pair | None:
        """A pair that was run to its end, None when it was not: half a pair counts for nothing.

        A number may have been run with another task before: a guess, when several pairs run at a time and the test ends.
        """
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT side, score, json_extract(result, '$.tokens') FROM episodes WHERE step_id = ? AND number = ?"
                " AND task = ? ORDER BY side",
                (self.step_id, slot.number, slot.task),
            ).fetchall()
        if [row[0] for row in rows] != ["candidate", "incumbent"]:
            return None
        (_, candidate, ours), (_, incumbent, theirs) = rows
        return Pair(slot, float(candidate), float(incumbent), ours, theirs)

    def keep(self, slot: Slot, results: Mapping[str, tuple[str, Result]]) -> Pair:
        """Keep both sides of a pair, content id and result each, in one transaction."""
        rows = [self._row(slot, side, *found) for side, found in results.items()]
        self.store.write(lambda db: db.executemany("INSERT OR REPLACE INTO episodes VALUES (?,?,?,?,?,?,?,?,?)", rows))
        kept = self.pair(slot)
        assert kept is not None
        return kept

    def _row(self, slot: Slot, side: str, content_id: str, result: Result) -> tuple[Any, ...]:
        names = ("said", "calls", "seconds", "transcript", "sandboxed", "reused", "tokens")
        detail = json.dumps({**{name: getattr(result, name) for name in names}, "ground": self.ground})
        what = self.step_id, slot.number, side, content_id, slot.task, slot.seed
        return *what, result.score, detail, time.time()

    def keep_side(self, slot: Slot, side: str, content_id: str, result: Result) -> None:
        """Keep one side of a slot, which needs no other."""
        row = self._row(slot, side, content_id, result)
        self.store.write(lambda db: db.execute("INSERT OR REPLACE INTO episodes VALUES (?,?,?,?,?,?,?,?,?)", row))

    def same(self, content_id: str, task: str, seed: int) -> tuple[str, Result] | None:
        """The episode of a tree on ``task`` with ``seed``, of whichever step: its name and its result; None for none."""
        with self.store.reading() as db:
            row = db.execute(
                "SELECT step_id || '-' || number || '-' || side, score, json_remove(result, '$.ground') FROM episodes"
                " WHERE content_id = ? AND task = ? AND seed = ? AND NOT json_extract(result, '$.reused')"
                " ORDER BY created_at LIMIT 1",
                (content_id, task, seed),
            ).fetchone()
        return None if row is None else (str(row[0]), Result(score=float(row[1]), **json.loads(row[2])))

    def calls(self, episode: str) -> list[str]:
        """Receipts of an episode's model calls, in their order."""
        with self.store.reading() as db:
            rows = db.execute("SELECT id FROM records WHERE session = ? ORDER BY seq", (episode,)).fetchall()
        return [str(row[0]) for row in rows]

    def tokens(self, episode: str, since: float) -> int | None:
        """Tokens of an episode's calls since then, prompts and answers; None for no call, or one that does not say.

        Anthropic's figure for a prompt leaves out what was read from a cache or written to one, the others' holds it.
        """
        with self.store.reading() as db:
            calls, said, tokens = db.execute(
                "SELECT COUNT(*), COUNT(json_extract(meta, '$.usage.input_tokens') +"
                " json_extract(meta, '$.usage.output_tokens')), SUM(json_extract(meta, '$.usage.input_tokens') +"
                " json_extract(meta, '$.usage.output_tokens') + CASE json_extract(meta, '$.route') WHEN 'messages' THEN"
                " COALESCE(json_extract(meta, '$.usage.cached_tokens'), 0) +"
                " COALESCE(json_extract(meta, '$.usage.cache_creation_tokens'), 0) ELSE 0 END)"
                " FROM records WHERE session = ? AND created_at >= ? AND state <> 'failed'",
                (episode, since),
            ).fetchone()
        return int(tokens) if calls and said == calls else None

    def tokens_of_sides(self) -> dict[str, float]:
        """Mean tokens of the step's episodes by side, of those where it is known."""
        with self.store.reading() as db:
            rows = db.execute(
                "SELECT side, AVG(json_extract(result, '$.tokens')) AS mean FROM episodes WHERE step_id = ?"
                " GROUP BY side HAVING mean IS NOT NULL",
                (self.step_id,),
            ).fetchall()
        return {str(side): float(mean) for side, mean in rows}

    def reusable(self, content_id: str, task: str, number: int) -> Result | None:
        """What a tree did on ``task`` in an earlier step, for the screen only (docs/gate.md): the ``number``-th newest.

        Only while it was served: a candidate that has won was chosen for its results.
        """
        with self.store.reading() as db:
            row = db.execute(
                "SELECT score, json_extract(result, '$.tokens') FROM episodes WHERE content_id = ? AND task = ?"
                " AND step_id <> ? AND side = 'incumbent' AND NOT json_extract(result, '$.reused')"
                " AND json_extract(result, '$.ground') = ? ORDER BY created_at DESC LIMIT 1 OFFSET ?",
                (content_id, task, self.step_id, self.ground, number),
            ).fetchone()
        return row and Result(float(row[0]), said="an earlier step's result", reused=True, tokens=row[1])

    def spent(self) -> Spent:
        """Counted from what is stored: its episodes, and the recorded calls that carry its id."""
        begin, end = f"{self.step_id}-", f"{self.step_id}."
        with self.store.reading() as db:
            episodes, seconds = db.execute(
                "SELECT COUNT(*), COALESCE(SUM(json_extract(result, '$.seconds')), 0) FROM episodes WHERE step_id = ?"
                " AND NOT json_extract(result, '$.reused')",
                (self.step_id,),
            ).fetchone()
            calls = db.execute(
                "SELECT COUNT(*), COALESCE(SUM(json_extract(meta, '$.usage.input_tokens')), 0),"
                " COALESCE(SUM(json_extract(meta, '$.usage.output_tokens')), 0) FROM records WHERE session > ? AND session < ?",
                (begin, end),
            ).fetchone()
        return Spent(int(episodes), float(seconds), *map(int, calls))

    def steps(self) -> int:
        """How many steps of the scenario have come to an end, whatever became of them."""
        with self.store.reading() as db:
            row = db.execute(
                "SELECT COUNT(*) FROM steps t JOIN scenarios s ON s.id = t.scenario_id WHERE s.name = ?",
                (self.scenario,),
            ).fetchone()
        return int(row[0])

    def typical(self) -> tuple[float, float] | None:
        """Seconds and model calls of an episode, the mean of the scenario's last 100; None when none was run."""
        with self.store.reading() as db:
            row = db.execute(
                "SELECT COUNT(*), AVG(json_extract(result, '$.seconds')), AVG(json_extract(result, '$.calls')) FROM"
                " (SELECT e.result FROM episodes e JOIN proposals p ON p.step_id = e.step_id JOIN scenarios s ON s.id ="
                " p.scenario_id WHERE s.name = ? AND NOT json_extract(e.result, '$.reused')"
                " ORDER BY e.created_at DESC LIMIT 100)",
                (self.scenario,),
            ).fetchone()
        return (float(row[1]), float(row[2])) if row[0] else None

    def tested(self) -> tuple[int, int]:
        """How many candidates of the scenario were tested before this one, and how many of them were published.

        Published is what people have been served: what is held, or was refused by a person, is no discovery.
        A candidate that its screen ended was not tested: the screen's pairs are no evidence, so it spends no error.
        """
        with self.store.reading() as db:
            row = db.execute(
                f"SELECT COUNT(*), COALESCE(SUM({_STATE} = 'published'), 0) {_PROPOSALS} AND p.tested = 1 AND p.step_id <> ?"
                " AND p.seq < COALESCE((SELECT seq FROM proposals WHERE step_id = ?), 1 << 62)",
                (self.scenario, self.step_id, self.step_id),
            ).fetchone()
        return int(row[0]), int(row[1])

    def testing(self) -> None:
        """From here on the candidate counts as tested: its screen is over."""
        self.store.write(lambda db: db.execute("UPDATE proposals SET tested = 1 WHERE step_id = ?", (self.step_id,)))


def proposals(
    store: Store,
    scenario: str,
    *,
    limit: int,
    before: int | None = None,
    step_id: str | None = None,
    texts: bool = True,
) -> list[dict[str, Any]]:
    """A page of a scenario's proposals, newest first, with the release each became: those with a smaller ``seq`` than
    ``before``, or the one of a step. Without ``texts`` the edits say what they touch and no more. A page ends early when
    it gets large."""
    found: list[dict[str, Any]] = []
    size = 0
    with store.reading() as db:
        rows = db.execute(
            f"SELECT {', '.join(_COLUMNS.values())} {_PROPOSALS} AND p.seq < ? AND (? IS NULL OR p.step_id = ?)"
            " ORDER BY p.seq DESC LIMIT ?",
            (scenario, before or 1 << 62, step_id, step_id, limit),
        )
        for row in rows:
            one = dict(zip(_COLUMNS, row, strict=True))
            size += len(one["proposal"])
            proposal = json.loads(one["proposal"])
            for edit in proposal["edits"] if not texts else ():
                edit.pop("text", None)
            found.append({**one, "proposal": proposal, "seen": json.loads(one["seen"])})
            if texts and size > _PAGE_CHARS:
                break
    return found


_PAGE_CHARS = 8 * 2**20
"""A page of proposals ends after the one that reaches this."""
_PROPOSALS = (
    "FROM proposals p JOIN scenarios s ON s.id = p.scenario_id LEFT JOIN steps t ON t.step_id = p.step_id"
    " LEFT JOIN releases r ON r.scenario_id = t.scenario_id AND r.release_id = t.release_id WHERE s.name = ?"
)
_STATE = (
    "CASE WHEN p.state NOT IN ('published','held') THEN p.state WHEN r.state IS NULL THEN 'open'"
    " WHEN r.state IN ('held','rejected') THEN r.state ELSE 'published' END"
)
"""What has become of a proposal: the chain knows of one that its step accepted, also when a person decided later, and of
none whose step was left for another head before it was committed."""
_REFUSED_LATER = "the gate accepted it, and a person or people's reports refused it"
_COLUMNS = {
    **{name: f"p.{name}" for name in ("seq", "step_id", "origin", "reason", "created_at", "proposal", "seen")},
    "state": _STATE,
    "release_id": "t.release_id",
}


def _summary(proposal: Mapping[str, Any]) -> str:
    edits = ", ".join(
        f"{one['action']} {one['kind'][:40]}/{one['name'][:80]}" for one in proposal["edits"][:_SHOWN_EDITS]
    )
    return f"{edits or 'nothing'} ({' '.join(str(proposal['why']).split())[:200]})"
