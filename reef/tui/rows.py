"""The one list of the dashboard: rows of cells with a cursor, a filter, marks and columns that go when there is no room.

Only rows that are seen are painted, so 20,000 cost what 20 do. Knows nothing of what the rows mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from reef.tui.painted import Painted
from reef.tui.text import Line, Span, plain

_SEARCH_CHARS = 400
_ROOMY, _NARROWEST = 60, 6
Cell = str | Span


@dataclass(frozen=True, slots=True)
class Column:
    """``width`` 0 takes what is left; ``at_least`` is the width of the pane from which on it is shown."""

    title: str
    width: int = 0
    at_least: int = 0
    right: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One entry; ``key`` keeps the cursor on it when others come and go."""

    key: str
    cells: tuple[Cell, ...] = field(default=())

    @property
    def words(self) -> str:
        """What a filter looks in."""
        return " ".join(cell if isinstance(cell, str) else cell[0] for cell in self.cells)[:_SEARCH_CHARS].lower()


class Rows(Painted):
    """A list; posts Moved when the cursor is on another row and Opened on Enter or a second click."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="list.open"),
        Binding("up,k", "move(-1)", "up", show=False, id="list.up"),
        Binding("down,j", "move(1)", "down", show=False, id="list.down"),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False, id="list.page_up"),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False, id="list.page_down"),
        Binding("g,home", "move(-1000000000)", "first", show=False, id="list.first"),
        Binding("G,end", "move(1000000000)", "last", show=False, id="list.last"),
        Binding("space", "mark", "mark", show=False, id="list.mark"),
    ]

    @dataclass
    class Moved(Message):
        """The cursor is on another row; None when there is none."""

        rows: Rows
        key: str | None

    @dataclass
    class Opened(Message):
        """The row under the cursor was asked for."""

        rows: Rows
        key: str

    def __init__(self, *columns: Column, empty: Sequence[str] = (), id: str | None = None, classes: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self.columns = columns
        self.empty = tuple(empty)
        """What is said, line by line, while there is nothing to list."""
        self.headed = any(column.title for column in columns)
        self.keeps_row = True
        """The cursor goes with its row when others come; else it stays where it is."""
        self.filter = ""
        self.marked: set[str] = set()
        self._all: tuple[Row, ...] = ()
        self._rows: tuple[Row, ...] = ()
        self._cursor = 0

    # -- what others ask

    @property
    def key(self) -> str | None:
        """The key of the row under the cursor."""
        return self._rows[self._cursor].key if self._rows else None

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows that the filter lets through."""
        return self._rows

    @property
    def total(self) -> int:
        """Rows with and without the filter."""
        return len(self._all)

    def show(self, rows: Sequence[Row]) -> None:
        """List these; the cursor stays on its row, and what stays the same is not painted again."""
        self._all = tuple(rows)
        self._list()

    def narrow(self, text: str) -> None:
        """List only rows with these words; a first ``!`` lists the others."""
        self.filter = text
        self._list()

    def point(self, key: str) -> None:
        """Put the cursor on a row, if it is listed."""
        for at, row in enumerate(self._rows):
            if row.key == key:
                self._go(at)

    # -- keys and mouse

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self._go(self._cursor + by)

    def action_page(self, by: int) -> None:
        """Move by what is seen."""
        self._go(self._cursor + by * max(1, self.room.height - 1 - self.headed))

    def action_open(self) -> None:
        """Ask for the row under the cursor."""
        if self.key is not None:
            self.post_message(self.Opened(self, self.key))

    def action_mark(self) -> None:
        """Mark the row, or take the mark away."""
        if self.key is not None:
            self.marked ^= {self.key}
            self.repaint([self._cursor + self.headed])
            self._go(self._cursor + 1)

    def on_click(self, event: events.Click) -> None:
        """The row under the mouse; a second click opens it."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y < self.headed:
            return
        at = self._line_at(offset.y) - self.headed
        if at < len(self._rows):
            if at == self._cursor:
                self.action_open()
            self._go(at)

    # -- painting

    def line(self, at: int, width: int) -> tuple[Line, str]:
        """A row, or the titles of the columns."""
        if not self._rows:
            said = self._said()
            return ((f" {said[at - self.headed]}", "dim"),) if 0 <= at - self.headed < len(said) else (), ""
        if at < 0:
            return self._cells(tuple(column.title for column in self.columns), width, " "), "head"
        if (at := at - self.headed) >= len(self._rows):
            return (), ""
        row, here = self._rows[at], at == self._cursor
        lead = self.symbols.cursor if here else "+" if row.key in self.marked else " "
        base = "cursor" if here and self.has_focus else "marked" if row.key in self.marked else ""
        return self._cells(row.cells, width, lead), base

    def _line_at(self, y: int) -> int:
        if self.headed and self._rows and y == 0:
            return -1
        return super()._line_at(y)

    def _said(self) -> tuple[str, ...]:
        if self._all:
            return (f"nothing of {len(self._all):,} matches {self.filter!r}", "esc shows all again")
        return self.empty

    def _cells(self, cells: Sequence[Cell], width: int, lead: str) -> Line:
        seen = [at for at, column in enumerate(self.columns) if width >= column.at_least]
        gap = "  " if width >= _ROOMY else " "
        flexible = sum(not self.columns[at].width for at in seen)
        taken = len(lead) + 1 + sum(self.columns[at].width for at in seen) + len(gap) * (len(seen) - 1)
        room = max(_NARROWEST, (width - taken) // max(1, flexible))
        line: list[Span] = [(f"{lead} ", "")]
        for at in seen:
            cell, column = cells[at], self.columns[at]
            text, kind = (cell, "") if isinstance(cell, str) else cell
            line += [(self._fitted(text, column.width or room, column.right), kind), (gap, "")]
        return tuple(line[:-1])

    def _fitted(self, text: str, width: int, right: bool) -> str:
        shown = plain(text[: width + 1], self.symbols.plain)
        cells = cell_len(shown)
        if cells > width:
            return set_cell_size(shown, width - len(self.symbols.cut)) + self.symbols.cut
        return " " * (width - cells) + shown if right else shown + " " * (width - cells)

    # -- inside

    def _list(self) -> None:
        key, old = self.key, self._rows
        wanted = self.filter.lower().removeprefix("!").split()
        other = self.filter.startswith("!")
        self._rows = (
            self._all
            if not wanted
            else tuple(row for row in self._all if all(word in row.words for word in wanted) != other)
        )
        kept = key if self.keeps_row else None
        places = [at for at, row in enumerate(self._rows) if row.key == kept] if kept is not None else []
        cursor, before = (places[0] if places else min(self._cursor, max(0, len(self._rows) - 1))), self._cursor
        self._cursor = cursor
        self.resized(len(self._rows) + self.headed if self._rows else len(self._said()) + self.headed)
        if len(old) != len(self._rows) or not old:
            self.refresh()
        else:
            changed = {at for at, (a, b) in enumerate(zip(old, self._rows, strict=True)) if a != b}
            changed |= {before, cursor} if before != cursor else set()
            self.repaint([at + self.headed for at in changed])
        if before != cursor:
            self._seen()
        if self.key != key:
            self.post_message(self.Moved(self, self.key))

    def _go(self, at: int) -> None:
        at = max(0, min(at, len(self._rows) - 1))
        if at == self._cursor or not self._rows:
            return
        old, self._cursor = self._cursor, at
        self.repaint([old + self.headed, at + self.headed])
        self._seen()
        self.post_message(self.Moved(self, self.key))

    def _seen(self) -> None:
        top, height = int(self.scroll_offset.y), self.room.height - self.headed
        if height <= 0:
            return
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False, immediate=True)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False, immediate=True)

    def on_focus(self) -> None:
        """The cursor is painted in colour while the pane has the keys."""
        self.repaint([self._cursor + self.headed])

    def on_blur(self) -> None:
        """As on_focus."""
        self.repaint([self._cursor + self.headed])
