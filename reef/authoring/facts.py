"""What each recipe says of itself: its cell, what it needs, its knobs. Read from the class; there is no second table.

Called by ``reef recipe list`` and ``reef recipe show``.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any

from reef.dotted import imported
from reef.errors import BadConfig, ReefError
from reef.recipes.base import Recipe
from reef.recipes.registry import Source, recipe_class_for, recipe_sources
from reef.train.processors.derived import DerivedProcessor

WORKS = {"stream": "stream of tasks", "chat": "chat session", "research": "autoresearch"}
SURFACES = ("weights", "harness", "nothing")


@dataclass(frozen=True, slots=True)
class Broken:
    """A recipe that cannot be imported, with the reason in a sentence."""

    kind: str
    origin: str
    path: str
    error: str


def listed() -> tuple[list[dict[str, Any]], list[Broken]]:
    """Every recipe with a name, and those that cannot be read."""
    rows: list[dict[str, Any]] = []
    broken: list[Broken] = []
    for source in recipe_sources():
        try:
            rows.append({"kind": source.kind, "origin": source.origin, "path": source.path, **facts(_class(source))})
        except (Exception, SystemExit) as error:  # the edge to code that is not ours
            broken.append(Broken(source.kind, source.origin, source.path, _said(error)))
    return rows, broken


def facts(cls: type[Recipe]) -> dict[str, Any]:
    """What a recipe's class says of it, as JSON."""
    surface = cls.build_surface(cls.__new__(cls)).kind  # without settings, which some cannot be made without
    schema, derived = cls.report_schema, issubclass(getattr(cls, "processor", object), DerivedProcessor)
    scores = ["scores"] if surface != "nothing" and schema is not None and schema.score == "required" else []
    return {
        "surface": surface,
        "work": cls.work,
        "stateful": cls.stateful,
        "needs": [*scores, *(["judge"] if derived else []), *cls.needs],
        "summary": cls.summary,
        "implemented": cls.implemented,
    }


def shown(kind: str) -> dict[str, Any]:
    """All that ``reef recipe show`` tells of one recipe; raises BadConfig as ``recipe_class_for``."""
    cls = recipe_class_for(kind)
    parts = {
        "preparer": getattr(cls, "step_preparer", None),
        "loss_family": getattr(cls, "loss_family", None),
        "processor": _path(getattr(cls, "processor", None)),
        "backend": _path(getattr(cls, "backend", None)),
    }
    return {
        "kind": kind,
        "path": _path(cls),
        **facts(cls),
        **{name: value for name, value in parts.items() if value},
        "knobs": knobs(cls),
    }


def knobs(cls: type[Recipe]) -> list[dict[str, Any]]:
    """Every knob: name, type, default, environment variable, bounds, help."""
    hints = typing.get_type_hints(cls)
    rows = []
    for name, item in cls.knobs().items():
        rule, default = item.metadata["reef"], item.default
        bounds = {"gt": rule.gt, "ge": rule.ge, "le": rule.le}
        rows.append(
            {
                "name": name,
                "type": _type(hints[name]),
                "default": None if default is dataclasses.MISSING else _plain(default),
                "env": rule.env,
                "help": rule.help,
                "choices": list(rule.choices),
                **{bound: value for bound, value in bounds.items() if value is not None},
            }
        )
    return rows


def _class(source: Source) -> type[Recipe]:
    found = imported(source.path, "recipe", "recipe")
    if not isinstance(found, type) or not issubclass(found, Recipe):
        raise BadConfig(f"{source.path} is not a subclass of reef.recipes.base.Recipe")
    return found


def _said(error: BaseException) -> str:
    said = error.message if isinstance(error, ReefError) else f"{type(error).__name__}: {error}"
    return " ".join(said.split())


def _path(found: Any) -> str | None:
    return f"{found.__module__}:{found.__qualname__}" if isinstance(found, type) else None


def _type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("pathlib.", "").replace(" | None", "?")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
