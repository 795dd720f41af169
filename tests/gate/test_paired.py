"""The rules: what they publish, when they stop, and that a verdict can be computed again from its receipt."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from reef.core.artifacts import Decision, Verdict
from reef.errors import BadConfig
from reef.gate import GateSettings, Pair, Rule, Slot, Task, replay, start
from reef.gate.simulate import Population, differing, simulate, typical

TASKS = [Task("parse"), Task("sort"), Task("auth", protected=True)]


def run(rule: Rule, play: Callable[[Slot], tuple[float, float]], ahead: int = 1) -> Verdict:
    while slots := rule.slots(ahead):
        for slot in slots:
            if rule.verdict is None and rule.slots(1) == [slot]:
                rule.add(Pair(slot, *play(slot)))
    assert rule.verdict is not None
    return rule.verdict


def better(slot: Slot) -> tuple[float, float]:
    return 1.0, 0.0


def clearly(published: int, runs: int) -> float:
    """The one-sided 99% upper bound of a rate."""
    rate = published / runs
    return rate + 2.326 * math.sqrt(max(rate * (1 - rate), 1 / runs) / runs)


def test_useless_candidates_are_published_at_most_as_often_as_alpha_says() -> None:
    found = simulate(GateSettings(), typical(20, 0.0), runs=10_000, seed=11)
    assert found.published > 0 and clearly(found.published, found.runs) <= 0.05


def mixed(draw: random.Random) -> tuple[list[Task], Callable[[Slot, random.Random], tuple[float, float]]]:
    """Better on one task and as much worse on another."""

    def play(slot: Slot, draw: random.Random) -> tuple[float, float]:
        won = slot.task == "parse"
        return (1.0, 0.0) if won else (0.0, 1.0)

    return [Task("parse"), Task("sort")], play


def graded(draw: random.Random) -> tuple[list[Task], Callable[[Slot, random.Random], tuple[float, float]]]:
    return [Task("any")], lambda slot, draw: (draw.random(), draw.random())


@pytest.mark.parametrize(
    ("settings", "population"),
    [
        (GateSettings(screen=0), typical(10, 0.0)),
        (GateSettings(screen=0, pairs=60), differing(0.0, 1.0)),
        (GateSettings(screen=0, pairs=60), mixed),
        (GateSettings(screen=0, pairs=60, graded=True), graded),
        (GateSettings(screen=0, pairs=60, margin=0.1), differing(-0.1, 0.4)),
    ],
    ids=["typical", "always another", "better here, worse there", "graded", "worse by the margin"],
)
def test_without_a_screen_too(settings: GateSettings, population: Population) -> None:
    found = simulate(settings, population, runs=2_000, seed=5)
    assert clearly(found.published, found.runs) <= 0.05


def test_what_is_better_is_published_and_what_is_worse_is_not() -> None:
    assert simulate(GateSettings(), typical(20, 0.3), runs=300, seed=1).published > 250
    assert simulate(GateSettings(), typical(20, -0.2), runs=300, seed=1).published == 0
    shorter = GateSettings(margin=0.2, screen=0)
    assert simulate(shorter, differing(0.0, 0.2), runs=200, seed=1).published > 150


def cheaper(saved: float, spread: float, passes: float = 0.7) -> Population:
    """As good as before; of its tokens a share is saved that is spread around ``saved``."""

    def population(draw: random.Random) -> tuple[list[Task], Callable[[Slot, random.Random], Pair]]:
        def play(slot: Slot, draw: random.Random) -> Pair:
            share = saved + draw.uniform(-spread, spread)
            ours, theirs = (
                (10_000 - round(10_000 * share), 10_000) if share > 0 else (10_000, round(10_000 * (1 + share)))
            )
            return Pair(slot, float(draw.random() < passes), float(draw.random() < passes), ours, theirs)

        return [Task("any")], play

    return population


def test_what_is_not_worse_and_saves_tokens_is_published_and_what_saves_none_is_not() -> None:
    asked = GateSettings(margin=0.3, saving=0.1, screen=0, pairs=100)
    null = simulate(asked, cheaper(0.1, 0.6), runs=1000, seed=3)
    assert clearly(null.published, null.runs) <= 0.05, null.published
    assert simulate(asked, cheaper(0.4, 0.3), runs=100, seed=3).published > 80
    assert simulate(asked, cheaper(-0.1, 0.3), runs=100, seed=3).published == 0
    screened = replace(asked, screen=10)
    assert simulate(screened, cheaper(0.0, 0.05), runs=100, seed=3).mean_pairs == 10


def test_a_saving_is_in_the_receipt_and_what_is_not_known_speaks_against() -> None:
    asked = GateSettings(margin=0.3, saving=0.1, screen=2, pairs=60)

    def judged(*tokens: int | None) -> Verdict:
        rule = start(asked, TASKS[:1], seed=9)
        while slots := rule.slots(1):
            rule.add(Pair(slots[0], 1.0, 1.0, *tokens))
        assert rule.verdict is not None
        stored = json.loads(json.dumps(rule.verdict.evidence))
        assert replay(stored) == replace(rule.verdict, evidence=stored)
        return rule.verdict

    saved = judged(500, 1000)
    assert saved.decision is Decision.ACCEPT and "50.0% of the tokens saved" in saved.reason
    assert saved.evidence["pairs"][0][5:] == [1.0, 1.0, 500, 1000]
    assert "no sign of saving 10% of the tokens in 2 pairs (+5.0%)" in judged(950, 1000).reason
    assert "(-50.0%)" in judged(2000, 1000).reason
    assert judged(None, 1000).decision is Decision.INCONCLUSIVE
    with pytest.raises(BadConfig, match="without a margin"):
        GateSettings(saving=0.1)


def test_a_receipt_from_before_savings_replays() -> None:
    verdict = run(start(GateSettings(), TASKS[:2], seed=3), better)
    assert "saving" not in verdict.evidence["settings"] and all(len(pair) == 7 for pair in verdict.evidence["pairs"])


def test_counting_wins_publishes_useless_candidates() -> None:
    for tasks, rate in ((3, 0.23), (10, 0.36), (200, 0.47)):
        found = simulate(GateSettings(rule="wins"), typical(tasks, 0.0), runs=1500, seed=2)
        assert found.published / found.runs == pytest.approx(rate, abs=0.05)
        assert found.mean_pairs == tasks


def test_a_budget_of_a_hundred_useless_candidates() -> None:
    """One scenario after the other, the budget carried along: nearly none ever publishes."""
    from reef.gate import level_of

    published = 0
    for scenario in range(20):
        tested = there = 0
        for candidate in range(100):
            rule = start(GateSettings(), *_tasks_of(scenario, candidate), level_of(0.05, tested + 1, there))
            draw = random.Random(f"{scenario}/{candidate}/play")
            verdict = run(rule, lambda slot, draw=draw: (float(draw.random() < 0.5), float(draw.random() < 0.5)))  # type: ignore[misc]
            tested += any(pair[1] == "test" for pair in verdict.evidence["pairs"])
            there += verdict.decision is Decision.ACCEPT
        published += there > 0
    assert published <= 4


def _tasks_of(scenario: int, candidate: int) -> tuple[list[Task], int]:
    return [Task(f"t{at}") for at in range(3)], scenario * 1000 + candidate


def test_a_verdict_replays_to_the_last_bit() -> None:
    draw = random.Random(4)
    for settings in (GateSettings(), GateSettings(graded=True), GateSettings(rule="wins", repeats=4)):
        verdict = run(
            start(settings, TASKS, seed=9, level=0.02),
            lambda slot: (float(draw.random() < 0.8), float(draw.random() < 0.4)),
        )
        stored = json.loads(json.dumps(verdict.evidence))
        assert replay(stored) == replace(verdict, evidence=stored)


def test_a_receipt_that_was_changed_does_not_replay() -> None:
    evidence = json.loads(json.dumps(run(start(GateSettings(), TASKS, 9), better).evidence))
    shifted = {**evidence, "pairs": [evidence["pairs"][1], *evidence["pairs"][1:]]}
    with pytest.raises(BadConfig, match="not the one that was to be run"):
        replay(shifted)
    with pytest.raises(BadConfig, match="not the one that was to be run"):
        replay({**evidence, "seed": 10})
    lost = {**evidence, "pairs": [[*pair[:5], 0.0, 1.0] for pair in evidence["pairs"]]}
    with pytest.raises(BadConfig, match="not the one that was to be run"):  # the screen would have ended it
        replay(lost)
    with pytest.raises(BadConfig, match="ends before a verdict"):
        replay({**evidence, "pairs": evidence["pairs"][:12]})
    for none in ({}, {"settings": 3}, {**evidence, "settings": {"rul": 1}}, {**evidence, "pairs": [[1, 2]]}):
        with pytest.raises(BadConfig, match="no receipt"):
            replay(none)


def test_slots_depend_on_the_seed_alone_so_that_an_evaluation_can_go_on() -> None:
    one, other = start(GateSettings(), TASKS, 9), start(GateSettings(), TASKS, 9)
    ahead = one.slots(10)
    for slot in ahead:
        one.add(Pair(slot, 1.0, 0.0))
        other.add(Pair(other.slots(1)[0], 1.0, 0.0))
    assert one.slots(5) == other.slots(5) and [slot.number for slot in one.slots(5)] == [10, 11, 12, 13, 14]
    assert len({slot.seed for slot in ahead}) == 10 and {slot.candidate_first for slot in ahead} == {True, False}
    assert start(GateSettings(), TASKS, 10).slots(10) != ahead


def test_what_is_run_ahead_and_not_needed_changes_nothing() -> None:
    verdicts = [run(start(GateSettings(), TASKS, 9), better, ahead) for ahead in (1, 4)]
    assert verdicts[0] == verdicts[1] and verdicts[0].decision is Decision.ACCEPT


def test_a_protected_task_may_not_get_worse_whatever_is_gained_elsewhere() -> None:
    def play(slot: Slot) -> tuple[float, float]:
        return (0.0, 1.0) if slot.task == "auth" and slot.stage != "screen" else (1.0, 0.0)

    many = [*TASKS, *(Task(f"easy-{at}") for at in range(20))]
    for settings in (
        GateSettings(),
        GateSettings(rule="wins"),
        GateSettings(rule="mean"),
        GateSettings(rule="floor", floor=0.5),
    ):
        verdict = run(start(settings, many, 9), play)
        assert verdict.decision is Decision.REJECT and "auth" in verdict.reason, settings
    hurt = run(start(GateSettings(), many, 9), lambda slot: (0.0, 1.0) if slot.task == "auth" else (1.0, 0.0))
    assert hurt.decision is Decision.REJECT


def test_a_protected_task_is_run_before_anything_is_published() -> None:
    many = [Task("auth", protected=True), *(Task(f"easy-{at}") for at in range(200))]
    verdict = run(start(GateSettings(screen=0), many, 1), better)
    guards = [pair for pair in verdict.evidence["pairs"] if pair[1] == "guard"]
    assert verdict.decision is Decision.ACCEPT and len(guards) == 2 and {pair[2] for pair in guards} == {"auth"}
    assert replay(verdict.evidence) == verdict


@pytest.mark.parametrize(("margin", "said"), [(0.0, "not better: 0 won"), (0.2, "worse: 0 won")])
def test_a_verdict_says_what_was_asked(margin: float, said: str) -> None:
    verdict = run(start(GateSettings(margin=margin, screen=0), TASKS[:1], 1), lambda slot: (0.0, 1.0))
    assert verdict.decision is Decision.REJECT and verdict.reason.startswith(said)


def test_the_floor_rule() -> None:
    settings = GateSettings(rule="floor", floor=0.6, graded=True)
    assert (
        run(start(settings, TASKS, 1), lambda slot: (0.7, 0.9 if slot.task != "auth" else 0.1)).decision
        is Decision.ACCEPT
    )
    assert run(start(settings, TASKS, 1), lambda slot: (0.5, 0.1)).decision is Decision.REJECT


def test_the_mean_rule() -> None:
    settings = GateSettings(rule="mean", graded=True)
    won = run(start(settings, TASKS, 1), lambda slot: (0.6, 0.5 if slot.task != "auth" else 0.6))
    assert won.decision is Decision.ACCEPT and replay(won.evidence) == won
    assert "0.6, 0.5" in won.reason
    for equal in ((0.5, 0.5), (0.4, 0.5)):
        assert run(start(settings, TASKS, 1), lambda slot, sides=equal: sides).decision is Decision.REJECT


def test_a_test_that_nothing_can_pass_is_refused_before_anything_is_spent() -> None:
    with pytest.raises(BadConfig, match=r"can never reach the level 0\.05: 7 wins"):
        start(GateSettings(pairs=6), TASKS, 1)
    with pytest.raises(BadConfig, match="no tasks"):
        start(GateSettings(), [], 1)


@pytest.mark.parametrize(
    ("settings", "fewest"),
    [
        (GateSettings(graded=True), 9),
        (GateSettings(margin=0.9, screen=0), 6),
        (GateSettings(margin=0.2, saving=0.5, screen=0), 15),
    ],
    ids=["graded", "a margin", "a saving"],
)
def test_so_is_one_that_bets(settings: GateSettings, fewest: int) -> None:
    """Bets grow at another pace than wins are counted: nothing that could pass is refused, and nothing else is begun."""
    settings = replace(settings, screen=0)
    with pytest.raises(BadConfig, match=f"{fewest - 1} pairs can never reach the level 0.05: {fewest} wins"):
        start(replace(settings, pairs=fewest - 1), TASKS[:1], 1)
    rule = start(replace(settings, pairs=fewest), TASKS[:1], 1)
    while slots := rule.slots(1):
        rule.add(Pair(slots[0], 1.0, 0.0, 0, 1000))
    assert rule.verdict is not None and rule.verdict.decision is Decision.ACCEPT


@pytest.mark.parametrize(
    ("given", "said"),
    [({"rule": "best"}, "one of paired-e, wins, floor"), ({"alpha": 0.7}, "alpha"), ({"margin": -0.1}, "margin")],
)
def test_settings_that_make_no_sense(given: dict[str, object], said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        GateSettings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("score", [math.nan, 1.5, -0.1, 0.5])
def test_a_score_that_is_none_is_never_counted(score: float) -> None:
    rule = start(GateSettings(), TASKS, 1)
    with pytest.raises(BadConfig, match="a score must be"):
        rule.add(Pair(rule.slots(1)[0], score, 0.0))
    assert rule.slots(1)[0].number == 0
