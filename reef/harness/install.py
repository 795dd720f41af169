"""Brings an install to a release: writes what changed, keeps what the user changed, and can undo all of it.

A manifest holds the hash of everything that was written. Knows no daemon: the caller hands in the release and the binding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reef.errors import Conflict
from reef.harness import place as at
from reef.harness.adapters import Adapter
from reef.harness.place import Place
from reef.harness.render import Binding, bind, filled, render, takes
from reef.harness.tree import FILE, Tree

MANIFEST, BINDING, RUNS = "manifest.json", "binding.json", "runs.json"
NEW = ".reef-new"


@dataclass(frozen=True, slots=True)
class Served:
    """What a daemon serves one scenario with: the release, and its tree."""

    release_id: str
    tree: Tree


@dataclass(slots=True)
class Done:
    """What an install did, by path below the agent's configuration folder. ``kept``: the user's edit won."""

    release_id: str
    before: str | None
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """False: already current."""
        return bool(self.written or self.removed) or self.before != self.release_id


@dataclass(frozen=True, slots=True)
class Undone:
    """What an uninstall left: ``kept`` are files that are the user's, or the agent's own (sessions)."""

    removed: int
    kept: list[str]


def sync(place: Place, adapter: Adapter, served: Served, binding: Binding) -> Done:
    """Make the install what ``served`` says. Nothing is written when it is that already."""
    wanted = {**render(served.tree, adapter), **bind(served.tree, adapter, binding)}
    clash = sorted(path for path in wanted if path.endswith(NEW))
    if clash:
        raise Conflict(f"{clash[0]} is no name of a harness file", code="name")
    with place.locked():
        manifest = place.read(MANIFEST) or {}
        known: dict[str, dict[str, Any]] = manifest.get("files", {})
        done = Done(served.release_id, manifest.get("release_id"))
        done.left_out = [f"{one.kind}/{one.name}" for one in served.tree if not takes(adapter, one)]
        once = {
            path: json.dumps(filled(template, binding.as_dict()), indent=2) + "\n"
            for path, template in adapter.once.items()
            if path not in known
        }
        # What is about to be written is known beforehand: after a crash it is still ours, and no edit of the user.
        coming: dict[str, list[str]] = manifest.get("coming", {})
        for path, text in {**once, **wanted}.items():
            if known.get(path, {}).get("hash") != (one := at.digest(text)) and one not in coming.get(path, ()):
                coming[path] = [*coming.get(path, ()), one]
        bases: list[str] = manifest.get("coming_bases", [])
        if coming:
            now = [text for path, text in wanted.items() if path == adapter.settings.file]
            place.write(MANIFEST, {**manifest, "coming": coming, "coming_bases": [*bases, *now]})
        files: dict[str, dict[str, Any]] = {path: one for path, one in known.items() if path in adapter.once}
        for path, text in once.items():
            current = place.text(path)
            if current is None:
                place.put(path, text)
                done.written.append(path)
            if current in (None, text):
                files[path] = {"hash": at.digest(text), "once": True}
        for path, text in sorted(wanted.items()):
            mine = {known.get(path, {}).get("hash"), *coming.get(path, ())}
            if path == adapter.settings.file:
                files[path] = _settle_settings(place, path, text, known.get(path, {}), bases, done)
            else:
                files[path] = _settle(place, path, text, mine, known.get(path, {}), done)
        for path in sorted((known.keys() | coming.keys()) - files.keys() - adapter.once.keys()):
            _take_away(place, path, known.get(path, {}), coming.get(path, ()), done)
        place.write(BINDING, {**(place.read(BINDING) or {}), **binding.as_dict()})
        place.write(FILE, served.tree.as_dict())
        place.write(
            MANIFEST,
            {
                "version": 1,
                "adapter": adapter.name,
                "program": adapter.program.version,
                "scenario": place.scenario,
                "release_id": served.release_id,
                "content_id": served.tree.content_id,
                "files": files,
            },
        )
    return done


def uninstall(place: Place) -> Undone:
    """Remove exactly what was written. What the user changed or added stays, and so do the agent's sessions."""
    removed = 0
    with place.locked():
        manifest = place.read(MANIFEST) or {}
        known: dict[str, dict[str, Any]] = manifest.get("files", {})
        coming: dict[str, list[str]] = manifest.get("coming", {})
        done = Done("", None)
        for path in sorted({*known, *coming}):
            _take_away(place, path, known.get(path, {}), coming.get(path, ()), done)
        removed = len(done.removed)
        for name in (FILE, BINDING, RUNS, MANIFEST, ".lock"):
            removed += (place.root / name).exists()
            (place.root / name).unlink(missing_ok=True)
    kept = at.leftovers(place.root)
    for folder in sorted((one for one in place.root.rglob("*") if one.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    for folder in (place.root, place.root.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return Undone(removed, kept)


def edits(place: Place) -> list[str]:
    """Paths of managed files that are not as they were written: edited, or removed. What an agent goes on writing is none."""
    files: dict[str, dict[str, Any]] = (place.read(MANIFEST) or {}).get("files", {})
    found = []
    for path, one in sorted(files.items()):
        text = place.text(path)
        if "once" in one:
            continue
        if text is None or ("base" not in one and at.digest(text) != one.get("hash")):
            found.append(path)
    return found


# -- inside


def _settle(
    place: Place, path: str, text: str, mine: set[str | None], known: Mapping[str, Any], done: Done
) -> dict[str, Any]:
    """One whole file. Returns its line of the manifest."""
    current = place.text(path)
    beside = f"{path}{NEW}"
    entry: dict[str, Any] = {"hash": at.digest(text)}
    if current is None or (current != text and at.digest(current) in mine):
        place.put(path, text)
        done.written.append(path)
    elif current != text:
        done.kept.append(path)
        lying = place.text(beside)
        ours = lying is None or at.digest(lying) == known.get("beside")
        if known.get("hash") != entry["hash"] and ours and lying != text:
            place.put(beside, text)
            done.written.append(beside)
            entry["beside"] = entry["hash"]
        elif lying == text:
            entry["beside"] = entry["hash"]
        elif "beside" in known:
            entry["beside"] = known["beside"]
        return entry
    _drop_beside(place, path, known)
    return entry


def _settle_settings(
    place: Place, path: str, text: str, known: Mapping[str, Any], coming: Sequence[str], done: Done
) -> dict[str, Any]:
    """The settings file, which the agent and the user write as well: key by key, and where both changed one, theirs stays."""
    current = place.text(path)
    entry = {"hash": at.digest(text), "base": text}
    base = known.get("base")
    if current is None:
        place.put(path, text)
        done.written.append(path)
        return entry
    if base == text and not coming:
        return entry
    try:
        theirs = json.loads(current)
        if not isinstance(theirs, dict):
            raise ValueError
    except ValueError:  # no JSON any more (comments, say): theirs as a whole
        return {**_settle(place, path, text, {known.get("hash")}, known, done), "base": text}
    lost: list[str] = []
    before = [json.loads(one) for one in (base or "{}", *coming)]
    result = _merge(before, theirs, json.loads(text), "", lost)
    done.kept += [f"{path}: {key}" for key in lost]
    if result != theirs:
        place.put(path, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        done.written.append(path)
    return entry


_GONE = object()


def _merge(before: Sequence[Any], theirs: Any, ours: Any, where: str, lost: list[str]) -> Any:
    """``ours`` put into ``theirs`` wherever that still is what we once wrote (``before``: more than one after a crash)."""
    if not (isinstance(theirs, dict) and isinstance(ours, dict)):
        if theirs in (*before, ours):
            return ours
        if ours not in before:
            lost.append(where.removeprefix("."))
        return theirs
    result = dict(theirs)
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        now, new = theirs.get(key, _GONE), ours.get(key, _GONE)
        old = [one.get(key, _GONE) if isinstance(one, dict) else _GONE for one in before]
        if new is _GONE and all(one is _GONE for one in old):
            continue  # theirs alone
        merged = _merge(old, now, {} if new is _GONE and isinstance(now, dict) else new, f"{where}.{key}", lost)
        if merged is _GONE or (merged == {} and new is _GONE):
            result.pop(key, None)
        else:
            result[key] = merged
    return result


def _take_away(place: Place, path: str, known: Mapping[str, Any], coming: Sequence[str], done: Done) -> None:
    """Remove a file that is not wanted any more, unless it is not as we wrote it."""
    current = place.text(path)
    _drop_beside(place, path, known)
    if current is None:
        place.drop(path)  # its folder may have been made for it
        return
    if "base" in known:
        try:
            rest = _merge([json.loads(known["base"])], json.loads(current), {}, "", [])
        except ValueError:
            rest = None
        if rest == {}:
            place.drop(path)
            done.removed.append(path)
        elif rest is not None and rest != json.loads(current):
            place.put(path, json.dumps(rest, indent=2, ensure_ascii=False) + "\n")
            done.kept.append(path)
    elif at.digest(current) in (known.get("hash"), *coming):
        place.drop(path)
        done.removed.append(path)
    else:
        done.kept.append(path)


def _drop_beside(place: Place, path: str, known: Mapping[str, Any]) -> None:
    """Remove the new text that lay beside an edited file, once nobody needs it; one that was edited is the user's."""
    beside = f"{path}{NEW}"
    text = place.text(beside)
    if text is not None and at.digest(text) == known.get("beside"):
        place.drop(beside)
