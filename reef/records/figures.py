"""Figures: what is counted over records, for /metrics (all scenarios in a few reads) and status. Knows nothing of formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reef.store import Store


@dataclass(frozen=True, slots=True)
class Figures:
    """``records``: (scenario, type, state, count). ``reasons``: (scenario, code, count) of reports that do not train.
    ``parked``: (scenario, when the oldest parked report came). ``waiting``: (scenario, release that generated what an
    accepted report names), each pair once. ``steps``: (scenario, outcome, count)."""

    records: Sequence[tuple[str, str, str, int]]
    reasons: Sequence[tuple[str, str, int]]
    parked: Sequence[tuple[str, float]]
    waiting: Sequence[tuple[str, str]]
    steps: Sequence[tuple[str, str, int]]


def figures(store: Store) -> Figures:
    """Read now; each part is one statement, so that no read lasts long."""
    found = []
    for statement in _STATEMENTS:
        with store.reading() as db:
            found.append(db.execute(statement).fetchall())
    return Figures(*found)


def total(store: Store) -> int:
    """Number of records of all scenarios."""
    with store.reading() as db:
        return int(db.execute("SELECT COUNT(*) FROM records").fetchone()[0])


def counts(store: Store, scenario_id: int | None) -> dict[str, dict[str, int]]:
    """``{type: {state: count}}`` of one scenario."""
    found: dict[str, dict[str, int]] = {}
    with store.reading() as db:
        for kind, state, count in db.execute(
            "SELECT type, state, COUNT(*) FROM records WHERE scenario_id = ? GROUP BY type, state", (scenario_id,)
        ):
            found.setdefault(kind, {})[state] = count
    return found


def body_bytes(store: Store, scenario_id: int | None) -> int:
    """Bytes of the bodies kept for one scenario, before sharing and compression."""
    with store.reading() as db:
        found = db.execute(
            "SELECT COALESCE(SUM(size_bytes), 0) FROM records WHERE scenario_id = ? AND purged_at IS NULL",
            (scenario_id,),
        ).fetchone()
    return int(found[0])


def reasons(store: Store, scenario_id: int | None) -> dict[str, int]:
    """How many reports each reason code parks or refuses: the answer to "why is nothing training?"."""
    with store.reading() as db:
        rows = db.execute(
            "SELECT substr(reason, 1, instr(reason || ':', ':') - 1), COUNT(*) FROM records WHERE scenario_id = ?"
            " AND type = 'report' AND state IN ('parked','refused') AND reason IS NOT NULL GROUP BY 1 ORDER BY 2 DESC",
            (scenario_id,),
        ).fetchall()
    return dict(rows)


_STATEMENTS = (
    "SELECT s.name, r.type, r.state, r.n FROM (SELECT scenario_id, type, state, COUNT(*) n FROM records GROUP BY 1, 2, 3) r"
    " JOIN scenarios s ON s.id = r.scenario_id ORDER BY s.id",
    "SELECT s.name, substr(r.reason, 1, instr(r.reason || ':', ':') - 1), COUNT(*) FROM records r JOIN scenarios s ON"
    " s.id = r.scenario_id WHERE r.type = 'report' AND r.state IN ('parked','refused') AND r.reason IS NOT NULL"
    " GROUP BY s.id, 2 ORDER BY s.id, 3 DESC",
    "SELECT s.name, MIN(r.created_at) FROM records r JOIN scenarios s ON s.id = r.scenario_id WHERE r.type <> 'inference'"
    " AND r.state IN ('parked','accepted') AND r.state = 'parked' AND COALESCE(r.reason, '') NOT LIKE 'record_only%'"
    " GROUP BY s.id",
    "SELECT DISTINCT s.name, i.release_id FROM records r JOIN report_refs f ON f.report_seq = r.seq JOIN records i ON"
    " i.id = f.reference JOIN scenarios s ON s.id = r.scenario_id WHERE r.type <> 'inference' AND r.state IN"
    " ('parked','accepted') AND r.state = 'accepted' AND i.release_id IS NOT NULL",
    "SELECT s.name, t.outcome, COUNT(*) FROM steps t JOIN scenarios s ON s.id = t.scenario_id GROUP BY s.id, 2",
)


_WATCHED = 2000


def scores_by_release(store: Store, scenario: str) -> dict[str, list[float]]:
    """Scores from 0 to 1 of the newest reports, oldest first, by the release that answered the first call each names."""
    with store.reading() as db:
        rows = db.execute(
            "SELECT i.release_id, json_extract(r.meta, '$.score') FROM (SELECT seq, meta FROM records WHERE scenario_id ="
            " (SELECT id FROM scenarios WHERE name = ?) AND type = 'report' ORDER BY rev DESC LIMIT ?) r"
            " JOIN report_refs f ON f.report_seq = r.seq JOIN records i ON i.id = f.reference"
            " WHERE i.release_id IS NOT NULL GROUP BY r.seq ORDER BY r.seq",
            (scenario, _WATCHED),
        ).fetchall()
    found: dict[str, list[float]] = {}
    for release_id, score in rows:
        if isinstance(score, int | float) and 0 <= score <= 1:
            found.setdefault(release_id, []).append(float(score))
    return found
