"""reef recipe list, show, check and bench as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from reef.recipes import recipe_kinds
from tests.cli.test_cli import reef, refused, schema

RECIPE = """
from dataclasses import dataclass
from typing import ClassVar
from reef.recipes import WeightTrainingRecipe, knob
from reef.recipes.weights import ScoredProcessor


class Turned(ScoredProcessor):
    def make_batch(self, units, batch_number):
        return super().make_batch(units[::-1], batch_number)


class Stopped(ScoredProcessor):
    def make_batch(self, units, batch_number):
        raise KeyboardInterrupt


@dataclass(frozen=True, kw_only=True)
class Mine(WeightTrainingRecipe):
    batch_size: int = knob(2, "samples per step", env="MINE_BATCH", gt=0)
    name: str = "mine"
    summary: ClassVar[str] = "a stranger's"
    step_preparer: ClassVar[str] = "pg"
    loss_family: ClassVar[str] = "pg"
    processor: ClassVar = Turned


@dataclass(frozen=True, kw_only=True)
class Interrupted(Mine):
    processor: ClassVar = Stopped
"""
ENTRY_POINTS = """[reef.recipes]
mine = strange:Mine
gone = strange:Nobody
loud = loud:Recipe
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on PYTHONPATH with a distribution that brings recipes, two of them broken."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "strange.py").write_text(RECIPE, encoding="utf-8")
    (folder / "loud.py").write_text("raise SystemExit('no licence')\n", encoding="utf-8")
    info = folder / "strange-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    return folder


def test_list_tells_cells_needs_and_plugins_that_are_broken(site: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    found = schema(reef(tmp_path, "recipe", "list", "--json"), "recipes")
    rows = {row["kind"]: row for row in found["recipes"]}
    assert rows.keys() == {*recipe_kinds(), "mine"}
    assert rows["gepa"] | {"origin": "cookbook", "surface": "harness", "stateful": True} == rows["gepa"]
    assert rows["grpo"]["needs"] == ["scores", "model to train"] and rows["record"]["needs"] == []
    assert rows["mine"]["origin"] == "strange"
    assert {one["kind"]: one["error"] for one in found["broken"]} == {
        "gone": "recipe 'strange:Nobody': module strange has no 'Nobody'",
        "loud": "SystemExit: no licence",
    }
    shown = reef(tmp_path, "recipe", "list")
    assert shown.code == 0 and "broken: loud (loud:Recipe, from strange): SystemExit: no licence" in shown.err


def test_show_tells_every_key(site: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    found = schema(reef(tmp_path, "recipe", "show", "mine", "--json"), "recipe")
    (size,) = (one for one in found["knobs"] if one["name"] == "batch_size")
    assert size == {
        "name": "batch_size", "type": "int", "default": 2, "env": "MINE_BATCH", "help": "samples per step", "choices": [],
        "gt": 0,
    }  # fmt: skip
    assert found["processor"] == "strange:Turned"
    shown = reef(tmp_path, "recipe", "show", "strange:Mine")
    assert "MINE_BATCH" in shown.out and "above 0" in shown.out
    refused(reef(tmp_path, "recipe", "show", "grpi"), 2, "did you mean grpo?")


def test_check_shows_the_smallest_order_and_exits_1(site: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    shown = reef(tmp_path, "recipe", "check", "mine", "--examples", "40", "--seed", "7")
    assert shown.code == 1
    assert "order: make_batch puts the samples" in shown.out and "arrives" in shown.out and "--seed 7" in shown.out
    ran = reef(tmp_path, "recipe", "check", "mine", "--examples", "40", "--seed", "7", "--json")
    assert ran.code == 1 and ran.document["schema"] == "reef.recipe_check/1"
    assert [one["id"] for one in ran.document["findings"] if one["state"] == "failed"] == ["order"]
    assert not ran.document["ok"]
    agreed = reef(tmp_path, "recipe", "check", "rwr", "--examples", "3", REEF_TRAINING_LOSS="sft")
    assert agreed.code == 1 and "loss family pg, but REEF_TRAINING_LOSS=sft" in agreed.out
    refused(reef(tmp_path, "recipe", "check"), 2, "name one recipe")


def test_check_and_the_boot_compare_the_flags_of_a_slime_driver(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    told = "reef:\n  recipe: pg\n  upstream_url: http://127.0.0.1:1\ntraining:\n  slime_flags: --loss-type sft_loss\n"
    file.write_text(told, encoding="utf-8")
    ran = reef(tmp_path, "recipe", "check", "-c", str(file), "--examples", "2")
    assert ran.code == 1 and "training.slime_flags has --loss-type sft_loss" in ran.out
    flags = "--loss-type policy_loss --advantage-estimator=grpo --use-rollout-logprobs --lr 1e-6"
    file.write_text(told.replace("--loss-type sft_loss", flags), encoding="utf-8")
    assert reef(tmp_path, "recipe", "check", "-c", str(file), "--examples", "2").code == 0


def test_bench_measures_and_an_interrupt_leaves_what_it_has(site: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    found = schema(reef(tmp_path, "recipe", "bench", "mine", "--records", "300", "--json"), "recipe_bench")
    assert [row["what"] for row in found["rows"]] == [
        "ingest", "batch", "batch, slowest", "preparer", "memory per waiting report", "replay after a restart",
    ]  # fmt: skip
    assert all(row["value"] > 0 for row in found["rows"]) and not found["stopped"]
    shown = reef(tmp_path, "recipe", "bench", "strange:Interrupted", "--records", "300")
    assert shown.code == 130 and "ingest" in shown.out and "preparer" not in shown.out
