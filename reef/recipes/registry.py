"""Recipe kinds by name. Ours register on import of reef.recipes, or are a folder of the cookbook, read when it is asked for.

A stranger's are found by dotted path or entry point.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TypeVar

from reef import cookbook
from reef.config import Config
from reef.dotted import imported, reachable_from
from reef.errors import BadConfig
from reef.recipes.base import Recipe

R = TypeVar("R", bound=type[Recipe])
_KINDS: dict[str, type[Recipe]] = {}


def register_kind(kind: str, *, implemented: bool = True) -> Callable[[R], R]:
    """Class decorator: make ``kind`` selectable by name. A kind registered twice raises at import."""

    def add(cls: R) -> R:
        if kind in _KINDS:
            raise BadConfig(f"recipe kind {kind!r} is already registered by {_KINDS[kind].__module__}")
        cls.implemented = implemented
        _KINDS[kind] = cls
        return cls

    return add


def recipe_kinds() -> tuple[str, ...]:
    """Names of the registered kinds and of the cookbook's, sorted."""
    return tuple(sorted({*_KINDS, *cookbook.kinds()}))


@dataclass(frozen=True, slots=True)
class Source:
    """A recipe that can be named: ``origin`` is bundled, cookbook or the distribution that brings it; ``path`` its class."""

    kind: str
    origin: str
    path: str


def recipe_sources() -> list[Source]:
    """Every recipe that has a name, sorted; nothing of the cookbook's or a stranger's is imported."""
    found = [Source(kind, "bundled", f"{cls.__module__}:{cls.__name__}") for kind, cls in _KINDS.items()]
    found += [Source(kind, "cookbook", f"reef.cookbook.{kind}.recipe:RECIPE") for kind in cookbook.kinds()]
    for entry in entry_points(group="reef.recipes"):
        found.append(Source(entry.name, entry.dist.name if entry.dist else "entry point", entry.value))
    return sorted(found, key=lambda one: one.kind)


def recipe_class_for(kind: str) -> type[Recipe]:
    """The class for a registered kind, one of the cookbook, an entry point of ``reef.recipes``, or ``package.module:Class``.

    Raises BadConfig when it does not exist, does not import, or is no Recipe.
    """
    if kind in _KINDS:
        return _KINDS[kind]
    if kind in cookbook.kinds():
        return _checked(kind, imported(f"reef.cookbook.{kind}.recipe:RECIPE", "recipe", "recipe"))
    if ":" in kind:
        return _checked(kind, imported(kind, "recipe", "recipe"))
    for entry in entry_points(group="reef.recipes"):
        if entry.name == kind:
            return _checked(kind, imported(entry.value, "recipe", "recipe"))
    near = difflib.get_close_matches(kind, recipe_kinds(), n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise BadConfig(
        f"no recipe {kind!r}",
        hint=f"{guess}known: {', '.join(recipe_kinds())}, or package.module:Class",
        field="recipe",
    )


def recipe_of(config: Config) -> type[Recipe]:
    """The class that a configuration names; one that lies beside the file is found without PYTHONPATH."""
    kind = config.service.recipe or "record"
    if config.source is not None:
        reachable_from(kind, config.source.parent)
    return recipe_class_for(kind)


def family_of(kind: str) -> str:
    """The loss family of a recipe kind, empty for none; raises as ``recipe_class_for``."""
    return str(getattr(recipe_class_for(kind), "loss_family", ""))


def _checked(kind: str, found: object) -> type[Recipe]:
    if not isinstance(found, type) or not issubclass(found, Recipe):
        raise BadConfig(f"recipe {kind!r} is not a subclass of reef.recipes.base.Recipe", field="recipe")
    return found
