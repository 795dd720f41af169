"""reef recipe check finds what is wrong and says it with the fewest events; what is right passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from reef.authoring.check import Report, check
from reef.recipes import WeightTrainingRecipe, knob, recipe_class_for
from reef.train.processors.base import DataProcessor
from tests.authoring import broken

BROKEN: list[tuple[type[DataProcessor], str, str]] = [
    (broken.LeaksReference, "leak", "is held for ever: nothing uses it, and it is not released"),
    (broken.PaysTwice, "consumed_twice", "trained in step 1, and batch"),
    (broken.TwoSamplesOfOne, "consumed_twice", "in more samples than units"),
    (broken.LosesOrder, "order", "in another order than its units"),
    (broken.Overtakes, "order", "arrived later"),
    (broken.WaitsForNothing, "raised", "answered WAIT for report-"),
    (broken.Impure, "impure_retention", "Impure.retention_decision changes self.asked"),
    (broken.Forgets, "restart_differs", "without a restart, and as"),
    (broken.SaysNothing, "no_reason", "'Not Good Enough!'"),
    (broken.AnotherBatch, "another_batch", "made another batch before"),
    (broken.ReleasesTooEarly, "too_early", "still needs it"),
    (broken.Crashes, "raised", "ZeroDivisionError"),
    (broken.Hoards, "leak", "is held for ever"),
    (broken.DropsJudgments, "too_early", "still needs it"),
]


def checked(cls: type[WeightTrainingRecipe], examples: int = 60, **environ: str) -> Report:
    return check(cls, None, seed=0, examples=examples, environ=environ)


def failed(report: Report) -> dict[str, str]:
    return {one.id: one.message for one in report.findings if one.state == "failed"}


@pytest.mark.parametrize(("processor", "rule", "said"), BROKEN, ids=[one[0].__name__ for one in BROKEN])
def test_a_broken_processor_is_found_and_told_in_few_events(
    processor: type[DataProcessor], rule: str, said: str
) -> None:
    recipe = dataclass(frozen=True, kw_only=True)(
        type("Recipe", (broken.Base,), {"processor": processor, "__module__": broken.__name__})
    )
    report = checked(recipe)
    assert failed(report).keys() == {rule}, report.findings
    finding = next(one for one in report.findings if one.id == rule)
    assert said in finding.message
    assert "--seed 0" in finding.hint
    events = [line for line in finding.detail if line.startswith("  ") and "everything" not in line]
    assert len(events) <= 8, finding.detail
    again = next(one for one in checked(recipe).findings if one.id == rule)
    assert again == finding, "the same seed finds the same"


@pytest.mark.parametrize(
    ("preparer", "rule", "said"),
    [
        ("remembers_wrongly", "preparer", "no JSON"),
        ("says_sft", "agreement", "answers with loss family sft, the recipe says pg"),
        ("too_few", "preparer", "advantages for"),
    ],
)
def test_a_broken_preparer_is_found(preparer: str, rule: str, said: str) -> None:
    fields = {"step_preparer": f"{broken.__name__}:{preparer}", "__module__": broken.__name__}
    recipe = dataclass(frozen=True, kw_only=True)(type("Recipe", (broken.Base,), fields))
    assert said in failed(checked(recipe, 20))[rule]


@pytest.mark.parametrize("kind", ["sft", "pg", "rwr", "grpo", "record", "harness", "evolve", "gepa"])
def test_what_is_bundled_passes(kind: str) -> None:
    report = check(recipe_class_for(kind), None, seed=3, examples=12, environ={})
    assert not failed(report), report.findings


@dataclass(frozen=True, kw_only=True)
class Memory(broken.Base):
    """A judge with a memory, and reports that own their calls."""

    name: str = "memory"
    processor: ClassVar[type[DataProcessor]] = broken.Remembers


def test_a_judge_with_a_memory_is_right() -> None:
    assert not failed(checked(Memory, 120))


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"REEF_TRAINING_LOSS": "sft"}, "the recipe trains with loss family pg, but REEF_TRAINING_LOSS=sft"),
        ({"REEF_TRAINING_RECIPE": "sft"}, "REEF_TRAINING_RECIPE=sft, which trains with sft"),
    ],
)
def test_a_driver_with_another_objective_is_named(environ: dict[str, str], said: str) -> None:
    assert said in failed(checked(broken.Base, 1, **environ))["agreement"]
    agrees = checked(broken.Base, 1, REEF_TRAINING_LOSS="pg", REEF_TRAINING_RECIPE="sft")
    assert "agreement" not in failed(agrees), "REEF_TRAINING_LOSS wins"


@dataclass(frozen=True, kw_only=True)
class Unreachable(broken.Base):
    """Keys that no configuration can set, or that are someone else's."""

    port: int = knob(1, "hides the service's")
    bound: int = knob(5, "its default is out of its own bounds", gt=9)
    plain: int = 3
    name: str = "unreachable"
    summary: ClassVar[str] = ""


def test_knobs_that_nobody_can_set_are_named() -> None:
    (finding,) = (one for one in checked(Unreachable, 1).findings if one.id == "knobs")
    said = " ".join([finding.message, *finding.detail])
    assert finding.state == "failed"
    assert all(
        words in said for words in ("port is a key of the service", "plain is a field and no knob", "bound is 5")
    )
