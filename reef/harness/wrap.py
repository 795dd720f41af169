"""Points a person's own copy of an agent at Reef, by marked entries in its own configuration, and takes them out again.

Where nobody changed the file since, every byte comes back; where somebody did, only the marked entries go.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reef.errors import BadRequest, Conflict, NotFound
from reef.harness.adapters import Adapter
from reef.harness.place import PRIVATE, digest, make_folder, read_text, write_text
from reef.harness.render import Binding, filled, merged

_OPEN, _CLOSE = "# >>> reef: reef unwrap takes this away", "# <<< reef"
_OFF = "#reef# "
"""Before a line of the user's that ours stands in for."""
_GONE = "\0gone"


@dataclass(frozen=True, slots=True)
class Change:
    """One file to be changed: ``before`` None where there is none yet."""

    path: Path
    before: str | None
    after: str

    def diff(self, token: str) -> str:
        """What changes, with the token masked."""
        old = (self.before or "").splitlines()
        lines = difflib.unified_diff(old, self.after.splitlines(), str(self.path), str(self.path), lineterm="", n=1)
        return "\n".join(lines).replace(token, "********")


def plan(adapter: Adapter, binding: Binding, home: Path, *, own_login: bool = False) -> list[Change]:
    """The changes that point the agent at Reef; nothing is written. Raises with the file and what to do about it."""
    files = adapter.wrap.own_login if own_login else adapter.wrap.files
    if not files:
        said = "keeping its own login" if own_login else "pointing a copy of your own at Reef"
        raise BadRequest(f"{adapter.name} does not support {said}", hint=f"use: reef harness install {adapter.name}")
    if re.search(r"[!${}\\\"]", binding.token):
        raise BadRequest("the token has characters that agents read as commands", hint="set another reef.token")
    folder = _folder(adapter, home)
    changes = []
    for name, template in files.items():
        path = Path(os.path.realpath(folder / name))  # a link to where the user keeps it is followed, and stays
        entries = _without_empty(filled(template, binding.as_dict()))
        before = read_text(path)
        after = _toml_with(path, before, entries) if path.suffix == ".toml" else _json_with(path, before, entries)
        changes.append(Change(path, before, after))
    return changes


def wrap(agents: Path, adapter: Adapter, changes: list[Change]) -> None:
    """Make the changes; what was there is kept first, so that a crash in between can be undone as well."""
    if wrapped(agents, adapter.name):
        raise Conflict(
            f"{adapter.name} is wrapped already", hint=f"undo it first: reef unwrap {adapter.name}", code="wrapped"
        )
    rows = []
    for change in changes:
        kept = None if change.before is None else _packed(change.before)
        was = change.path.stat() if change.before is not None else None
        made = [str(one) for one in change.path.parents if not one.exists()]
        row: dict[str, Any] = {
            "path": str(change.path),
            "before": kept,
            "after": digest(change.after),
            "text": _packed(change.after),
        }
        row |= {"mode": was and stat.S_IMODE(was.st_mode), "mtime_ns": was and was.st_mtime_ns, "folders": made}
        rows.append(row)
    make_folder(agents, "wrapped")
    write_text(agents, f"wrapped/{adapter.name}.json", json.dumps({"version": 1, "files": rows}))
    for change in changes:
        change.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(change.path.parent, change.path.name, change.after)


def wrapped(agents: Path, name: str) -> list[dict[str, Any]]:
    """What a wrap has changed; empty for none."""
    text = read_text(agents / "wrapped" / f"{name}.json")
    return list(json.loads(text)["files"]) if text is not None else []


def unwrap(agents: Path, name: str) -> list[str]:
    """Undo a wrap; returns a sentence for each file. Raises NotFound when there is none."""
    rows = wrapped(agents, name)
    if not rows:
        raise NotFound(f"{name} is not wrapped", hint=f"wrap it with: reef wrap {name}", code="not_wrapped")
    said = [_undo(row) for row in rows]
    (agents / "wrapped" / f"{name}.json").unlink()
    for folder in (agents / "wrapped", agents):
        if not any(folder.iterdir()):
            folder.rmdir()
    return said


# -- inside


def _folder(adapter: Adapter, home: Path) -> Path:
    moved = os.environ.get(adapter.wrap.folder_env) if adapter.wrap.folder_env else None
    return Path(moved).expanduser().absolute() if moved else home / adapter.wrap.folder


def _undo(row: Mapping[str, Any]) -> str:
    path, current = Path(row["path"]), read_text(Path(row["path"]))
    before = None if row["before"] is None else _unpacked(row["before"])
    mode = row["mode"] if row["mode"] is not None else PRIVATE
    if current is None:
        return f"{path} is gone already"
    if current == before:
        return f"{path} is as it was"
    if digest(current) == row["after"]:
        if before is not None:
            write_text(path.parent, path.name, before, mode)
            path.chmod(mode)
            os.utime(path, ns=(row["mtime_ns"], row["mtime_ns"]))
            return f"{path} is as it was, to the byte"
        path.unlink()
        for folder in map(Path, row["folders"]):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        return f"{path} is gone again"
    ours = _unpacked(row["text"])
    rest = _toml_without(current) if path.suffix == ".toml" else _json_without(path, current, before, ours)
    write_text(path.parent, path.name, rest, mode)
    path.chmod(mode)
    return f"{path} was changed since: Reef's entries are gone, yours stay"


def _json_with(path: Path, before: str | None, entries: Mapping[str, Any]) -> str:
    return _dump(merged(_object(path, before or "{}"), entries), before or "")


def _json_without(path: Path, current: str, before: str | None, ours: str) -> str:
    """``current`` with every value that is still ours set back to what stood there before."""

    def back(now: Any, old: Any, new: Any) -> Any:
        if isinstance(now, dict) and isinstance(new, dict):
            was = old if isinstance(old, dict) else {}
            kept = {key: back(value, was.get(key, _GONE), new.get(key, _GONE)) for key, value in now.items()}
            kept = {key: value for key, value in kept.items() if value != _GONE}
            return kept if kept or isinstance(old, dict) else _GONE
        return old if now == new else now

    kept = back(_object(path, current), _object(path, before or "{}"), _object(path, ours))
    return _dump(kept if kept != _GONE else {}, current)


def _object(path: Path, text: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key is there twice")
        return found

    try:
        found = json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        raise Conflict(
            f"{path} cannot be changed without losing something: {error}",
            hint="take comments and double keys out of it, or use: reef harness install",
            code="not_json",
        ) from None
    if not isinstance(found, dict):
        raise Conflict(f"{path} holds no JSON object", hint="use: reef harness install", code="not_json")
    return found


def _dump(document: Mapping[str, Any], like: str) -> str:
    """JSON with the indent of ``like``."""
    found = re.search(r"\n([ \t]+)\"", like)
    indent = found[1] if found else "  "
    return json.dumps(document, indent=indent, ensure_ascii=False) + ("\n" if like.endswith("\n") or not like else "")


def _toml_with(path: Path, before: str | None, entries: Mapping[str, Any]) -> str:
    """Our top-level keys in a marked block at the head, our tables in one at the end; the user's same keys are switched off."""
    text = _toml_without(before or "")
    head = [f"{key} = {_toml(value)}" for key, value in entries.items() if not isinstance(value, Mapping)]
    tail: list[str] = []
    for key, tables in entries.items():
        for name, table in tables.items() if isinstance(tables, Mapping) else ():
            tail += [f"[{key}.{name}]", *(f"{_toml_key(one)} = {_toml(value)}" for one, value in table.items())]
    first = re.search(r"(?m)^[ \t]*\[", text)
    top, rest = (text, "") if first is None else (text[: first.start()], text[first.start() :])
    names = "|".join(re.escape(key) for key, value in entries.items() if not isinstance(value, Mapping))
    if names:
        top = re.sub(rf"(?m)^(?=[ \t]*(?:{names})[ \t]*=)", _OFF, top)
    gap = "" if text.endswith("\n") or not text else "\n"
    after = "\n".join([_OPEN, *head, _CLOSE, ""]) + top + rest + gap + "\n".join([_OPEN, *tail, _CLOSE, ""])
    try:
        wanted = merged(tomllib.loads(text), entries)
        same = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise Conflict(
            f"{path} has something that stands against Reef's entries",
            hint="use: reef harness install",
            code="not_toml",
        )
    return after


def _toml_without(text: str) -> str:
    block = re.compile(rf"(?ms)^{re.escape(_OPEN)}$.*?^{re.escape(_CLOSE)}$\n?")
    return re.sub(rf"(?m)^{re.escape(_OFF)}", "", block.sub("", text))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _without_empty(entries: Any) -> Any:
    """Entries whose text is empty are left out: nobody names a model."""
    if isinstance(entries, Mapping):
        return {key: _without_empty(value) for key, value in entries.items() if value not in ("", {})}
    return entries


def _packed(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()


def _unpacked(text: str) -> str:
    return base64.b64decode(text).decode("utf-8", "surrogateescape")
