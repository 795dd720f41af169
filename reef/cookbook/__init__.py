"""The cookbook as a package: ``reef.cookbook.gepa`` is the folder ``recipes/gepa``, of a checkout or of the wheel.

A folder with recipe.py is a recipe kind of its name, and ``RECIPE`` in it is the class. Nothing is read before it is asked for.
"""

from __future__ import annotations

from pathlib import Path

_REEF = Path(__file__).parents[1]
__path__ = [str(one) for one in (_REEF / "_bundled" / "recipes", _REEF.parent / "recipes") if one.is_dir()][:1]


def kinds() -> tuple[str, ...]:
    """Names of the cookbook's recipes, sorted."""
    return tuple(sorted(file.parent.name for folder in __path__ for file in Path(folder).glob("*/recipe.py")))
