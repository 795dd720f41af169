"""From a tree to the files of one agent, and from a binding to what points it at a daemon. Pure: no disk, no clock.

``render`` knows no address; what does comes from ``bind`` (files, written for the owner only) and ``environment``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from reef.errors import BadRequest
from reef.harness.adapters import Adapter
from reef.harness.tree import Entry, Tree

_PLACE = re.compile(r"{(url|token|scenario|model|session|release|config|data|program|node|python|prompt)}")


@dataclass(frozen=True, slots=True)
class Binding:
    """Where one install gets its model: never part of a tree. ``token`` is not shown by repr."""

    url: str
    token: str = field(repr=False)
    scenario: str
    model: str

    def as_dict(self) -> dict[str, str]:
        """As JSON, with the token: for a file of its owner only."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Launch:
    """What one run is started with, beside the user's own arguments and environment."""

    env: Mapping[str, str]
    unset: tuple[str, ...]
    arguments: tuple[str, ...]


def render(tree: Tree, adapter: Adapter) -> dict[str, str]:
    """Files of the agent's configuration folder by relative path. Raises BadRequest for what the agent cannot take."""
    files: dict[str, str] = {}
    joined: dict[str, list[str]] = {}
    for one in tree:
        pattern = adapter.files.get(one.kind)
        if pattern is None or not takes(adapter, one):
            continue
        path = pattern.replace("{name}", one.name)
        joined.setdefault(path, []).append(one.text if one.text.endswith("\n") else f"{one.text}\n")
    for path, texts in joined.items():
        files[path] = "\n".join(texts)
    settings(tree, adapter)
    return files


def takes(adapter: Adapter, one: Entry) -> bool:
    """False for an entry that this agent has no place for; such a one is left out, and the install says so."""
    if one.kind == "config":
        return one.name == adapter.name
    if one.kind == "code_extension" and not one.name.endswith(adapter.suffixes):
        return False
    return one.kind in adapter.files


def settings(tree: Tree, adapter: Adapter) -> dict[str, Any]:
    """What the tree's ``config`` entry for this agent sets; raises BadRequest for a key that a harness may not set."""
    found = next((one.settings() for one in tree.of_kind("config") if one.name == adapter.name), {})
    for key in found:
        if key not in adapter.settings.keys:
            raise BadRequest(
                f"config/{adapter.name} sets {key[:80]!r}, which a harness may not",
                hint=f"it may set: {', '.join(adapter.settings.keys)}",
                field="entries",
            )
    return found


def bind(tree: Tree, adapter: Adapter, binding: Binding) -> dict[str, str]:
    """Files that hold the binding, by relative path; the settings file is among them, because it names the model."""
    values = binding.as_dict()
    files = {path: _json(filled(template, values)) for path, template in adapter.binding.items()}
    if adapter.settings.file and (document := _settings(tree, adapter, values)):
        files[adapter.settings.file] = _json(document)
    return files


def environment(
    tree: Tree, adapter: Adapter, binding: Binding, *, session: str, release: str, folders: Mapping[str, str]
) -> Launch:
    """The environment and first arguments of one run; ``folders`` has config and data."""
    values = {**binding.as_dict(), **folders, "session": session, "release": release}
    env = {name: filled(text, values) for name, text in adapter.run.env.items()}
    arguments: list[str] = []
    if adapter.settings.env:
        env[adapter.settings.env] = json.dumps(_settings(tree, adapter, values), ensure_ascii=False)
    if adapter.settings.flag:
        for key, value in flat(_settings(tree, adapter, values)).items():
            arguments += [adapter.settings.flag, f"{key}={json.dumps(value, ensure_ascii=False)}"]
    return Launch(env, adapter.run.unset, tuple(arguments))


def filled(template: Any, values: Mapping[str, str]) -> Any:
    """``template`` with every known {place} in its texts and keys replaced, once: a value is never read as a template."""
    if isinstance(template, str):
        return _PLACE.sub(lambda found: values.get(found[1], found[0]), template)
    if isinstance(template, Mapping):
        return {filled(key, values): filled(value, values) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return type(template)(filled(one, values) for one in template)
    return template


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects, ``over`` winning; objects within are merged, everything else is replaced."""
    found = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; a part with other characters is quoted, as TOML has it."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        part = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{part}.")
        else:
            found[f"{prefix}{part}"] = value
    return found


def _settings(tree: Tree, adapter: Adapter, values: Mapping[str, str]) -> dict[str, Any]:
    """The tree's settings under ours: what a harness sets never redirects the agent."""
    return merged(settings(tree, adapter), filled(adapter.settings.template, values))


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
