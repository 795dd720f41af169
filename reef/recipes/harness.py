"""harness: the model stays, and the files of the agent's harness are what is versioned.

Its seed is served from the moment a scenario exists. It makes no steps. Recipes that do (evolve, and those of
the cookbook) inherit from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from reef.config import knob
from reef.errors import BadConfig, BadRequest
from reef.harness.tree import Entry, Tree
from reef.recipes.base import Recipe, Surface
from reef.recipes.registry import register_kind
from reef.records import RecordStore
from reef.train.harness_runtime import HarnessRuntime
from reef.train.loop import Trainer
from reef.train.processors.base import DataProcessor

DEFAULT_SEED = Tree.of(
    [
        Entry(
            "rules",
            "base",
            "Read what is there before you change it, and change no more than the task needs.\n"
            "When a check exists (tests, a linter, a build), run it before you say that you are done, and say what it showed.\n",
        )
    ]
)


@register_kind("harness")
@dataclass(frozen=True, kw_only=True)
class HarnessRecipe(Recipe):
    """Version the harness of an agent: rules, skills, commands, settings."""

    seed: Path | None = knob(
        None, "folder with the first harness (rules/NAME.md, skill/NAME.md ...)", env="REEF_HARNESS_SEED"
    )
    name: str = "harness"
    summary: ClassVar[str] = "version an agent's rules, skills and commands"

    def __post_init__(self) -> None:
        """A seed that is no tree ends the start."""
        super().__post_init__()
        self.seed_tree()

    def seed_tree(self) -> Tree:
        """The first tree; raises BadConfig that names the file and the rule."""
        if self.seed is None:
            return DEFAULT_SEED
        try:
            return Tree.from_folder(self.seed)
        except BadRequest as error:
            raise BadConfig(f"reef.seed: {error.message}", hint=error.hint, field="reef.seed") from error

    def build(self, scenario: str, records: RecordStore) -> Trainer:
        """A trainer whose r0 is the seed, on disk before it has a row."""
        runtime = self.runtime
        if (
            runtime is None or runtime.capabilities().surface != "harness"
        ):  # an engine's answers calls, it does not evolve
            home = records.store.path.parent if records.store.path is not None else None
            runtime = HarnessRuntime(home, self.seed_tree())
        return Trainer(
            scenario,
            records,
            runtime=runtime,
            processor=DataProcessor,
            config={},
            step_preparer="sft",
            recipe=self.name,
        )

    def build_surface(self) -> Surface:
        """The harness."""
        return Surface("harness")
