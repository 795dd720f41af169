"""Tab: Recipe. Every key of the deployment: what it is, where that is from, and when a change of it applies."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from reef.errors import ReefError
from reef.tui.painted import Lines
from reef.tui.rows import Column, Row, Rows
from reef.tui.store import Data, Snapshot
from reef.tui.tabs.base import Selection, Tab
from reef.tui.text import one

_APPLIES = {"next_batch": "next batch", "restart": "restart"}


class Recipe(Tab):
    """The sixth tab."""

    TITLE: ClassVar[str] = "Recipe"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"link", "status"})
    FIRST: ClassVar[tuple[str, ...]] = ("act.knob", "act.unknob", "knob.given", "app.filter")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("v", "given", "only set ones", id="knob.given")]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._found: Data = {}
        self._of: object = None
        """The daemon they are of."""
        self._given = False
        """Only keys that somebody has set."""

    def compose(self) -> ComposeResult:
        """The table, and what the key under the cursor is."""
        with Vertical():
            yield Rows(
                Column("knob"), Column("value", 12), Column("default", 9, at_least=76),
                Column("from", 0, at_least=60), Column("applies", 10, at_least=60),
                empty=("waiting for the daemon",), id="knobs", classes="pane -current",
            )  # fmt: skip
            yield Lines(folds=True, id="about", classes="card full-only")

    def on_mount(self) -> None:
        """What is said of a key needs none."""
        self.query_one("#about", Lines).can_focus = False

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """Read it again when the tab comes to the front, and from another daemon."""
        pid = snapshot.status.get("daemon", {}).get("pid")
        if snapshot.link == "live" and (pid != self._of or len(changed) > len(self.NEEDS)):
            self._of = pid
            self.begin("load", self._load)
        self._show()

    def selection(self) -> Selection:
        """The key under the cursor."""
        row = self._row(self.query_one("#knobs", Rows).key)
        return Selection(text="" if row is None else f"{row['name']}: {row['value']}", knob=row)

    def action_given(self) -> None:
        """Only keys that somebody has set, or all again."""
        self._given = not self._given
        self._show()

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """Say what the key is."""
        self._about()

    async def on_rows_opened(self, event: Rows.Opened) -> None:
        """As ``e``."""
        if self.reef.check_action("act", ("knob",)):
            await self.reef.action_act("knob")

    async def _load(self) -> None:
        try:
            self._found = await self.reef.store.source.get("/reef/knobs")
        except ReefError as error:
            self.query_one("#knobs", Rows).empty = (f"cannot be read: {error.message}", error.hint)
        self._show()

    def _show(self) -> None:
        rows = self.query_one("#knobs", Rows)
        found = [row for row in self._found.get("knobs", ()) if not self._given or row["origin"] != "default"]
        rows.show([_cells(row) for row in sorted(found, key=lambda row: row["applies"] == "restart")])
        rows.titled(f"Knobs of {self._found.get('recipe', '-')}", str(self._found.get("file") or "no file"))
        self._about()

    def _about(self) -> None:
        about, row = self.query_one("#about", Lines), self.selection().knob
        about.titled(str(row["name"]) if row else "")
        if row is None:
            about.show([])
            return
        live = "e changes it from the next batch on, until the daemon stops; u takes that back"
        when = (
            live
            if row["applies"] == "next_batch"
            else "read at a start only: set it in the file, then reef down, reef up"
        )
        about.show([one(row["help"]), one(when, "dim")])

    def _row(self, key: str | None) -> Data | None:
        return next((row for row in self._found.get("knobs", ()) if row["name"] == key), None)


def _cells(row: Data) -> Row:
    value, default, applies = _text(row["value"]), _text(row["default"]), str(row["applies"])
    kind = "" if row["origin"] == "default" else "accent"
    cells = (
        str(row["name"]),
        (value, kind),
        (default, "dim"),
        str(row["origin"]),
        (_APPLIES.get(applies, applies), "dim"),
    )
    return Row(str(row["name"]), cells)


def _text(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
