"""Recipe gepa through a real daemon: what its steps decide is what the search alone decides, whatever happens in between."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from reef.cookbook.gepa.engine import Iteration, Search, Settings

from reef.client import ReefClient
from reef.errors import BadConfig
from reef.evolve.episode import Result
from reef.evolve.evaluate import Trial
from reef.evolve.values import ProposeContext
from reef.gate import replay
from reef.recipes import recipe_class_for
from reef.recipes.harness import DEFAULT_SEED
from tests.cli.test_cli import reef
from tests.evolve.test_episodes import BOXES, tool
from tests.evolve.test_steps import a_step, evolving, fail, importable, killed, steps
from tests.evolve.world import is_proposer, make_tasks, prompt_of
from tests.recipes.test_gepa_engine import share
from tests.support import eventually

__all__ = ["importable"]  # the fixture

TASKS = ["alpha", "beta", "delta", "gamma"]
GEPA = {"reef_recipe": "gepa", "reef_evaluate": "tests.recipes.test_gepa:wanted", "reef_minibatch": "2", "reef_random_seed": "7",
        "reef_retries": "1", "reef_retry_s": "0.01"}  # fmt: skip
SEED = DEFAULT_SEED.get("rules", "base").text

# -- named in settings of daemons under test


def wanted(trial: Trial) -> Result:
    """A task is done when its name is a word of the harness."""
    text = " ".join(one.text for one in trial.tree)
    if "breaks the agent" in text:
        raise ValueError("the agent does not start")
    if "provokes" in text:
        return Result(None, "the model's server answered 500", calls=1)
    return Result(float(trial.task.name in re.findall(r"\w+", text)), said=f"wanted: {trial.task.name}")


def elsewhere(context: ProposeContext) -> Any:
    """Changes what it is not asked to."""
    return [{"kind": "rules", "name": "mine", "text": "alpha beta"}]


# -- the model, and the search without a daemon


def rewrite(text: str, missing: str) -> str:
    """Add a word that was missing, begin anew with it, or forget everything."""
    drawn = share(text.split(), missing)
    return f"{text} {missing}" if drawn < 0.45 else f"Know {missing}." if drawn < 0.85 else "Know nothing."


def written(body: Any) -> dict[str, Any]:
    """The proposer's answer: it sees the entry, and of each task what was wanted."""
    if not is_proposer(body):
        return {"content": "done"}
    asked = body["messages"][1]["content"]
    text = re.search(r"# The entry to write anew: rules/\w+\n(.*?)\n\n# ", asked, flags=re.S)
    missing = re.search(r"\(score 0\)\nHow it was judged: wanted: (\w+)", asked)
    assert text is not None and missing is not None, asked
    return {"content": json.dumps({"why": "it was missing", "text": rewrite(text[1], missing[1])})}


class Alone:
    """What the daemon's tasks and model do, as the search sees it."""

    def components(self, texts: Mapping[str, str]) -> Sequence[str]:
        return list(texts)

    def validate(self, texts: Mapping[str, str], tasks: Sequence[str]) -> list[float]:
        return [float(task in re.findall(r"\w+", " ".join(texts.values()))) for task in tasks]

    def practise(self, texts: Mapping[str, str], tasks: Sequence[str], *, child: bool) -> list[float]:
        return self.validate(texts, tasks)

    def reflect(
        self, texts: Mapping[str, str], component: str, tasks: Sequence[str], scores: Sequence[float]
    ) -> Mapping[str, str]:
        missing = next(task for task, score in zip(tasks, scores, strict=True) if score == 0)
        return {**texts, component: rewrite(texts[component].strip(), missing)}


def alone(
    count: int, seed: int = 7, tasks: Sequence[str] = TASKS, merges: int = 0, **texts: str
) -> list[tuple[str, Search]]:
    """How ``count`` steps end and what they leave: published, kept, rejected or perfect; a merge is told as one."""
    search = Search(tasks, tasks, Settings(minibatch=2, merges=merges), random.Random(seed))
    start = {f"rules/{name}": text for name, text in (texts or {"base": SEED}).items()}
    search.add(start, (), Alone().validate(start, tasks))
    served, found = 0, list[tuple[str, Search]]()
    for _ in range(count):
        made: Iteration = search.iterate(Alone())
        word = {"worse": "rejected", "perfect": "perfect"}.get(made.end, "kept")
        if made.kept is not None and search.programs[made.kept].mean > search.programs[served].mean:
            served, word = made.kept, "published"
        if made.merged:
            word = f"merge {word}"
        found.append((word, Search.of(json.loads(json.dumps(search.as_dict())), search.settings)))
    return found


def state(home: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(home / "reef.db")) as db:
        found: dict[str, Any] = json.loads(db.execute("SELECT algorithm_state FROM scenarios").fetchone()[0])
    return found


def same(home: Path, search: Search) -> bool:
    """The archive in the home is that of the search alone, with its generator and cursors."""
    kept = state(home)["gepa"]
    return {name: value for name, value in kept.items() if name != "ground"} == search.as_dict()


def word_of(client: ReefClient, step: Mapping[str, Any]) -> str:
    if step["outcome"] == "release":
        return str(client.release("s", step["release_id"])["state"]).replace("serving", "published")
    return str(step["reason"]).partition(":")[0]


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    make_tasks(tmp_path / "tasks", *TASKS)


COUNT = 7


def test_the_script_has_what_it_is_for() -> None:
    words = [word for word, _ in alone(COUNT)]
    assert words.count("published") > 1 and {"kept", "rejected"} <= set(words), words


@pytest.mark.slow
def test_steps_decide_as_the_search_alone_and_publish_only_what_is_better(tmp_path: Path) -> None:
    with evolving(tmp_path, written, **GEPA) as (one, client, thinker):
        best = 0.0
        for number, (word, search) in enumerate(alone(COUNT), start=1):
            report = fail(client)
            step = a_step(client, number)
            assert word_of(client, step) == word, (number, step["reason"])
            assert same(one.home, search), number
            assert eventually(lambda one=report: client.record(one)["state"]) == "consumed"
            if word == "published":
                release = client.release("s", step["release_id"])
                evidence, metrics = release["verdict"]["evidence"], release["metrics"]
                assert replay(evidence).reason == release["verdict"]["reason"]
                assert metrics["candidate_mean"] > metrics["incumbent_mean"] == best
                best = metrics["candidate_mean"]
                assert (
                    search.programs[-1].texts["rules/base"]
                    == client.get("/reef/harness", scenario="s")["entries"][0]["text"]
                )
                assert reef(one.home, "gate", "replay", step["release_id"], "-s", "s").code == 0
                shown = reef(one.home, "gate", "show", step["release_id"], "-s", "s")
                assert "accept by mean" in shown.out and "alpha" in shown.out
                assert report[:8] in reef(one.home, "why", step["release_id"], "-s", "s").out
            elif word == "kept":
                assert "is in the archive and not published: mean score" in step["reason"]
                assert step["metrics"]["candidate_mean"] <= step["metrics"]["incumbent_mean"]
                assert f"without a release: {step['reason']}" in reef(one.home, "why", report, "-s", "s").out
        asked = [body for body in thinker.bodies if is_proposer(body)]
        assert len(asked) == sum(word != "perfect" for word, _ in alone(COUNT))
        assert "missed the empty-token case" in prompt_of(asked[0]) and "fix auth.py" in prompt_of(asked[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "evolve-episode:3",
        "evolve-episode:6",
        "evolve-proposed",
        "evolve-episode:9",
        "before-step-commit",
        "before-settle",
    ],
)
def test_a_killed_step_goes_on_with_the_same_parent_proposal_and_episodes(tmp_path: Path, point: str) -> None:
    expected = alone(3)
    with evolving(tmp_path, written, **GEPA) as (one, client, thinker):
        killed(one, point)
        with one.client() as client:
            for number, (word, search) in enumerate(expected, start=1):
                assert word_of(client, a_step(client, number)) == word
                assert same(one.home, search)
                if number < len(expected):
                    fail(client)
            assert len(steps(client)) == 3
        assert sum(is_proposer(body) for body in thinker.bodies) == 3
        with closing(sqlite3.connect(one.home / "reef.db")) as db:
            ran, distinct = db.execute(
                "SELECT COUNT(*), COUNT(DISTINCT content_id || task || seed) FROM episodes"
            ).fetchone()
        assert ran == distinct


@pytest.mark.slow
def test_a_rollback_brings_the_archive_of_its_release_back(tmp_path: Path) -> None:
    words = alone(COUNT)
    first = next(at for at, (word, _) in enumerate(words) if word == "published")
    second = next(at for at, (word, _) in enumerate(words) if word == "published" and at > first)
    with evolving(tmp_path, written, **GEPA) as (one, client, _):
        for number in range(1, second + 2):
            fail(client)
            a_step(client, number)
        assert same(one.home, words[second][1])
        client.act("s", "rollback", {"to": "r1"})
        assert same(one.home, words[first][1])
        fail(client)
        a_step(client, second + 2)
        assert same(one.home, words[first + 1][1])  # it goes on from there, with the same draws


def test_a_tree_without_entries_gets_its_first_one(tmp_path: Path) -> None:
    def begin(body: Any) -> dict[str, Any]:
        if is_proposer(body):
            assert "rules/learned\n(it does not exist yet)" in body["messages"][1]["content"]
        return {"content": json.dumps({"why": "", "text": "Know alpha, beta, delta and gamma."})}

    (tmp_path / "seed").mkdir()
    with evolving(tmp_path, begin, **GEPA, reef_seed=str(tmp_path / "seed")) as (_, client, _):
        fail(client)
        assert a_step(client)["outcome"] == "release"
        (entry,) = client.get("/reef/harness", scenario="s")["entries"]
        assert (entry["kind"], entry["name"]) == ("rules", "learned")


@pytest.mark.slow
def test_what_is_no_answer_is_refused_and_nothing_is_run_again(tmp_path: Path) -> None:
    bad = [
        ({"content": "Be careful."}, "holds no JSON object"),
        ({"content": json.dumps({"text": "x", "edits": []})}, "nothing else"),
        ({"content": json.dumps({"text": 3})}, "nothing else"),
        ({"content": json.dumps({"text": SEED})}, "changes nothing"),
        ({"content": json.dumps({"text": "use sk-proj-abcdefghijklmnop1234567890"})}, "credential"),
        ({"content": json.dumps({"text": "Now, Job beta: write yes into answer.txt, always"})}, "of a task"),
    ]
    todo = [answer for answer, _ in bad]

    def mind(body: Any) -> dict[str, Any]:
        return todo.pop(0) if todo and is_proposer(body) else written(body)

    with evolving(tmp_path, mind, **GEPA) as (one, client, _):
        for number, (_, said) in enumerate(bad, start=1):
            report = fail(client)
            step = a_step(client, number)
            assert step["outcome"] == "refused" and said in step["reason"]
            assert client.record(report)["state"] == "refused" and "gepa" not in state(one.home)
        with closing(sqlite3.connect(one.home / "reef.db")) as db:
            assert db.execute("SELECT COUNT(*) FROM episodes").fetchone() == (len(TASKS) + 2,)
        fail(client)
        a_step(client, len(bad) + 1)
        assert same(one.home, alone(1)[0][1])


def test_a_proposer_of_ones_own_may_change_only_what_is_its_turn(tmp_path: Path) -> None:
    with evolving(tmp_path, written, **GEPA, reef_propose="tests.recipes.test_gepa:elsewhere") as (_, client, _):
        fail(client)
        assert "changes rules/mine, and it was rules/base's turn" in a_step(client)["reason"]


def test_reports_that_nobody_was_shown_wait_for_a_step_that_asks(tmp_path: Path) -> None:
    seed = tmp_path / "seed" / "rules"
    seed.mkdir(parents=True)
    text = "alpha beta delta"
    (seed / "base.md").write_text(text, encoding="utf-8")
    words = ([word for word, _ in alone(2, at, base=text)] for at in range(99))
    number = next(at for at, (first, second) in enumerate(words) if first == "perfect" != second)
    settings = {**GEPA, "reef_random_seed": str(number), "reef_seed": str(seed.parent)}
    with evolving(tmp_path, written, **settings) as (one, client, thinker):
        report = fail(client, "the first of two")
        assert word_of(client, a_step(client)) == "perfect" and not any(is_proposer(body) for body in thinker.bodies)
        assert [run["report_id"] for run in state(one.home)["unread"]] == [report]
        fail(client, "the second of two")
        a_step(client, 2)
        (asked,) = (prompt_of(body) for body in thinker.bodies if is_proposer(body))
        assert "the first of two" in asked and "the second of two" in asked and state(one.home)["unread"] == []


def test_a_change_that_is_handed_in_and_a_wish_are_compared_too(tmp_path: Path) -> None:
    with evolving(tmp_path, written, **GEPA) as (one, client, thinker):
        edit = {"kind": "rules", "name": "all", "text": "Know alpha, beta and delta."}
        client.post("/reef/harness/proposals", {"why": "I know them", "edits": [edit]})
        step = a_step(client)
        assert word_of(client, step) == "published" and not any(is_proposer(body) for body in thinker.bodies)
        assert edit["text"] in [one["text"] for one in client.get("/reef/harness", scenario="s")["entries"]]
        assert [one["parents"] for one in state(one.home)["gepa"]["programs"]] == [[], [0]]
        client.post("/reef/harness/proposals", {"why": "shorter", "edits": [{**edit, "text": "Know alpha."}]})
        assert word_of(client, a_step(client, 2)) in ("rejected", "perfect")


@pytest.mark.slow
def test_a_release_that_is_held_is_waited_for(tmp_path: Path) -> None:
    with evolving(tmp_path, written, **GEPA, reef_mode="manual") as (one, client, _):
        first, search = alone(1)[0]
        assert first == "published"
        fail(client)
        assert word_of(client, a_step(client)) == "held" and "gepa" not in state(one.home)
        fail(client)
        assert eventually(lambda: "r1 waits for review" in client.get("/reef/scenarios/s")["detail"])
        client.act("s", "promote", {"release_id": "r1"})
        assert same(one.home, search)
        assert word_of(client, a_step(client, 2)) == "held" and same(one.home, search)
        client.act("s", "reject", {"release_id": "r2"})
        assert same(one.home, search)
        fail(client)
        assert word_of(client, a_step(client, 3)) == "held"  # drawn again, as if it had not been
        client.act("s", "promote", {"release_id": "r3"})
        assert same(one.home, alone(2)[1][1])


def test_code_is_held_for_a_person(tmp_path: Path) -> None:
    def mind(body: Any) -> dict[str, Any]:
        return {"content": json.dumps({"text": "// alpha beta delta"})} if is_proposer(body) else {"content": "done"}

    seed = tmp_path / "seed" / "code_extension"
    seed.mkdir(parents=True)
    (seed / "look.ts").write_text("// nothing", encoding="utf-8")
    with evolving(tmp_path, mind, **GEPA, reef_seed=str(seed.parent), reef_kinds="code_extension") as (_, client, _):
        fail(client)
        step = a_step(client)
        assert word_of(client, step) == "held"
        assert "code_extension is executed" in client.release("s", step["release_id"])["verdict"]["reason"]


def test_an_outage_is_waited_for_and_the_proposer_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = tmp_path / "switch"
    monkeypatch.setenv("REEF_TEST_SWITCH", str(switch))

    def mind(body: Any) -> dict[str, Any]:
        if is_proposer(body):
            switch.write_text("outage", encoding="utf-8")
            return {"content": json.dumps({"text": "Work carefully."})}
        return {"content": "done"}

    with evolving(tmp_path, mind, **{**GEPA, "reef_evaluate": "tests.evolve.world:switched"}) as (_, client, thinker):
        report = fail(client)
        assert eventually(lambda: "the provider is down" in client.get("/reef/scenarios/s")["detail"])
        assert client.get("/reef/scenarios/s/steps")["steps"] == []
        switch.unlink()
        client.act("s", "resume")
        assert a_step(client)["outcome"] == "release" and client.record(report)["state"] == "consumed"
        assert sum(is_proposer(body) for body in thinker.bodies) == 1


def test_a_change_that_breaks_the_agent_is_rejected_and_what_is_served_is_not_blamed(tmp_path: Path) -> None:
    def mind(body: Any) -> dict[str, Any]:
        return {"content": json.dumps({"text": "It breaks the agent."})} if is_proposer(body) else {"content": "done"}

    with evolving(tmp_path, mind, **GEPA) as (one, client, _):
        fail(client)
        step = a_step(client)
        assert word_of(client, step) == "rejected" and step["metrics"]["sample_after"] == 0
        assert len(state(one.home)["gepa"]["programs"]) == 1
    seed = tmp_path / "seed" / "rules"
    seed.mkdir(parents=True)
    (seed / "base.md").write_text("It breaks the agent.", encoding="utf-8")
    with evolving(tmp_path / "other", mind, **GEPA, reef_seed=str(seed.parent)) as (_, client, _):
        fail(client)
        assert eventually(lambda: "invalid: task" in client.get("/reef/scenarios/s")["detail"])


def test_a_change_that_provokes_failures_ends_its_step_and_not_the_archive(tmp_path: Path) -> None:
    def mind(body: Any) -> dict[str, Any]:
        return {"content": json.dumps({"text": "It provokes them."})} if is_proposer(body) else {"content": "yes"}

    with evolving(tmp_path, mind, **GEPA, reef_outage_rounds="1") as (one, client, _):
        fail(client)
        step = a_step(client)
        assert word_of(client, step) == "inconclusive" and "while the model answers others" in step["reason"]
        assert len(state(one.home)["gepa"]["programs"]) == 1


def test_a_budget_that_is_spent_ends_the_step_and_the_archive_goes_on(tmp_path: Path) -> None:
    with evolving(tmp_path, written, **GEPA, reef_max_calls="1") as (one, client, _):
        fail(client)
        step = a_step(client)
        assert word_of(client, step) == "inconclusive" and "max_calls is 1" in step["reason"]
        kept = state(one.home)["gepa"]
        assert len(kept["programs"]) == 1 and kept["number"] == 0


def test_other_tasks_begin_another_archive_from_what_is_served(tmp_path: Path) -> None:
    with evolving(tmp_path, written, **GEPA) as (one, client, _):
        fail(client)
        assert word_of(client, a_step(client)) == "published"
        one.stop()
        make_tasks(tmp_path / "tasks", "omega")
        one.start()
        with one.client() as client:
            fail(client)
            a_step(client, 2)
        kept = state(one.home)["gepa"]
        assert kept["valid"] == [*TASKS, "omega"] and kept["number"] == 0 and kept["programs"][0]["parents"] == []


@pytest.mark.slow
def test_merges_are_made_and_published_as_the_search_alone_does(tmp_path: Path) -> None:
    tasks = [*TASKS, "omega", "zeta"]
    make_tasks(tmp_path / "tasks", "omega", "zeta")
    seed = tmp_path / "seed" / "rules"
    seed.mkdir(parents=True)
    texts = {"base": "Know nothing yet.", "more": "Know nothing more."}
    for name, text in texts.items():
        (seed / f"{name}.md").write_text(text, encoding="utf-8")
    number, count = next(
        (at, words.index("merge published") + 1)
        for at in range(999)
        if "merge published" in (words := [word for word, _ in alone(8, at, tasks, 2, **texts)])
    )
    settings = {"reef_random_seed": str(number), "reef_merges": "2", "reef_seed": str(seed.parent)}
    with evolving(tmp_path, written, **{**GEPA, **settings}) as (one, client, thinker):
        for at, (word, search) in enumerate(alone(count, number, tasks, 2, **texts), start=1):
            fail(client)
            step = a_step(client, at)
            assert word_of(client, step) == word.removeprefix("merge "), (at, step["reason"])
            assert same(one.home, search), at
        asked = sum(is_proposer(body) for body in thinker.bodies)
        assert asked < count and len(state(one.home)["unread"]) == 1
        shown = client.get("/reef/scenarios/s/proposals")["proposals"][0]
        assert shown["origin"] == "merge" and shown["release_id"] == step["release_id"]
        about = client.release("s", step["release_id"])["verdict"]["evidence"]["gepa"]
        assert about["merged"] and len(about["parents"]) == 2


def test_there_must_be_something_to_rewrite_or_to_begin(tmp_path: Path) -> None:
    recipe = recipe_class_for("gepa")
    with pytest.raises(BadConfig, match="no entry of the kinds"):
        recipe.from_environment(None, {"tasks": str(tmp_path / "tasks"), "kinds": "code_extension"}, {})


@pytest.mark.slow
@pytest.mark.parametrize("box", BOXES)
def test_real_episodes_are_what_the_proposer_reflects_on(tmp_path: Path, box: str) -> None:
    """Reef's own agent: what it said on the tasks of the minibatch and what their checks printed are in the question."""

    def mind(body: Any) -> dict[str, Any]:
        if is_proposer(body):
            return {"content": json.dumps({"why": "be careful", "text": "Work carefully: do what the job says."})}
        if body["messages"][-1]["role"] == "tool" or "carefully" not in prompt_of(body):
            return {"content": "that was too hard for me" if "Job" in prompt_of(body) else "done"}
        return tool("write", path="answer.txt", content="yes\n")

    settings = {**GEPA, "reef_evaluate": "reef.evolve.evaluate:evaluate", "reef_sandbox": box}
    with evolving(tmp_path, mind, **settings) as (_, client, thinker):
        fail(client)
        step = a_step(client)
        assert word_of(client, step) == "published", step
        asked = next(prompt_of(body) for body in thinker.bodies if is_proposer(body))
        assert (
            asked.count("that was too hard for me") == 2 and len(re.findall(r"\[user\] Job \w+: write yes", asked)) == 2
        )
        metrics = client.release("s", step["release_id"])["metrics"]
        assert metrics["episodes"] == 4 + 2 + 2 + 4 and metrics["candidate_mean"] == 1.0
