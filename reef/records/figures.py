"""Figures over all scenarios in a few reads: what /metrics shows. Knows nothing of their format."""

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
