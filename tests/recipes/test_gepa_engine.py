"""The search of recipe gepa beside the package gepa: the same seed, scores and texts must make the same decisions."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import gepa
import pytest
from gepa.core.adapter import EvaluationBatch
from reef.cookbook.gepa.engine import Given, Search, Settings


def share(*parts: object) -> float:
    """A number in [0, 1) that follows from ``parts``."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4]) / 2**32


def in_order(count: int) -> list[str]:
    """Names that a set of them goes through in alphabetical order: the package merges components in the order of a set."""
    for at in itertools.count():
        names = [f"{letter}{at}" for letter in "abcd"[:count]]
        if list(set(names)) == names:
            return names
    raise AssertionError


class Script:
    """Scores and texts that follow from what is asked: each task likes some texts more, and longer ones a little."""

    def __init__(self, seed: int, tasks: int, levels: int) -> None:
        self.seed, self.tasks, self.levels = seed, list(range(tasks)), levels

    def score(self, texts: Mapping[str, str], task: int) -> float:
        found = sum(share(self.seed, name, text, task) + 0.04 * text.count("+") for name, text in texts.items())
        return min(1.0, round(found / len(texts) * self.levels) / self.levels)

    def rewrite(self, texts: Mapping[str, str], name: str, tasks: Sequence[int]) -> str | None:
        drawn = share(self.seed, "rewrite", sorted(texts.items()), name, list(tasks))
        return None if drawn < 0.08 else f"{texts[name]}+{int(drawn * 1000)}"


class Adapter:
    """The script as the package calls it."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def evaluate(self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False) -> EvaluationBatch:
        scores = [self.script.score(candidate, task) for task in batch]
        return EvaluationBatch(list(batch), scores, list(batch) if capture_traces else None)

    def make_reflective_dataset(self, candidate: dict[str, str], found: Any, names: list[str]) -> dict[str, Any]:
        return {name: [{"task": task} for task in found.trajectories] for name in names}

    def propose_new_texts(self, candidate: dict[str, str], seen: Any, names: list[str]) -> dict[str, str]:
        texts = {name: self.script.rewrite(candidate, name, [one["task"] for one in seen[name]]) for name in names}
        return {name: text for name, text in texts.items() if text is not None}


class Quiet:
    def log(self, message: str) -> None:
        pass


class Notes:
    """What the package decides, one row an iteration."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_iteration_start(self, event: Any) -> None:
        self.rows.append({"end": "nothing"})

    def on_candidate_selected(self, event: Any) -> None:
        self.rows[-1]["parents"] = (event["candidate_idx"],)

    def on_minibatch_sampled(self, event: Any) -> None:
        self.rows[-1]["sample"] = tuple(map(str, event["minibatch_ids"]))

    def on_evaluation_skipped(self, event: Any) -> None:
        self.rows[-1]["end"] = "perfect"

    def on_merge_attempted(self, event: Any) -> None:
        self.rows[-1] |= {"merged": True, "parents": tuple(event["parent_ids"])}

    def on_evaluation_start(self, event: Any) -> None:
        if len(event["parent_ids"]) == 2:
            self.rows[-1]["sample"] = tuple(map(str, event["inputs"]))

    def on_candidate_rejected(self, event: Any) -> None:
        self.rows[-1]["end"] = "worse"

    def on_merge_rejected(self, event: Any) -> None:
        self.rows[-1]["end"] = "worse"

    def on_candidate_accepted(self, event: Any) -> None:
        self.rows[-1] |= {"end": "kept", "kept": event["new_candidate_idx"]}


class Ours:
    """The script as our search calls it."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def components(self, texts: Mapping[str, str]) -> list[str]:
        return list(texts)

    def practise(self, texts: Mapping[str, str], tasks: Sequence[str], *, child: bool) -> list[float]:
        return [self.script.score(texts, int(task)) for task in tasks]

    def validate(self, texts: Mapping[str, str], tasks: Sequence[str]) -> list[float]:
        return [self.script.score(texts, int(task)) for task in tasks]

    def reflect(
        self, texts: Mapping[str, str], component: str, tasks: Sequence[str], scores: Sequence[float]
    ) -> Mapping[str, str] | None:
        text = self.script.rewrite(texts, component, [int(task) for task in tasks])
        return None if text is None else {**texts, component: text}


def begun(script: Script, start: Mapping[str, str], settings: Settings, seed: int) -> Search:
    names = [str(task) for task in script.tasks]
    search = Search(names, names, settings, random.Random(seed))
    search.add(start, (), [script.score(start, task) for task in script.tasks])
    return search


def theirs(script: Script, start: dict[str, str], iterations: int, seed: int, merges: int) -> tuple[Any, Notes]:
    notes = Notes()
    result = gepa.optimize(
        start, trainset=script.tasks, adapter=Adapter(script), seed=seed, logger=Quiet(), callbacks=[notes],
        use_merge=merges > 0, max_merge_invocations=merges, track_best_outputs=False,
        stop_callbacks=lambda state: state.i + 1 >= iterations,
    )  # fmt: skip
    return result, notes


CASES = [
    (seed, tasks, levels, parts, merges)
    for seed in range(6)
    for tasks, levels, parts in ((7, 10, 3), (5, 2, 2), (12, 4, 4), (2, 20, 1))
    for merges in (0, 5)
]


@pytest.mark.parametrize(("seed", "tasks", "levels", "parts", "merges"), CASES)
def test_it_decides_as_the_package_does(seed: int, tasks: int, levels: int, parts: int, merges: int) -> None:
    script, start = Script(seed, tasks, levels), dict.fromkeys(in_order(parts), "start")
    result, notes = theirs(script, start, 60, seed, merges)
    settings = Settings(merges=merges)
    search, world = begun(script, start, settings, seed), Ours(script)
    assert len(notes.rows) == 60
    for number, row in enumerate(notes.rows):
        made = search.iterate(world)
        found = {"end": made.end, "parents": made.parents, "sample": made.sample, "merged": made.merged}
        assert found == {"merged": False, **{name: row[name] for name in row if name != "kept"}}, number
        assert made.kept == row.get("kept"), number
        search = Search.of(json.loads(json.dumps(search.as_dict())), settings)  # as a daemon keeps it between steps
    assert [one.texts for one in search.programs] == result.candidates
    assert [list(one.parents) or [None] for one in search.programs] == result.parents
    scores = [{str(task): score for task, score in one.items()} for one in result.val_subscores]
    assert [one.scores for one in search.programs] == scores


def test_the_cases_have_what_they_are_for() -> None:
    """Kept, worse, perfect and no text; merges that were kept and that were not; archives of more than a few."""
    ends: set[tuple[str, bool]] = set()
    largest = 0
    for seed, tasks, levels, parts, merges in CASES:
        script, start = Script(seed, tasks, levels), dict.fromkeys(in_order(parts), "start")
        search = begun(script, start, Settings(merges=merges), seed)
        for _ in range(60):
            made = search.iterate(Ours(script))
            ends.add((made.end, made.merged))
        largest = max(largest, len(search.programs))
    assert ends >= {
        ("kept", False),
        ("worse", False),
        ("perfect", False),
        ("nothing", False),
        ("kept", True),
        ("worse", True),
    }
    assert largest > 8


def test_a_child_that_was_handed_in_is_compared_with_its_parent_and_draws_no_other() -> None:
    script, start = Script(1, 6, 10), {"a": "start", "b": "start"}
    search = begun(script, start, Settings(), 1)
    better = next(
        {"a": f"start+{at}+++++++", "b": "start"} for at in range(1000)
        if all(script.score({"a": f"start+{at}+++++++", "b": "start"}, task) > script.score(start, task) for task in script.tasks)
    )  # fmt: skip
    made = search.iterate(Ours(script), Given(0, better))
    assert (made.end, made.parents, made.kept) == ("kept", (0,), 1)
    assert search.programs[1].texts == better and search.programs[0].turn == 0
    assert search.iterate(Ours(script), Given(1, start)).end == "worse"
