"""Adapters as data: how one agent program is installed, configured and started. Knows no agent by name.

An adapter is a folder with ``adapter.toml`` and its templates: ours, or a stranger's by an entry point of ``reef.adapters``.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reef.errors import BadConfig, NotFound
from reef.harness.tree import KINDS

_TARGETS = ("file", "env", "flag")


@dataclass(frozen=True, slots=True)
class Program:
    """What runs. ``start`` may name {node}, {program} (its folder) and {python}; no ``package``: it comes with Reef.

    ``node`` is the oldest Node.js it runs on; ``scripts``: its install scripts must run.
    """

    start: tuple[str, ...]
    package: str = ""
    version: str = ""
    node: str = ""
    scripts: bool = False
    size_mb: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """The agent's own configuration: ``template`` plus what ``config`` entries may set (``keys``, top level).

    Exactly one target: ``file`` in its configuration folder, ``env`` (one variable holds the JSON) or ``flag`` (key=value).
    """

    template: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    file: str = ""
    env: str = ""
    flag: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: ``env`` and ``unset`` variables; ``headless`` holds {prompt}; ``transcripts`` is a glob in the data folder.

    ``boxed`` and ``boxed_env`` take the place of ``headless`` and add to ``env`` in a sandbox of Reef's, where nobody can be
    asked and nothing of the host can be harmed: an agent that asks before it acts, or brings a sandbox of its own, is told so.
    """

    env: Mapping[str, str]
    unset: tuple[str, ...] = ()
    headless: tuple[str, ...] = ()
    boxed: tuple[str, ...] = ()
    boxed_env: Mapping[str, str] = field(default_factory=dict)
    interactive: tuple[str, ...] = ()
    transcripts: str = ""


@dataclass(frozen=True, slots=True)
class Wrap:
    """How the user's own copy of the agent is pointed at Reef: file (from the home folder) to what is put into it.

    ``folder_env`` names the variable that moves ``folder``, where the files lie. ``own_login``: the agent goes on logging in
    to its provider by itself.
    """

    folder: str = ""
    folder_env: str = ""
    needs_model: bool = True
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own_login: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One agent. ``files`` maps a kind to a path with {name}, or to one path for all entries of that kind."""

    name: str
    summary: str
    program: Program
    files: Mapping[str, str]
    suffixes: tuple[str, ...]
    settings: Settings
    binding: Mapping[str, Mapping[str, Any]]
    once: Mapping[str, Mapping[str, Any]]
    run: Run
    wrap: Wrap


def adapters() -> dict[str, Path]:
    """Folders by name, ours first; nothing is read yet."""
    from importlib.metadata import entry_points  # every command imports this module, few ask for adapters
    from importlib.util import find_spec

    here = Path(__file__).parents[1]
    ours = next(
        (one for one in (here / "_bundled" / "harness_adapters", here.parent / "harness_adapters") if one.is_dir()),
        None,
    )
    found = {one.parent.name: one.parent for one in sorted(ours.glob("*/adapter.toml"))} if ours is not None else {}
    for entry in entry_points(group="reef.adapters"):
        try:
            spec = find_spec(entry.value)  # a package whose folder holds adapter.toml; it is found, not run
        except ImportError:
            spec = None
        where = spec.submodule_search_locations if spec is not None else None
        found.setdefault(entry.name, Path(next(iter(where), "")) if where else Path(entry.value))
    return found


def readable() -> tuple[list[Adapter], list[BadConfig]]:
    """All adapters that can be read, and what is wrong with the others: a stranger's broken one takes nothing down."""
    good, bad = [], []
    for name in adapters():
        try:
            good.append(adapter(name))
        except BadConfig as error:
            bad.append(error)
    return good, bad


def adapter(name: str) -> Adapter:
    """One adapter, read and checked; raises NotFound, or BadConfig with the file and what is wrong in it."""
    known = adapters()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise NotFound(f"no adapter {name!r}", hint=f"{guess}known: {', '.join(known)}", code="no_adapter")
    path = known[name] / "adapter.toml"
    try:
        return _read(name, path, tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadConfig(f"{path}: {type(error).__name__}: {error}", hint="compare it with another adapter") from error


def _read(name: str, path: Path, table: dict[str, Any]) -> Adapter:
    def template(file: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((path.parent / file).read_text(encoding="utf-8"))
        return found

    def lists(section: dict[str, Any]) -> dict[str, Any]:
        return {key: tuple(value) if isinstance(value, list) else value for key, value in section.items()}

    settings = dict(table.get("settings", {}))
    if "template" in settings:
        settings["template"] = template(settings["template"])
    wrap = dict(table.get("wrap", {}))
    for kind in {"files", "own_login"} & wrap.keys():
        wrap[kind] = {file: template(one) for file, one in wrap[kind].items()}
    found = Adapter(
        name,
        table["summary"],
        Program(**lists(table["program"])),
        table["files"],
        tuple(table.get("suffixes", ())),
        Settings(**lists(settings)),
        {file: template(one) for file, one in table.get("binding", {}).items()},
        {file: template(one) for file, one in table.get("once", {}).items()},
        Run(**lists(table["run"])),
        Wrap(**wrap),
    )
    if odd := set(found.files) - set(KINDS):
        raise ValueError(f"files names the kinds {', '.join(sorted(odd))}")
    if settings and sum(bool(getattr(found.settings, one)) for one in _TARGETS) != 1:
        raise ValueError(f"settings has exactly one of {', '.join(_TARGETS)}")
    return found
