"""A harness tree: a sorted, flat list of small texts, named by the hash of its content. Values only.

It never holds an address, a key or a model id: an install writes those beside it. Every name is safe as a part of a path.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reef.errors import BadRequest, NotFound

VERSION = 1
KINDS = ("agent_command", "code_extension", "config", "rules", "skill")
CODE_SUFFIXES = (".js", ".mjs", ".py", ".sh", ".ts")
FILE = "tree.json"
"""The tree's own file within an artifact."""

ENTRY_BYTES, TREE_BYTES, ENTRIES = 64 * 1024, 512 * 1024, 200

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_SUFFIXES = {"config": ".json", "code_extension": ""}
"""What a kind's files are called in a folder; all others are Markdown."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One text. ``config`` is a JSON object, named after the agent whose settings it joins; ``code_extension`` is named with
    its suffix; a ``skill`` begins with a front matter of ``name`` and ``description``."""

    kind: str
    name: str
    text: str

    def __post_init__(self) -> None:
        """Raise BadRequest that names the entry and the rule."""
        where = f"{str(self.kind)[:40]}/{str(self.name)[:80]}"
        if self.kind not in KINDS:
            raise _bad(where, "has no known kind", f"kinds: {', '.join(KINDS)}")
        stem = self.name if isinstance(self.name, str) else ""
        if self.kind == "code_extension":
            suffix = next((one for one in CODE_SUFFIXES if stem.endswith(one)), None)
            if suffix is None:
                raise _bad(where, "has no suffix of code", f"suffixes: {', '.join(CODE_SUFFIXES)}")
            stem = stem.removesuffix(suffix)
        if not _NAME.fullmatch(stem):
            raise _bad(where, "is no name", "names have 1 to 64 lower-case letters, digits and hyphens")
        if not isinstance(self.text, str) or (found := _CONTROL.search(self.text)) is not None:
            odd = f"the character {found[0]!r}" if isinstance(self.text, str) else type(self.text).__name__
            raise _bad(where, f"holds {odd}", "an entry is text: Unicode without control characters")
        if (size := len(self.text.encode())) > ENTRY_BYTES:
            raise _bad(where, f"has {size} bytes", f"an entry has at most {ENTRY_BYTES}")
        if not self.text.strip():
            raise _bad(where, "is empty", "delete the entry instead")
        if self.kind == "config":
            self.settings()
        if self.kind == "skill":
            _check_skill(where, self.name, self.text)

    def settings(self) -> dict[str, Any]:
        """The object a ``config`` entry holds."""
        try:
            found = json.loads(self.text, parse_constant=lambda word: _refuse(word))
        except (ValueError, RecursionError) as error:
            raise _bad(f"config/{self.name}", f"is not JSON: {error}", "write one JSON object") from None
        if not isinstance(found, dict):
            raise _bad(f"config/{self.name}", "is no JSON object", "for example {}")
        return found


@dataclass(frozen=True, slots=True)
class Put:
    """Add an entry, or replace the one of its kind and name."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove an entry."""

    kind: str
    name: str


Edit = Put | Delete


@dataclass(frozen=True, slots=True)
class Tree:
    """All entries, sorted by kind and name; build it with ``Tree.of``."""

    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        """Raise BadRequest for doubles, and for a tree that is too large."""
        keys = [(one.kind, one.name) for one in self.entries]
        if keys != sorted(set(keys)):
            double = next((one for one in keys if keys.count(one) > 1), None)
            said = "the entries are not sorted" if double is None else f"{'/'.join(double)} is there twice"
            raise BadRequest(said, hint="one entry per kind and name, sorted", field="entries")
        if len(keys) > ENTRIES or self.size_bytes > TREE_BYTES:
            raise BadRequest(
                f"the tree has {len(keys)} entries and {self.size_bytes} bytes",
                hint=f"at most {ENTRIES} entries and {TREE_BYTES} bytes",
                field="entries",
            )

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Tree:
        """A tree of ``entries`` in any order."""
        return cls(tuple(sorted(entries)))

    @property
    def size_bytes(self) -> int:
        """Bytes of all texts."""
        return sum(len(one.text.encode()) for one in self.entries)

    @property
    def content_id(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def get(self, kind: str, name: str) -> Entry:
        """One entry; raises NotFound."""
        for one in self.entries:
            if (one.kind, one.name) == (kind, name):
                return one
        raise NotFound(f"the tree has no {kind}/{name}", hint=f"it has: {', '.join(_labels(self)) or 'nothing'}")

    def of_kind(self, kind: str) -> list[Entry]:
        """The entries of one kind, by name."""
        return [one for one in self.entries if one.kind == kind]

    def edit(self, edits: Iterable[Edit]) -> Tree:
        """The tree with ``edits`` made; raises NotFound for a delete of nothing, BadRequest for two edits of one entry."""
        found = {(one.kind, one.name): one for one in self.entries}
        done: set[tuple[str, str]] = set()
        for edit in edits:
            key = (edit.entry.kind, edit.entry.name) if isinstance(edit, Put) else (edit.kind, edit.name)
            if key in done:
                raise BadRequest(f"{'/'.join(key)} is edited twice", hint="one edit per entry", field="edits")
            done.add(key)
            if isinstance(edit, Put):
                found[key] = edit.entry
            else:
                self.get(*key)
                del found[key]
        return Tree.of(found.values())

    def as_dict(self) -> dict[str, Any]:
        """``{"version": 1, "entries": [{"kind", "name", "text"}]}``."""
        return {"version": VERSION, "entries": [{"kind": o.kind, "name": o.name, "text": o.text} for o in self.entries]}

    def to_json(self) -> str:
        """The canonical JSON: sorted keys, no spaces, no escapes that are not needed."""
        return json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_dict(cls, document: Any) -> Tree:
        """The tree a JSON document holds; raises BadRequest with the field."""
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise BadRequest(f"this is no harness tree of version {VERSION}", field="version")
        rows = document.get("entries")
        if not isinstance(rows, list):
            raise BadRequest("a harness tree has a list of entries", field="entries")
        for row in rows:
            if not isinstance(row, dict) or set(row) != {"kind", "name", "text"}:
                raise BadRequest("an entry has kind, name and text, and nothing else", field="entries")
        return cls.of(Entry(row["kind"], row["name"], row["text"]) for row in rows)

    @classmethod
    def from_json(cls, text: str | bytes) -> Tree:
        """As ``from_dict``, from text."""
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"a harness tree is JSON: {error}", field="version") from None

    @classmethod
    def from_folder(cls, folder: Path) -> Tree:
        """The tree in ``folder``: ``rules/NAME.md``, ``skill/NAME.md``, ``config/AGENT.json``, ``code_extension/NAME.ts``.

        Links and files that are no entry are refused, so that nothing foreign gets into a tree unseen.
        """
        found: list[Entry] = []
        if folder.is_symlink() or not folder.is_dir():
            raise BadRequest(f"{folder.absolute()} is no folder", hint="give a folder with rules/, skill/ and so on")
        for path in sorted(folder.rglob("*")):
            if path.is_symlink():
                raise BadRequest(f"{path} is a link", hint="links are not followed into a tree: copy the file")
            if path.is_dir():
                continue
            parts = path.relative_to(folder).parts
            suffix = _SUFFIXES.get(parts[0], ".md")
            if len(parts) != 2 or not parts[1].endswith(suffix):
                raise BadRequest(
                    f"{path} is no entry", hint="entries are KIND/NAME.md, config/AGENT.json, code_extension/NAME.ts"
                )
            if path.stat().st_size > ENTRY_BYTES:
                raise BadRequest(f"{path} has {path.stat().st_size} bytes", hint=f"an entry has at most {ENTRY_BYTES}")
            try:
                text = path.read_bytes().decode()
            except UnicodeDecodeError:
                raise BadRequest(f"{path} is not UTF-8", hint="an entry is text") from None
            found.append(Entry(parts[0], parts[1].removesuffix(suffix), text))
        return cls.of(found)


def diff(before: Tree, after: Tree) -> str:
    """What changed, as a unified diff of every entry that differs; empty for equal trees."""
    old = {(one.kind, one.name): one.text for one in before}
    new = {(one.kind, one.name): one.text for one in after}
    lines: list[str] = []
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            left, right = (f"{side}/{'/'.join(key)}" for side in ("a", "b"))
            lines += difflib.unified_diff(
                old.get(key, "").splitlines(),
                new.get(key, "").splitlines(),
                left if key in old else "/dev/null",
                right if key in new else "/dev/null",
                lineterm="",
            )
    return "\n".join(lines)


def front_matter(text: str) -> dict[str, Any]:
    """The YAML block a Markdown text begins with; empty for none."""
    import yaml  # most commands read no tree

    found = re.match(r"---\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", text, re.S)
    try:
        block = yaml.load(found[1], Loader=yaml.BaseLoader) if found else {}
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    return block if isinstance(block, dict) else {}


def _check_skill(where: str, name: str, text: str) -> None:
    head = front_matter(text)
    description = head.get("description")
    if head.get("name") != name or not isinstance(description, str) or not 1 <= len(description.strip()) <= 1024:
        hint = f"begin with: ---, name: {name}, description: one sentence of when to use it, ---"
        raise _bad(where, "has no front matter with its name and a description", hint)


def _labels(tree: Tree) -> list[str]:
    return [f"{one.kind}/{one.name}" for one in tree]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _bad(where: str, said: str, hint: str) -> BadRequest:
    return BadRequest(f"{where} {said}", hint=hint, field="entries")
