"""What a tab is: a container of panes that is told what changed. One file per tab; see docs/architecture.md.

A tab composes panes (class ``pane``), says in ``renew`` what they show, and what is selected for actions and copying.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.containers import Container
from textual.widget import Widget

from reef.tui.store import ALL, Snapshot
from reef.tui.symbols import Symbols

if TYPE_CHECKING:
    from reef.tui.app import ReefApp


@dataclass(frozen=True, slots=True)
class Selection:
    """What is under the cursor: for actions, and as the text that ``y`` copies."""

    release: str | None = None
    records: tuple[str, ...] = ()
    text: str = ""
    knob: Mapping[str, Any] | None = None


class Tab(Container):
    """One of the seven. Panes that are lists have the class ``pane``; ``full-only`` goes on small terminals, ``wide-only``
    is there from 100 columns on."""

    TITLE: ClassVar[str] = ""
    NEEDS: ClassVar[frozenset[str]] = ALL
    """Fields of the snapshot that it shows; it is not told about others."""
    FIRST: ClassVar[tuple[str, ...]] = ()
    """Ids of keys that the key line begins with, behind those of the pane."""

    @property
    def reef(self) -> ReefApp:
        """The app, by its type."""
        return cast("ReefApp", self.app)

    @property
    def symbols(self) -> Symbols:
        """The marks of this terminal."""
        return cast(Symbols, cast(Any, self.app).symbols)

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """Show what changed; called with ALL when the tab comes to the front."""

    def tick(self, snapshot: Snapshot) -> None:
        """Once a second: what changes by itself."""

    def selection(self) -> Selection:
        """What is under the cursor."""
        return Selection()

    def begin(self, group: str, work: Callable[..., Coroutine[Any, Any, Any]], *given: Any) -> None:
        """Do ``work`` beside the screen, in place of what the group does now; it is only called when it begins."""
        self.run_worker(cast(Any, partial(work, *given)), group=group, exclusive=True)

    def unmark(self) -> None:
        """Take marks away, because something was done with what was marked."""

    @property
    def panes(self) -> list[Widget]:
        """Panes that can have the keys now, in order."""
        return [
            pane for pane in self.query(".pane") if pane.focusable or (self._small and not pane.has_class("wide-only"))
        ]

    def go(self, by: int) -> None:
        """Give the keys to another pane; on a small terminal it takes the place of the one that is shown."""
        panes = self.panes
        if not panes:
            return
        at = next((at for at, pane in enumerate(panes) if pane.has_class("-current")), 0)
        self.focus_pane(panes[(at + by) % len(panes)])

    def focus_pane(self, pane: Widget) -> None:
        """Give the keys to this pane."""
        self._mark(pane)
        self.call_after_refresh(pane.focus)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """A click gives the keys to a pane as well."""
        if event.widget.has_class("pane"):
            self._mark(event.widget)

    def _mark(self, pane: Widget) -> None:
        for other in self.query(".pane"):
            other.set_class(other is pane, "-current")

    @property
    def _small(self) -> bool:
        return any(self.screen.has_class(name) for name in ("-narrow", "-short"))
