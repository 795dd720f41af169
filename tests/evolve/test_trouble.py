"""Trouble in the middle of a step: outages, broken evaluations, kill -9. Nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient
from reef.errors import ReefError
from reef.gate import level_of, replay, share_of_budget
from tests.cli.test_cli import reef, schema
from tests.evolve.test_steps import a_step, evolving, fail, helpful, importable, killed
from tests.evolve.world import NO_SCORES, edits, is_proposer, make_tasks
from tests.support import eventually

__all__ = ["importable"]  # the fixture

SWITCHED = {"reef_evaluate": "tests.evolve.world:switched", "reef_retries": "1", "reef_retry_s": "0.01"}


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REEF_TEST_SWITCH", str(tmp_path / "switch"))
    return tmp_path / "switch"


def waits(client: ReefClient, word: str) -> str:
    return str(eventually(lambda: word in (said := client.get("/reef/scenarios/s")["detail"]) and said))


@pytest.mark.parametrize(("word", "said"), [("outage", "the provider is down"), ("broken", "invalid: task")])
def test_trouble_that_is_not_the_agents_is_no_verdict(tmp_path: Path, switch: Path, word: str, said: str) -> None:
    switch.write_text(word, encoding="utf-8")
    with evolving(tmp_path, helpful, **SWITCHED) as (one, client, thinker):
        report = fail(client)
        waits(client, said)
        ran = reef(one.home, "step", "--wait", "-s", "s")
        assert ran.code == 1 and said in ran.err and "stands still" in ran.err
        assert client.get("/reef/scenarios/s")["state"] == "blocked"
        assert client.get("/reef/scenarios/s/steps")["steps"] == []
        switch.unlink()
        client.act("s", "resume")
        assert a_step(client)["outcome"] == "release"
        assert client.record(report)["state"] == "consumed"
        assert (
            sum(is_proposer(body) for body in thinker.bodies) == 1
        )  # it is asked once, however often the step is tried


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        ("half", "without gate_graded a score is 0 or 1"),
        ("seven", "evaluate returned 7.0, which is no score from 0 to 1"),
    ],
)
def test_a_score_that_is_none_is_no_verdict(tmp_path: Path, evaluate: str, said: str) -> None:
    with evolving(tmp_path, helpful, reef_evaluate=f"tests.evolve.world:{evaluate}") as (one, client, _):
        fail(client)
        assert "invalid: task" in waits(client, said) and client.get("/reef/scenarios/s/steps")["steps"] == []
        with closing(sqlite3.connect(one.home / "reef.db")) as db:
            assert db.execute("SELECT COUNT(*) FROM episodes").fetchone() == (0,)


def test_a_test_that_nothing_can_pass_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    tasks = make_tasks(tmp_path / "tasks", "one")
    for gate, said in (({"reef_gate_pairs": "7"}, "7 pairs can never reach the level 0.019: 8 wins"),
                       ({"reef_gate_graded": "true", "reef_gate_pairs": "9"}, "can never reach")):  # fmt: skip
        with pytest.raises(ReefError, match=said), evolving(tmp_path, helpful, **gate):
            pass
    (tasks / "one" / "task.toml").write_text("graded = true\n", encoding="utf-8")
    with pytest.raises(ReefError, match="task one is graded, and the gate is not"), evolving(tmp_path, helpful):
        pass


def test_a_level_that_has_become_out_of_reach_is_said_before_anybody_is_asked(tmp_path: Path) -> None:
    given = {"reef_gate_pairs": "8", "reef_gate_screen": "0", "reef_evaluate": "tests.evolve.world:strictly"}

    def useless(body: Any) -> dict[str, Any]:
        return edits(("rules", "note", "Be nice.")) if is_proposer(body) else {"content": "done"}

    with evolving(tmp_path, useless, **given) as (_, client, thinker):
        fail(client)
        assert client.release("s", a_step(client)["release_id"])["verdict"]["decision"] == "inconclusive"
        fail(client)
        assert "8 pairs can never reach the level 0.0068" in waits(client, "raise gate_pairs")
        assert sum(is_proposer(body) for body in thinker.bodies) == 1


def test_a_start_that_fails_once_is_no_loss(tmp_path: Path, switch: Path) -> None:
    switch.write_text("once", encoding="utf-8")
    with evolving(tmp_path, helpful, **SWITCHED) as (_, client, _):
        fail(client)
        release = client.release("s", a_step(client)["release_id"])
        assert not switch.exists() and release["metrics"]["candidate_mean"] == 1.0


def reused(home: Path, step: dict[str, Any]) -> int:
    with closing(sqlite3.connect(home / "reef.db")) as db:
        found = db.execute(
            "SELECT COUNT(*) FROM episodes WHERE step_id = ? AND json_extract(result, '$.reused')", (step["step_id"],)
        ).fetchone()
    return int(found[0])


def test_a_screen_uses_earlier_results_only_of_what_was_served_on_the_same_tasks(tmp_path: Path) -> None:
    """Those of the test that a candidate won were chosen because they were good: the next ones would never get past them."""
    made = iter(range(99))
    tasks = make_tasks(tmp_path / "tasks", "one")

    def mind(body: Any) -> dict[str, Any]:
        if not is_proposer(body):
            return {"content": "done"}
        number = next(made)
        return edits(("rules", f"note-{number}", "Take a breath." if number else "Work carefully."))

    with evolving(tmp_path, mind, reef_evaluate="tests.evolve.world:strictly") as (one, client, _):
        for number, expected in ((1, 0), (2, 0), (3, 10)):
            fail(client)
            assert reused(one.home, a_step(client, number)) == expected
        one.stop()
        (tasks / "one" / "prompt.md").write_text("Write yes into answer.txt, at last", encoding="utf-8")
        one.start()
        with one.client() as client:
            fail(client)
            assert reused(one.home, a_step(client, 4)) == 0


def test_a_machine_that_breaks_later_is_not_the_changes_fault(tmp_path: Path, switch: Path) -> None:
    """That what is served started in an earlier step says nothing of now."""
    made = iter(range(99))
    make_tasks(tmp_path / "tasks", "one")

    def useless(body: Any) -> dict[str, Any]:
        return edits(("rules", f"note-{next(made)}", "Be nice.")) if is_proposer(body) else {"content": "done"}

    with evolving(tmp_path, useless, **SWITCHED) as (_, client, _):
        fail(client)
        a_step(client)
        switch.write_text("broken", encoding="utf-8")
        fail(client)
        assert "invalid: task one: evaluate failed" in waits(client, "the evaluator is broken")
        assert len(client.get("/reef/scenarios/s/steps")["steps"]) == 1


def test_a_change_that_breaks_the_agent_loses(tmp_path: Path, switch: Path) -> None:
    switch.write_text("candidate", encoding="utf-8")
    with evolving(tmp_path, helpful, **SWITCHED) as (_, client, _):
        fail(client)
        step = a_step(client)
        assert client.release("s", step["release_id"])["state"] == "rejected"
        assert client.release("s", step["release_id"])["metrics"]["candidate_mean"] == 0.0


@pytest.mark.parametrize(
    "point", ["evolve-proposed", "evolve-pair:3", "evolve-pair:14", "before-step-commit", "before-publish"]
)
def test_a_killed_daemon_goes_on_where_it_was(tmp_path: Path, point: str) -> None:
    with evolving(tmp_path, helpful) as (one, client, thinker):
        killed(one, point)
        with one.client() as client:
            step = a_step(client)
            release = client.release("s", step["release_id"])
            eventually(lambda: client.release("s", step["release_id"])["state"] == "serving")
            assert sum(is_proposer(body) for body in thinker.bodies) == 1
            evidence = release["verdict"]["evidence"]
            assert replay(evidence).reason == release["verdict"]["reason"]
            assert client.get("/reef/harness", scenario="s")["release_id"] == release["release_id"]
        with closing(sqlite3.connect(tmp_path / "home" / "reef.db")) as db:
            counted = db.execute("SELECT COUNT(*), COUNT(DISTINCT number) FROM episodes").fetchone()
        assert counted == (2 * len(evidence["pairs"]), len(evidence["pairs"]))


def test_a_budget_that_is_spent_ends_the_step_without_a_verdict(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful, reef_max_calls="1") as (_, client, _):
        fail(client)
        step = a_step(client)
        release = client.release("s", step["release_id"])
        assert release["verdict"]["decision"] == "inconclusive" and "max_calls is 1" in release["verdict"]["reason"]
        again = replay(release["verdict"]["evidence"])
        assert again.decision.value == "inconclusive" and again.reason == release["verdict"]["reason"]


def test_a_proposer_cannot_ask_beyond_the_budget(tmp_path: Path) -> None:
    given = {"reef_propose": "tests.evolve.world:insatiable", "reef_max_calls": "3"}
    with evolving(tmp_path, helpful, **given) as (_, client, thinker):
        fail(client)
        assert "max_calls is 3" in a_step(client)["reason"]
        assert sum(is_proposer(body) for body in thinker.bodies) == 3


def test_steps_that_publish_nothing_count_as_steps(tmp_path: Path) -> None:
    def useless(body: Any) -> dict[str, Any]:
        return edits(("rules", "note", "Be nice to everybody.")) if is_proposer(body) else {"content": "done"}

    with evolving(tmp_path, useless, reef_max_steps="1") as (_, client, _):
        fail(client)
        assert client.release("s", a_step(client)["release_id"])["state"] == "rejected"
        fail(client)
        waits(client, "max_steps: 1 steps have been made")


def test_a_pair_is_of_the_task_it_says_however_many_run_at_a_time(tmp_path: Path) -> None:
    """Pairs run ahead of the test's end leave results under the numbers that the protected tasks' pairs then have."""
    make_tasks(tmp_path / "tasks", *(f"t{at}" for at in range(40)), protected="t7")
    with evolving(tmp_path, helpful, reef_parallel="8") as (one, client, _):
        fail(client)
        pairs = client.release("s", a_step(client)["release_id"])["verdict"]["evidence"]["pairs"]
        with closing(sqlite3.connect(one.home / "reef.db")) as db:
            ran = set(db.execute("SELECT number, task, side, score FROM episodes"))
    for number, _, task, _, _, candidate, incumbent in pairs:
        assert {(number, task, "candidate", candidate), (number, task, "incumbent", incumbent)} <= ran


def test_old_episodes_go(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful) as (one, client, _):
        for at in range(12):
            (one.home / "episodes" / f"step{at}" / "0-candidate").mkdir(parents=True)
        fail(client)
        a_step(client)
        eventually(lambda: len(list((one.home / "episodes").iterdir())) == 10)


def hundred_useless_changes(tmp_path: Path, **settings: str) -> None:
    """Right half the time whatever the harness says, and changes that do nothing: next to none is published."""
    made, coin = iter(range(1000)), random.Random(7)

    def harmless(body: Any) -> dict[str, Any]:
        if is_proposer(body):
            return edits(("rules", f"note-{next(made)}", "Take a breath."))
        return {"content": "yes" if coin.random() < 0.5 else "no"}

    with evolving(tmp_path, harmless, **settings) as (_, client, _):
        for number in range(1, 101):
            fail(client)
            a_step(client, number)
        steps: list[dict[str, Any]] = client.get("/reef/scenarios/s/steps", limit=200)["steps"]
        published = sum(client.release("s", step["release_id"])["state"] in ("serving", "published") for step in steps)
        assert len(steps) == 100 and published <= 5
        second = client.release("s", steps[0]["release_id"])["verdict"]["evidence"]
        assert second["level"] < 0.05 * 0.39  # the error budget is carried along


def test_a_hundred_useless_changes(tmp_path: Path) -> None:
    hundred_useless_changes(tmp_path, reef_evaluate="tests.evolve.world:coin", reef_gate_screen="10")


@pytest.mark.soak
def test_a_hundred_useless_changes_with_a_model_and_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REEF_TEST_HOME", str(tmp_path / "home"))
    hundred_useless_changes(tmp_path, reef_evaluate="tests.evolve.world:asked")


def test_what_is_spent_of_the_error_budget_is_shown(tmp_path: Path) -> None:
    made = iter(range(9))

    def mind(body: Any) -> dict[str, Any]:
        if not is_proposer(body):
            return {"content": "done"}
        return helpful(body) if next(made) else edits(("rules", "note", "Take a breath."))

    def shown() -> dict[str, Any]:
        return dict(schema(reef(one.home, "status", "--json"), "status")["scenarios"][0]["evolving"]["error_budget"])

    strictly = "tests.evolve.world:strictly"  # nothing wins the screen by luck
    with evolving(tmp_path, mind, reef_gate_pairs="12", reef_evaluate=strictly) as (one, client, _):
        fail(client)
        screened = client.release("s", a_step(client)["release_id"])["verdict"]
        assert screened["evidence"]["stopped"] == "screen", screened
        nothing = {"alpha": 0.05, "used": 0, "tests": 0, "published": 0, "next_level": level_of(0.05, 1, 0)}
        assert shown() == nothing
        fail(client)
        assert (
            client.release("s", a_step(client, 2)["release_id"])["verdict"]["evidence"]["level"]
            == nothing["next_level"]
        )
        spent = {"used": share_of_budget(1), "tests": 1, "published": 1, "next_level": level_of(0.05, 2, 1)}
        assert shown() == {"alpha": 0.05, **spent}
        line = "s: error budget (alpha 0.05): 38% used by 1 test, 1 published; the next test has level 0.014"
        assert line in reef(one.home, "status").out
        one.stop()
        one.start()
        assert shown() == {"alpha": 0.05, **spent}
    with evolving(tmp_path, mind, reef_gate="wins") as (one, client, _):
        assert client.get("/reef/scenarios/s")["evolving"]["error_budget"] is None
        assert "error budget" not in reef(one.home, "status").out


def test_a_step_can_be_waited_for(tmp_path: Path) -> None:
    with evolving(tmp_path, helpful, reef_batch_size="5") as (one, client, _):
        fail(client)
        made = schema(reef(one.home, "step", "--wait", "-s", "s", "--json"), "step")
        assert made["outcome"] == "release" and made["release_id"] == "r1"


def test_an_agent_that_cannot_start_makes_the_step_invalid_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Node.js that is new enough by its own words, and a program that dies on it."""
    program = tmp_path / "data/reef/agents/programs/pi-1.6.0/node_modules/@earendil-works/pi-coding-agent/dist/bundle"
    program.mkdir(parents=True)
    (program / "cli.js").write_text("// not run by what is called node here")
    (tmp_path / "bin").mkdir()
    node = tmp_path / "bin" / "node"
    node.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo v22.20.0 && exit\necho "enableCompileCache is not a function" >&2; exit 1\n'
    )
    node.chmod(0o755)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    given = {"reef_adapter": "pi", "reef_evaluate": "reef.evolve.evaluate:evaluate", "reef_sandbox": "none"}
    with evolving(tmp_path, helpful, **given) as (one, client, thinker):
        fail(client)
        assert "pi does not start here: exit 1: enableCompileCache is not a function" in waits(client, "invalid")
        ran = reef(one.home, "step", "--wait", "-s", "s")
        assert ran.code == 1 and "enableCompileCache is not a function" in ran.err
        assert client.get("/reef/scenarios/s/steps")["steps"] == [] and not any(map(is_proposer, thinker.bodies))


OURS = {"reef_evaluate": "tests.evolve.world:foreign", "reef_propose": "tests.evolve.world:foreign"}


@pytest.mark.parametrize("word", [*NO_SCORES, "exit"])
def test_an_evaluation_that_says_nonsense_is_waited_for_and_nothing_of_it_is_kept(
    tmp_path: Path, switch: Path, word: str
) -> None:
    switch.write_text(word, encoding="utf-8")
    with evolving(tmp_path, helpful, **SWITCHED | {"reef_evaluate": OURS["reef_evaluate"]}) as (_, client, _):
        fail(client)
        waits(client, "invalid: task")
        switch.unlink()
        client.act("s", "resume")
        release = client.release("s", a_step(client)["release_id"])
        assert release["metrics"]["candidate_mean"] == 1.0 and release["metrics"]["incumbent_mean"] == 0.0


@pytest.mark.parametrize("word", ["exit", "half a sign", "half a name"])
def test_a_proposer_that_does_anything_costs_its_round_alone(tmp_path: Path, switch: Path, word: str) -> None:
    switch.write_text(word, encoding="utf-8")
    with evolving(tmp_path, helpful, **OURS) as (_, client, _):
        fail(client)
        assert a_step(client)["outcome"] == "refused"
        switch.unlink()
        fail(client)
        assert a_step(client, 2)["outcome"] == "release"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["reef_propose", "reef_evaluate"])
def test_code_that_never_comes_back_keeps_nobody_waiting(tmp_path: Path, switch: Path, which: str) -> None:
    switch.write_text("hang", encoding="utf-8")
    given = {"reef_evaluate": "tests.evolve.world:strictly", which: OURS[which]}
    with evolving(tmp_path, helpful, **given) as (one, client, _):
        fail(client)
        phase = "proposing" if which == "reef_propose" else "comparing"
        eventually(lambda: (client.get("/reef/scenarios/s")["evolving"] or {}).get("phase") == phase)
        assert reef(one.home, "down").code == 0 and one.died()
        switch.unlink()
        one.start()
        with one.client() as client:
            assert a_step(client)["outcome"] == "release"


@pytest.mark.parametrize("answer", ["{}", "no JSON", '{"choices": [{"message": {"content": [1]}}]}'])
def test_what_is_no_answer_of_the_model_costs_no_round(tmp_path: Path, answer: str) -> None:
    said = [answer]

    def mind(body: Any) -> Any:
        return said[0] if said and is_proposer(body) else helpful(body)

    with evolving(tmp_path, mind) as (_, client, _):
        fail(client)
        waits(client, "the model's server answered with")
        said.clear()
        client.act("s", "resume")
        assert a_step(client)["outcome"] == "release"
