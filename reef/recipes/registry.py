"""Recipe kinds by name. Ours register on import of reef.recipes, or are a folder of the cookbook, read when it is asked for.

A stranger's are found by dotted path or entry point.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TypeVar

from reef import cookbook
from reef.dotted import imported
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


def _checked(kind: str, found: object) -> type[Recipe]:
    if not isinstance(found, type) or not issubclass(found, Recipe):
        raise BadConfig(f"recipe {kind!r} is not a subclass of reef.recipes.base.Recipe", field="recipe")
    return found
