"""Two harness trees as files, and one file's change as lines, in one column or in two. Pure; knows no widgets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

from reef.tui.rows import Column, Row
from reef.tui.text import Line, one, plain

COLUMNS = (Column("", 1), Column(""), Column("", 7, at_least=34, right=True))
_KINDS = {"+": "good", "-": "bad", "~": "warn", " ": "dim"}
_AROUND, _LINES = 3, 5000
SPLIT_CELLS = 60
"""Cells that two columns need."""
Tree = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One file of two trees; None where it is not there."""

    name: str
    old: str | None
    new: str | None

    @property
    def sign(self) -> str:
        """Added, removed, changed or the same."""
        return "+" if self.old is None else "-" if self.new is None else " " if self.old == self.new else "~"

    @property
    def counts(self) -> tuple[int, int]:
        """Lines that came and lines that went."""
        added = removed = 0
        for tag, a, b, c, d in _matcher(self).get_opcodes() if self.sign != " " else ():
            removed += (b - a) * (tag != "equal")
            added += (d - c) * (tag != "equal")
        return added, removed


def tree_of(entries: Iterable[Mapping[str, Any]]) -> Tree:
    """``KIND/NAME`` to text."""
    return {f"{entry['kind']}/{entry['name']}": str(entry["text"]) for entry in entries}


def changes_of(old: Tree, new: Tree) -> list[Change]:
    """All files of both, by name."""
    return [Change(name, old.get(name), new.get(name)) for name in sorted({*old, *new})]


def rows_of(changes: Sequence[Change]) -> list[Row]:
    """One row a file."""
    return [
        Row(
            one.name,
            (
                (one.sign, _KINDS[one.sign]),
                (one.name, _KINDS[one.sign] if one.sign == " " else ""),
                ("" if one.sign == " " else "+{} -{}".format(*one.counts), "dim"),
            ),
        )
        for one in changes
    ]  # fmt: skip


def said(changes: Sequence[Change]) -> str:
    """How many changed."""
    changed = sum(one.sign != " " for one in changes)
    return f"{changed} changed, {len(changes) - changed} same"


def lines_of(change: Change, width: int, *, split: bool) -> tuple[list[Line], list[int]]:
    """The change of a file as lines of ``width``, and where its hunks begin; a file that is the same, as it is."""
    if change.sign == " ":
        whole = list(enumerate(_of(change.new), 1))
        return list(_below(True, [], whole, width))[:_LINES], []
    lines: list[Line] = []
    hunks: list[int] = []
    old, new = _of(change.old), _of(change.new)
    for group in _matcher(change).get_grouped_opcodes(_AROUND):
        if hunks:
            lines.append(())
        hunks.append(len(lines))
        for tag, a, b, c, d in group:
            left, right = list(enumerate(old[a:b], a + 1)), list(enumerate(new[c:d], c + 1))
            drawn = _beside if split and width >= SPLIT_CELLS else _below
            lines += drawn(tag == "equal", left, right, width)
    return lines[:_LINES], hunks


_Numbered = Sequence[tuple[int, str]]


def _below(same: bool, left: _Numbered, right: _Numbered, width: int) -> Iterator[Line]:
    for sign, kind, found in ((" ", "", right),) if same else (("-", "bad", left), ("+", "good", right)):
        for at, text in found:
            yield ((f"{sign}{at:>4} ", kind or "dim"), (text, kind))


def _beside(same: bool, left: _Numbered, right: _Numbered, width: int) -> Iterator[Line]:
    room = (width - 3) // 2
    for at in range(max(len(left), len(right))):
        before = _half(left[at] if at < len(left) else None, "" if same else "bad", room)
        after = _half(right[at] if at < len(right) else None, "" if same else "good", room)
        yield (*before, (" | ", "dim"), *after)


def _half(found: tuple[int, str] | None, kind: str, room: int) -> Line:
    if found is None:
        return ((" " * room, ""),)
    at, text = found
    shown = plain(text[:room])
    shown = set_cell_size(shown, room - 5) if cell_len(shown) != room - 5 else shown
    return ((f"{at:>4} ", kind or "dim"), (shown, kind))


def _of(text: str | None) -> list[str]:
    return (text or "").splitlines()


def _matcher(change: Change) -> difflib.SequenceMatcher[str]:
    return difflib.SequenceMatcher(None, _of(change.old), _of(change.new), autojunk=False)


def weights_lines(release: Mapping[str, Any], parent: Mapping[str, Any]) -> list[Line]:
    """What an update of weights changed, in figures: there are no texts to compare."""
    if not release:
        return [one("Nothing is served yet.", "dim")]
    came = (
        f"step {release['step']} changed them, from {parent['release_id']}." if parent else "it was not made by a step."
    )
    lines: list[Line] = [
        one(f"{release['release_id']} holds weights, not texts: {came}"),
        one("What that did is in its figures; there is no text to compare.", "dim"), (),
    ]  # fmt: skip
    before, after = parent.get("metrics") or {}, release.get("metrics") or {}
    for name in sorted({*before, *after}):
        lines.append(
            ((f"{name:24.24} ", "dim"), (f"{_figure(before.get(name)):>10}  {_figure(after.get(name)):>10}", ""))
        )
    return lines


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"
