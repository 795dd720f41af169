"""What every pane of the dashboard is made of: a scroll view that paints lines of spans, and only those that are seen.

Texts are made literal here, in one place, cut to the width first: a long one costs what is seen of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from reef.tui.symbols import Symbols
from reef.tui.text import KINDS, Line, plain

_NARROWEST = 12
"""Cells that a folded text needs."""


class Painted(ScrollView, can_focus=True):
    """Base of panes; a subclass says what ``line`` is at a height and calls ``resized`` when their number changes."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"painted--{kind}" for kind in KINDS if kind}
    _titles = ("", "")

    @property
    def symbols(self) -> Symbols:
        """The marks of this terminal."""
        return cast(Symbols, cast(Any, self.app).symbols)

    @property
    def room(self) -> Size:
        """What can be painted on: without frame and scroll bar."""
        return self.scrollable_content_region.size

    def line(self, at: int, width: int) -> tuple[Line, str]:
        """The line at a height, and the kind of its whole width."""
        raise NotImplementedError

    def titled(self, title: str, subtitle: str = "") -> None:
        """Set what stands in the frame, literally."""
        if (title, subtitle) == self._titles:
            return  # setting it paints the whole pane again
        self._titles = (title, subtitle)
        self.border_title = Content(plain(title, self.symbols.plain)) if title else None
        self.border_subtitle = Content(plain(subtitle, self.symbols.plain)) if subtitle else None

    def resized(self, height: int) -> None:
        """Say how many lines there are."""
        if self.virtual_size.height != height:
            self.virtual_size = Size(0, height)

    def repaint(self, lines: Sequence[int]) -> None:
        """Paint these lines again, as far as they are seen."""
        top, width = int(self.scroll_offset.y), self.room.width
        seen = [Region(0, at - top, width, 1) for at in lines if 0 <= at - top < self.room.height]
        if seen:
            self.refresh(*seen)

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width = self.room.width
        line, base = self.line(self._line_at(y), width)
        return self._strip(line, base, width)

    def _line_at(self, y: int) -> int:
        return y + int(self.scroll_offset.y)

    def _strip(self, line: Line, base: str, width: int) -> Strip:
        stale = bool(getattr(self.app, "stale", False)) and base != "cursor"
        ground = self._style("dim" if stale else base)
        segments, left = [], width
        for text, kind in line:
            if left <= 0:
                break
            shown = plain(text[: left + 1], self.symbols.plain)
            if (cells := cell_len(shown)) > left:
                shown, cells = set_cell_size(shown, left - len(self.symbols.cut)) + self.symbols.cut, left
            plain_kind = not kind or stale or base == "cursor"
            segments.append(Segment(shown, ground if plain_kind else ground + _ink(self._style(kind))))
            left -= cells
        return Strip(segments).adjust_cell_length(width, ground)

    def _style(self, kind: str) -> Style:
        return self.get_component_rich_style(f"painted--{kind}") if kind else self.rich_style


def _ink(style: Style) -> Style:
    """What a kind changes of the line it stands in: not its ground."""
    return Style(color=style.color, bold=style.bold or None, reverse=style.reverse or None)


class Lines(Painted):
    """A pane of plain lines: cards, details, help."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False, id="page.down"),
        Binding("k", "scroll_up", "up", show=False, id="page.up"),
        Binding("g", "scroll_home", "first", show=False, id="page.first"),
        Binding("G", "scroll_end", "last", show=False, id="page.last"),
    ]

    def __init__(self, *, folds: bool = False, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._folds = folds
        self._given: tuple[Line, ...] = ()
        self._lines: tuple[Line, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is shown."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines; what stays the same is not painted again."""
        self._given = tuple(lines)
        old, self._lines = self._lines, self._folded() if self._folds else self._given
        if len(old) != len(self._lines):
            self.resized(len(self._lines))
            self.refresh()
        elif old != self._lines:
            self.repaint([at for at, (a, b) in enumerate(zip(old, self._lines, strict=True)) if a != b])

    def on_resize(self) -> None:
        """Fold again for the new width."""
        if self._folds:
            self.show(self._given)

    def _folded(self) -> tuple[Line, ...]:
        width = self.room.width
        return tuple(part for line in self._given for part in folded(line, width)) if width > 0 else self._given

    def line(self, at: int, width: int) -> tuple[Line, str]:
        """The line at a height."""
        return (self._lines[at] if at < len(self._lines) else ()), ""


def folded(line: Line, width: int) -> list[Line]:
    """``line`` in lines of ``width`` cells: its last span goes on below where it began."""
    if not line:
        return [line]
    *lead, (text, kind) = line
    indent = sum(cell_len(one) for one, _ in lead)
    if indent + len(text) <= width or width - indent < _NARROWEST:
        return [line]
    first, *more = wrapped(text, width - indent)
    return [(*lead, (first, kind)), *(((" " * indent, ""), (part, kind)) for part in more)]


def wrapped(text: str, width: int, limit: int = 2000) -> list[str]:
    """``text`` cut into lines of ``width`` characters, at most ``limit`` of them; words stay whole where they fit."""
    found: list[str] = []
    for raw in text[: width * limit].splitlines() or [""]:
        rest = raw
        while len(rest) > width and len(found) < limit:
            at = rest.rfind(" ", width // 2, width + 1)
            at = width if at < 0 else at
            found.append(rest[:at])
            rest = rest[at:].removeprefix(" ")
        found.append(rest)
    return found[:limit]
