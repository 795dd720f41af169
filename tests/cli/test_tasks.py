"""reef harness tasks: what a folder of tasks is worth, before anything is compared on it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_agents import ok
from tests.cli.test_cli import reef, refused, schema
from tests.evolve.world import make_tasks


def test_tasks_are_listed_with_what_their_checks_say_when_nothing_is_done(tmp_path: Path) -> None:
    folder = make_tasks(tmp_path / "tasks", "one", "two", protected="two")
    shown = ok(reef(tmp_path, "harness", "tasks", str(folder)))
    assert "write yes into answer.txt" in shown.out and "protected" in shown.out
    rows = {
        row["name"]: row for row in schema(reef(tmp_path, "harness", "tasks", str(folder), "--json"), "tasks")["tasks"]
    }
    assert [(row["protected"], row["untouched"]) for row in (rows["one"], rows["two"])] == [(False, 0.0), (True, 0.0)]


def test_a_check_that_gives_a_score_away_or_is_none_is_named(tmp_path: Path) -> None:
    folder = make_tasks(tmp_path / "tasks", "free", "broken")
    (folder / "free" / "setup" / "answer.txt").write_text("yes\n", encoding="utf-8")
    (folder / "broken" / "check.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    ran = reef(tmp_path, "harness", "tasks", str(folder), "--sandbox", "none")
    assert ran.code == 1 and "free scores 1 when nothing is done" in ran.err
    assert "broken: the check exits with 0 or 1, and it exited with 3" in ran.err
    refused(reef(tmp_path, "harness", "tasks", str(tmp_path / "none")), 2, "there is no folder of tasks")
