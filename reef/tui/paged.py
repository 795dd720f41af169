"""A tail that goes back as far as there is: pages are asked for at its ends, and only so many rows are kept.

Knows nothing of where pages come from: whoever shows it answers AtEnd with ``older`` or ``newer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.message import Message

from reef.tui.rows import Row, Rows
from reef.tui.tail import Tail

KEPT = 500
_AHEAD = 5
_FAR = 1_000_000


class Paged(Tail):
    """Posts AtEnd when the cursor or the view comes near an end that may not be the last, Narrowed when the filter changes."""

    @dataclass
    class AtEnd(Message):
        """More is wanted."""

        rows: Paged
        older: bool

    @dataclass
    class Narrowed(Message):
        """Another filter was typed."""

        rows: Paged
        text: str

    @property
    def ends(self) -> tuple[str | None, str | None]:
        """Keys of the first and the last row, whatever the filter lets through."""
        return (self._all[0].key, self._all[-1].key) if self._all else (None, None)

    def older(self, rows: Sequence[Row]) -> None:
        """Put these below; what is too much goes at the top."""
        if self.following:
            self._pause()
        Rows.show(self, (*self._all, *rows)[-KEPT:])

    def newer(self, rows: Sequence[Row]) -> None:
        """Put these on top; what is too much goes at the bottom."""
        if self.following:
            self._pause()
        Rows.show(self, (*rows, *self._all)[:KEPT])

    def narrow(self, text: str) -> None:
        """As Rows; says so."""
        changed = text != self.filter
        super().narrow(text)
        if changed:
            self.post_message(self.Narrowed(self, text))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """The wheel comes to the end as well."""
        super().watch_scroll_y(old_value, new_value)
        if new_value > old_value and new_value >= self.max_scroll_y:
            self.post_message(self.AtEnd(self, older=True))

    def _said(self) -> tuple[str, ...]:
        return (*super()._said(), "down looks in older ones") if self._all else super()._said()

    def _go(self, at: int) -> None:
        if not self.following and -_FAR < at <= 0 and not self.reaches:
            Rows._go(self, at)
            self.post_message(self.AtEnd(self, older=False))
            return
        super()._go(at)
        if at > 0 and self._cursor >= len(self._rows) - _AHEAD:
            self.post_message(self.AtEnd(self, older=True))
