"""Every example's configuration is complete: the daemon could be built from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reef.config import load
from reef.recipes import recipe_class_for, recipe_kinds
from reef.runtime.testing import StubTrainingRuntime

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("kind", recipe_kinds())
def test_each_kind_has_an_example_that_loads(kind: str, tmp_path: Path) -> None:
    environ = {
        "REEF_UPSTREAM_URL": "http://127.0.0.1:1/v1",
        "REEF_MODEL_PATH": str(tmp_path),
        "REEF_UPSTREAM_MODEL": "m",
    }
    config = load(EXAMPLES / kind / "serve.yaml", environ=environ, home=tmp_path)
    recipe = recipe_class_for(config.service.recipe).from_environment(StubTrainingRuntime(), config.recipe_settings, {})
    assert recipe.name == kind
