"""What a tab shows that is not built yet: the command that shows the same."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from reef.tui.painted import Lines
from reef.tui.store import Snapshot
from reef.tui.tabs.base import Tab
from reef.tui.text import one


class Unbuilt(Tab):
    """Honest about it."""

    COMMAND: ClassVar[str] = ""

    def compose(self) -> ComposeResult:
        """One pane."""
        yield Lines(classes="pane")

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """The sentence."""
        pane = self.query_one(Lines)
        pane.titled(self.TITLE)
        pane.show([(), one("  This tab is not there yet."), (), one(f"  The same from a shell: {self.COMMAND}", "dim")])
