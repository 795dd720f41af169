"""Cookbook recipes are found as a checkout has them and as the wheel carries them, and each folder is complete."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from reef import cookbook
from reef.config import load
from reef.errors import BadConfig
from reef.recipes import recipe_class_for, recipe_kinds
from reef.runtime.testing import StubTrainingRuntime
from tests.faults.world import ROOT


@pytest.mark.parametrize("kind", cookbook.kinds())
def test_a_folder_of_the_cookbook_is_a_kind_with_all_that_belongs_to_it(kind: str, tmp_path: Path) -> None:
    folder = ROOT / "recipes" / kind
    assert kind in recipe_kinds() and f"({kind}/README.md)" in (ROOT / "recipes" / "README.md").read_text(
        encoding="utf-8"
    )
    assert "Where it differs" in (folder / "README.md").read_text(encoding="utf-8")
    environ = {"REEF_UPSTREAM_URL": "http://127.0.0.1:1/v1", "REEF_UPSTREAM_MODEL": "m"}
    config = load(folder / "serve.yaml", environ=environ, home=tmp_path)
    found = recipe_class_for(config.service.recipe)
    assert found.from_environment(StubTrainingRuntime(), config.recipe_settings, {}).name == kind
    assert recipe_class_for(f"reef.cookbook.{kind}.recipe:{found.__name__}") is found


def test_it_is_read_only_when_it_is_asked_for() -> None:
    code = (
        "import sys, reef.recipes; reef.recipes.recipe_kinds();"
        "print([one for one in sys.modules if one.startswith('reef.cookbook.')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"


def test_an_installed_reef_finds_what_the_wheel_carries(tmp_path: Path) -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    skip = shutil.ignore_patterns("__pycache__")
    for package in wheel["packages"]:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=skip)
    for source, target in wheel["force-include"].items():
        shutil.copytree(ROOT / source, tmp_path / target, ignore=skip)
    code = (
        "from reef.dotted import imported; from reef.recipes import recipe_class_for;"
        "found = recipe_class_for('gepa'); print(imported(found.propose, 'x').__code__.co_filename)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )
    assert ran.stdout.strip() == str(tmp_path / "reef" / "_bundled" / "recipes" / "gepa" / "reflect.py"), ran.stderr


def test_a_name_that_is_nearly_one_is_guessed() -> None:
    with pytest.raises(BadConfig) as error:
        recipe_class_for("gepaa")
    assert "did you mean gepa?" in str(error.value.hint)
