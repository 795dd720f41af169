"""The one file that gives keys to others: ``keys.yaml`` in the configuration directory, binding id to keys.

Knows which ids there are from the classes it is given; what it cannot use is told, never raised.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from pathlib import Path

import platformdirs
import yaml
from textual.binding import Binding, BindingType


def keys_file() -> Path:
    """Where it lies; REEF_HOME has no say, for keys belong to a person and not to a daemon."""
    return platformdirs.user_config_path("reef") / "keys.yaml"


def read_keys(path: Path, known: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """The keymap of ``path`` and sentences about what in it is not used."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError, yaml.YAMLError) as error:
        return {}, [f"{path.name} is not read: {' '.join(str(error).split())[:160]}"]
    if found is None:
        return {}, []
    if not isinstance(found, dict):
        return {}, [f"{path.name} is not read: it must hold lines like  app.quit: q"]
    keymap, wrong = {}, []
    for name, keys in found.items():
        if str(name) not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            wrong.append(f"{path.name}: no key has the id {str(name)!r}" + (f"; meant {near[0]}?" if near else ""))
        elif not isinstance(keys, str) or not all(part.strip() for part in keys.split(",")):
            wrong.append(f"{path.name}: {name} needs a key, or keys with commas between them")
        else:
            keymap[str(name)] = keys
    return keymap, wrong


def ids_of(bindings: Iterable[Iterable[BindingType]]) -> set[str]:
    """The ids of these bindings."""
    return {one.id for group in bindings for one in group if isinstance(one, Binding) and one.id}
