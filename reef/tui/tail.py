"""A list that grows at its top: it follows until one moves away from there, and then counts what is new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from reef.tui.rows import Column, Row, Rows


class Tail(Rows):
    """Newest first. While it does not follow, the rows stay as they were, whatever comes."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f", "follow", "follow", id="tail.follow")]

    def __init__(
        self, *columns: Column, title: str, empty: Sequence[str] = (), id: str | None = None, classes: str = ""
    ) -> None:
        super().__init__(*columns, empty=empty, id=id, classes=classes)
        self.title = title
        self.following = True
        self.keeps_row = False
        self._latest: tuple[Row, ...] = ()
        self._left: str | None = None
        """The newest row when it stopped following."""

    def show(self, rows: Sequence[Row]) -> None:
        """Take the newest rows; they are listed at once only while it follows."""
        self._latest = tuple(rows)
        if self.following:
            super().show(rows)
        self._say()

    @property
    def new(self) -> int:
        """Rows that have come since it stopped following."""
        if self.following or self._left is None:
            return 0
        return next((at for at, row in enumerate(self._latest) if row.key == self._left), len(self._latest))

    @property
    def reaches(self) -> bool:
        """The rows that are listed go on where the newest end: nothing lies between them."""
        return not self._all or any(row.key == self._all[0].key for row in self._latest)

    def action_follow(self) -> None:
        """Go to the newest, or stay here."""
        self._follow(not self.following)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling away pauses."""
        super().watch_scroll_y(old_value, new_value)
        if self.following and new_value > 0:
            self._follow(False)

    def _go(self, at: int) -> None:
        super()._go(at)
        if self.following and self._cursor > 0:
            self._follow(False)
        elif not self.following and at <= 0:
            self._follow(True)

    def _follow(self, on: bool) -> None:
        if not on:
            self._pause()
            return
        self.following, self.keeps_row, self._left = True, False, None
        self._cursor = 0
        self.scroll_to(y=0, animate=False, immediate=True)
        super().show(self._latest)
        self.refresh()
        self._say()

    def _pause(self) -> None:
        self.following, self.keeps_row = False, True
        self._left = self._all[0].key if self._all else None
        self._say()

    def _say(self) -> None:
        new = self.new
        more = " or more" if new and new == len(self._latest) else ""
        state = f"{self.symbols.serving} following" if self.following else f"paused  +{new}{more} new  f follows"
        self.titled(self.title, state)
