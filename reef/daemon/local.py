"""What the CLI needs from this machine without a daemon: recipe kinds, the torch version, fetching the model."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from reef.config import Config


def torch_version() -> str | None:
    """The installed PyTorch, None for none; does not import it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def check_recipe(config: Config) -> None:
    """Raise BadConfig when the recipe does not exist, or a key is neither the service's nor the recipe's."""
    from reef.recipes import recipe_class_for

    recipe_class_for(config.service.recipe or "record").service_config(config.recipe_settings)


def config_rows(config: Config) -> dict[str, dict[str, Any]]:
    """Every key of the service and of its recipe with value and origin; raises as ``check_recipe``."""
    from reef.recipes import recipe_class_for

    recipe = recipe_class_for(config.service.recipe or "record")
    given = recipe.service_config(config.recipe_settings)
    knobs: dict[str, Any] = {}
    for name, item in recipe.knobs().items():
        setting = config.recipe_settings.get(name)
        origin = setting.origin if setting is not None else f"env {item.metadata['reef'].env}"
        knobs[name] = (item, given[name], origin) if name in given else (item, item.default, "default")
    return config.shown(knobs)


def recipes() -> list[dict[str, str]]:
    """The registered kinds with what they update."""
    from reef.recipes import recipe_class_for, recipe_kinds
    from reef.recipes.base import WeightTrainingRecipe

    rows = []
    for kind in recipe_kinds():
        cls = recipe_class_for(kind)
        surface = "weights" if issubclass(cls, WeightTrainingRecipe) else cls(None).build_surface().kind
        rows.append({"kind": kind, "surface": surface, "summary": cls.summary})
    return rows


def pull_model(folder: Path, progress: Callable[[str, int, int | None], None]) -> None:
    """Fetch and convert the embedded model into ``folder``; ``progress(stage, done, total)`` is called as it goes."""
    from reef.train.torch_runtime.pull import pull

    pull(folder, progress)
