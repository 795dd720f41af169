"""What check and bench look at: a recipe, made as the daemon makes it, with its processor, its settings and its preparer.

Knows nothing of what is looked for. TARGET is a kind, ``package.module:Class``, or what a configuration names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reef.config import Config, Setting, load
from reef.dotted import reachable_from
from reef.errors import BadConfig, BadRequest
from reef.recipes.base import Recipe
from reef.recipes.registry import recipe_class_for, recipe_of
from reef.records import RecordStore
from reef.runtime.testing import StubTrainingRuntime
from reef.train.loop import Prepare, Trainer
from reef.train.processors.base import DataProcessor
from reef.train.slime_runtime.training_algos.registry import loss_families

_TRAINERS_OWN = ("first_batch", "reserved", "verdict_memory")
_ANSWERED = {"REEF_UPSTREAM_URL": "http://127.0.0.1:1/v1", "REEF_UPSTREAM_MODEL": "model", "REEF_MODEL_PATH": "model"}
"""Who answers calls does not matter here, so that a file that leaves it to the environment can be looked at."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A recipe and what it is made of; ``prepare`` is None where nothing is updated."""

    target: str
    recipe: Recipe
    config: Config | None
    processor: type[DataProcessor]
    settings: Mapping[str, Any]
    prepare: Prepare | None

    @property
    def surface(self) -> str:
        """What it updates."""
        return self.recipe.build_surface().kind


def named(target: str | None, file: Path | None, environ: Mapping[str, str]) -> tuple[type[Recipe], Config | None]:
    """The class that is meant, and the configuration when one was given; raises BadRequest or BadConfig."""
    if (target is None) == (file is None):
        raise BadRequest("name one recipe", hint="a kind, package.module:Class, or -c serve.yaml")
    if target is not None:
        reachable_from(target, Path.cwd())
        return recipe_class_for(target), None
    config = load(file, environ={**_ANSWERED, **environ})
    return recipe_of(config), config


@contextmanager
def subject(cls: type[Recipe], config: Config | None, environ: Mapping[str, str]) -> Iterator[Subject]:
    """The recipe, built once on a store of its own; raises BadConfig as the daemon would at its start."""
    given = dict(config.recipe_settings) if config is not None else {}
    surface = cls.build_surface(cls.__new__(cls)).kind
    with TemporaryDirectory(prefix="reef-check-") as home:
        if "tasks" in cls.knobs() and cls.knobs()["tasks"].default is None and "tasks" not in given:
            given["tasks"] = Setting(_some_task(Path(home)), "reef recipe check")
        families = frozenset({*loss_families(), str(getattr(cls, "loss_family", ""))})
        runtime = StubTrainingRuntime("weights", families) if surface == "weights" else None
        recipe = cls.from_environment(runtime, given, environ)
        records = RecordStore(Path(home) / "reef.db")
        try:
            built = recipe.build("check", records)
            target = f"{cls.__module__}:{cls.__qualname__}"
            context = built.processor.context if isinstance(built, Trainer) else built.context
            settings = {name: value for name, value in context.config.items() if name not in _TRAINERS_OWN}
            if isinstance(built, Trainer):
                yield Subject(target, recipe, config, type(built.processor), settings, built.prepare)
            elif isinstance(built, DataProcessor):
                yield Subject(target, recipe, config, type(built), settings, None)
            else:
                raise BadConfig(
                    f"{cls.__name__}.build returned {type(built).__name__}, no Trainer and no DataProcessor"
                )
            built.close()
        finally:
            records.close()


def _some_task(home: Path) -> Path:
    """A folder with a task, for a recipe that needs one and was given none: nothing here runs it."""
    task = home / "tasks" / "any"
    task.mkdir(parents=True)
    (task / "prompt.md").write_text("Anything.\n", encoding="utf-8")
    (task / "check.sh").write_text("exit 0\n", encoding="utf-8")
    return task.parent
