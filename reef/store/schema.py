"""The tables, as an append-only list of named migrations. Applied by Store.open on the writing connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from reef.errors import BadConfig

Migration = Callable[[sqlite3.Connection], None]


def m001_first(db: sqlite3.Connection) -> None:
    """Scenarios, records with their bodies, report references, steps, releases."""
    for statement in _FIRST:
        db.execute(statement)


_FIRST = (
    """CREATE TABLE scenarios (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        recipe TEXT NOT NULL,
        surface TEXT NOT NULL,
        created_at REAL NOT NULL,
        paused INTEGER NOT NULL DEFAULT 0,
        step INTEGER NOT NULL DEFAULT 0,
        algorithm_state TEXT NOT NULL DEFAULT '{}',
        reserved TEXT NOT NULL DEFAULT '[]',
        head TEXT)""",
    # seq is the order of arrival; rev the order in which records became final, which is the order they are judged in.
    """CREATE TABLE records (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        scenario_id INTEGER NOT NULL REFERENCES scenarios(id),
        type TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT,
        created_at REAL NOT NULL,
        rev INTEGER,
        release_id TEXT,
        session TEXT,
        hash BLOB NOT NULL,
        consumed_step INTEGER REFERENCES steps(seq),
        purged_at REAL,
        size_bytes INTEGER NOT NULL DEFAULT 0,
        meta TEXT NOT NULL DEFAULT '{}',
        request BLOB,
        response BLOB,
        training BLOB)""",
    "CREATE INDEX records_by_rev ON records(scenario_id, rev)",
    "CREATE INDEX records_by_session ON records(session, seq) WHERE session IS NOT NULL",
    "CREATE INDEX records_open ON records(seq) WHERE state = 'open'",
    "CREATE INDEX reports_live ON records(scenario_id, rev) WHERE type <> 'inference' AND state IN ('parked','accepted')",
    "CREATE INDEX records_by_step ON records(consumed_step) WHERE consumed_step IS NOT NULL",
    "CREATE INDEX records_with_body ON records(created_at) WHERE purged_at IS NULL",
    """CREATE TABLE report_refs (
        reference TEXT NOT NULL,
        report_seq INTEGER NOT NULL REFERENCES records(seq),
        PRIMARY KEY (reference, report_seq)) WITHOUT ROWID""",
    """CREATE TABLE segments (
        id INTEGER PRIMARY KEY,
        hash BLOB NOT NULL UNIQUE,
        data BLOB NOT NULL)""",
    """CREATE TABLE steps (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        step_id TEXT NOT NULL UNIQUE,
        scenario_id INTEGER NOT NULL REFERENCES scenarios(id),
        number INTEGER NOT NULL,
        batch_id TEXT NOT NULL,
        outcome TEXT NOT NULL,
        reason TEXT,
        release_id TEXT,
        created_at REAL NOT NULL,
        metrics TEXT NOT NULL DEFAULT '{}',
        verdict TEXT NOT NULL DEFAULT '{}')""",
    "CREATE INDEX steps_by_scenario ON steps(scenario_id, number)",
    """CREATE TABLE releases (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        scenario_id INTEGER NOT NULL REFERENCES scenarios(id),
        release_id TEXT NOT NULL,
        content_id TEXT NOT NULL,
        parent TEXT,
        step INTEGER NOT NULL,
        step_id TEXT,
        state TEXT NOT NULL,
        created_at REAL NOT NULL,
        size_bytes INTEGER NOT NULL DEFAULT 0,
        restored_from TEXT,
        algorithm_state TEXT NOT NULL DEFAULT '{}',
        verdict TEXT NOT NULL DEFAULT '{}',
        metrics TEXT NOT NULL DEFAULT '{}',
        UNIQUE (scenario_id, release_id))""",
    """CREATE TABLE verdicts (
        scenario_id INTEGER NOT NULL REFERENCES scenarios(id),
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (scenario_id, key)) WITHOUT ROWID""",
    """CREATE TABLE actions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        scenario_id INTEGER REFERENCES scenarios(id),
        at REAL NOT NULL,
        actor TEXT NOT NULL,
        action TEXT NOT NULL,
        detail TEXT NOT NULL DEFAULT '{}')""",
)


def m002_evolution(db: sqlite3.Connection) -> None:
    """What steps of harness evolution proposed, and the episodes they ran."""
    for statement in _EVOLUTION:
        db.execute(statement)


_EVOLUTION = (
    """CREATE TABLE proposals (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        step_id TEXT NOT NULL UNIQUE,
        scenario_id INTEGER NOT NULL REFERENCES scenarios(id),
        parent TEXT NOT NULL,
        origin TEXT NOT NULL,
        proposal TEXT NOT NULL,
        seen TEXT NOT NULL DEFAULT '{}',
        state TEXT NOT NULL DEFAULT 'open',
        reason TEXT,
        tested INTEGER NOT NULL DEFAULT 0,
        created_at REAL NOT NULL)""",
    "CREATE INDEX proposals_by_scenario ON proposals(scenario_id, seq)",
    """CREATE TABLE episodes (
        step_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        side TEXT NOT NULL,
        content_id TEXT NOT NULL,
        task TEXT NOT NULL,
        seed INTEGER NOT NULL,
        score REAL NOT NULL,
        result TEXT NOT NULL,
        created_at REAL NOT NULL,
        PRIMARY KEY (step_id, number, side)) WITHOUT ROWID""",
    "CREATE INDEX episodes_by_tree ON episodes(content_id, task, created_at)",
)

MIGRATIONS: tuple[Migration, ...] = (m001_first, m002_evolution)


def migrate(db: sqlite3.Connection) -> None:
    """Bring the file to the newest schema; each migration and its number are one transaction."""
    have = int(db.execute("PRAGMA user_version").fetchone()[0])
    if have > len(MIGRATIONS):
        raise BadConfig(
            f"the state directory was written by a newer Reef (schema {have}, this one knows {len(MIGRATIONS)})",
            hint="install the newer version again, or use another --home",
        )
    for number, migration in enumerate(MIGRATIONS[have:], start=have + 1):
        db.execute("BEGIN IMMEDIATE")
        migration(db)
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")
