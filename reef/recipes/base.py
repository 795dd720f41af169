"""Recipe and WeightTrainingRecipe: one frozen dataclass says what traffic trains and how. The engine runs the rest.

Knows nothing of HTTP or of who runs it. Built by daemon.app for each scenario, and by smoke tests.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from reef.config import Knob, Service, Setting, knob, parse_value, unknown_key
from reef.core.reports import ReportSchema
from reef.errors import BadConfig
from reef.records import RecordStore
from reef.runtime import TrainingRuntime
from reef.train.algos.preparers import preparer_for
from reef.train.loop import Trainer
from reef.train.processors.base import DataProcessor
from reef.train.slime_runtime.training_algos.registry import loss_family as family_named


@dataclass(frozen=True, slots=True)
class Surface:
    """What a recipe updates: ``weights``, ``harness`` or ``nothing``."""

    kind: str


@dataclass(frozen=True)
class Recipe:
    """Base of all recipes. ``runtime`` is positional; everything a subclass declares with knob() is a config key."""

    runtime: TrainingRuntime | None
    name: str = field(default="", kw_only=True)

    report_schema: ClassVar[ReportSchema | None] = ReportSchema()
    """What a report must hold, or None when the recipe takes no reports."""
    summary: ClassVar[str] = ""
    """One line for ``reef recipe list``."""
    work: ClassVar[str] = "stream"
    """How work arrives: ``stream`` of tasks, ``chat`` session, or ``research`` (a problem is worked on in many rollouts)."""
    stateful: ClassVar[bool] = False
    """True: algorithm state is carried from step to step (beside a count of them)."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What must be there beside calls, in a word each: tasks, teacher, gpu. Scores and a judge need not be said."""
    takes_requests: ClassVar[bool] = False
    """True: a change can be asked for in words, or handed in."""
    implemented: ClassVar[bool] = True
    """False: the kind resolves, and build() says that it does not exist yet."""

    def __post_init__(self) -> None:
        """Parse and check every knob; an override must call super().__post_init__() first."""
        hints = typing.get_type_hints(type(self))
        for item in dataclasses.fields(self):
            rule = item.metadata.get("reef")
            if isinstance(rule, Knob):
                setting = Setting(getattr(self, item.name), type(self).__name__)
                object.__setattr__(self, item.name, parse_value(setting, hints[item.name], rule, item.name))

    def build(self, scenario: str, records: RecordStore) -> Trainer | DataProcessor:
        """The scenario's trainer, or a bare processor where nothing is updated."""
        raise NotImplementedError

    def build_surface(self) -> Surface:
        """What this recipe updates."""
        return Surface("nothing")

    @classmethod
    def example_report(cls, number: int) -> Mapping[str, Any]:
        """What the ``number``-th report may hold beside its references; ``reef recipe check`` and ``bench`` send such ones.

        Override it where the processor reads more of a report than score, feedback and ``metadata.group``.
        """
        feedback = ("too long", "just right", "")[number % 3]
        return {"score": (1.0, 0.0, 0.5)[number % 3], "feedback": feedback, "metadata": {"group": f"g{number // 2}"}}

    @classmethod
    def knobs(cls) -> dict[str, dataclasses.Field[Any]]:
        """Configuration keys by name."""
        return {item.name: item for item in dataclasses.fields(cls) if isinstance(item.metadata.get("reef"), Knob)}

    @classmethod
    def service_config(
        cls, settings: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
    ) -> dict[str, Any]:
        """Knob values from configuration over environment over default.

        ``settings`` maps key to value (or Setting, for messages with a line). A key that is no knob raises BadConfig with
        the accepted keys and the nearest name.
        """
        given = {
            key: value if isinstance(value, Setting) else Setting(value, "config")
            for key, value in (settings or {}).items()
        }
        fields, hints = cls.knobs(), typing.get_type_hints(cls)
        for key in given.keys() - fields.keys():
            known = {*fields, *(item.name for item in dataclasses.fields(Service))}
            raise unknown_key(f"reef.{key}", given[key].origin, sorted(f"reef.{name}" for name in known))
        values: dict[str, Any] = {}
        for name, item in fields.items():
            rule: Knob = item.metadata["reef"]
            setting = given.get(name)
            if setting is None and rule.env is not None and environ.get(rule.env, "") != "":
                setting = Setting(environ[rule.env], f"env {rule.env}")
            if setting is not None:
                values[name] = parse_value(setting, hints[name], rule, f"reef.{name}")
        return values

    @classmethod
    def from_environment(
        cls,
        runtime: TrainingRuntime | None,
        settings: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> typing.Self:
        """The recipe with its knobs taken from configuration, environment and defaults."""
        return cls(runtime, **cls.service_config(settings, environ))


@dataclass(frozen=True, kw_only=True)
class WeightTrainingRecipe(Recipe):
    """Base of recipes that update model weights: bind a processor, a preparer and a loss family."""

    batch_size: int = knob(4, "samples per step", gt=0)
    checkpoint_every_n_versions: int = knob(
        1, "how often a Slime driver saves a checkpoint; torch saves every release", gt=0
    )
    max_staleness: int | None = knob(16, "drop samples generated more than this many releases ago", ge=0)

    step_preparer: ClassVar[str] = ""
    loss_family: ClassVar[str] = ""
    processor: ClassVar[type[DataProcessor]]
    report_schema: ClassVar[ReportSchema | None] = ReportSchema(score="required")
    needs: ClassVar[tuple[str, ...]] = ("model to train",)

    def __post_init__(self) -> None:
        """Check that preparer, family, processor and runtime fit together."""
        super().__post_init__()
        kind = type(self).__name__
        if not isinstance(getattr(type(self), "processor", None), type):
            raise BadConfig(f"{kind} declares no processor", hint="processor: ClassVar[type[DataProcessor]] = ...")
        family = family_named(self.loss_family)
        preparer_for(self.preparer_name())
        if self.runtime is not None:
            able = self.runtime.capabilities()
            if able.surface != "weights":
                raise BadConfig(f"{kind} updates weights, but the runtime updates {able.surface}")
            if family.name not in able.loss_families:
                raise BadConfig(
                    f"{kind} needs loss family {family.name}, which this runtime has not",
                    hint=f"it has: {', '.join(sorted(able.loss_families))}",
                )

    def build(self, scenario: str, records: RecordStore) -> Trainer:
        """A trainer over ``records`` with the declared processor and preparer."""
        if self.runtime is None:
            raise BadConfig(
                f"recipe {self.name} needs a training runtime", hint="give model_path, or an SGLang address"
            )
        return Trainer(
            scenario,
            records,
            runtime=self.runtime,
            processor=self.processor,
            config=self.processor_config(),
            step_preparer=self.preparer_name(),
            recipe=self.name,
        )

    def build_surface(self) -> Surface:
        """Weights."""
        return Surface("weights")

    def preparer_name(self) -> str:
        """The step preparer; override when a knob chooses between several."""
        return self.step_preparer

    def processor_config(self) -> dict[str, Any]:
        """The knob values the processor is given; override to rename or add keys."""
        return {name: getattr(self, name) for name in self.knobs()}
