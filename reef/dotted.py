"""imported(): what a setting names by its dotted path. The one place where code that is not ours is found.

Knows nothing of what it finds; the caller checks that. Used for recipes, preparers, loss families and backends.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from reef.errors import BadConfig, ReefError


def imported(path: str, what: str, field: str | None = None) -> Any:
    """The object at ``package.module:name`` (or ``package.module.name``).

    Raises BadConfig that calls it ``what`` ("recipe", "step preparer"), whatever its module raises while it is imported.
    """
    module, _, name = path.rpartition(":" if ":" in path else ".")
    if not module or not name:
        raise BadConfig(f"{what} {path!r} is no path to an object", hint="write it as package.module:name", field=field)
    try:
        found = importlib.import_module(module)
    except ReefError:
        raise
    except Exception as error:  # the edge to code that is not ours: a module may raise anything
        hint = "is its package installed, or its folder on PYTHONPATH?" if isinstance(error, ImportError) else ""
        raise BadConfig(f"{what} {path!r}: {type(error).__name__}: {error}", hint=hint, field=field) from error
    if not hasattr(found, name):
        raise BadConfig(f"{what} {path!r}: module {module} has no {name!r}", field=field)
    return getattr(found, name)


def reachable_from(path: str, folder: Path) -> None:
    """Let ``path`` be imported when its package lies in ``folder`` or holds it: a recipe needs no PYTHONPATH beside its YAML.

    What can be imported otherwise keeps its place: the folder is looked through last.
    """
    base, top = folder.absolute(), re.split("[.:]", path)[0]
    while (base / "__init__.py").is_file():
        base = base.parent
    there = (base / top / "__init__.py").is_file() or (base / f"{top}.py").is_file()
    if ":" in path and there and str(base) not in sys.path:
        sys.path.append(str(base))
