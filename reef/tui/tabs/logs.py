"""Tab: Logs. The tail of the daemon's log, also of its earlier runs, from a chosen level on."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from reef.errors import ReefError
from reef.tui.dialogs import Page
from reef.tui.rows import Column, Row, Rows
from reef.tui.store import Data, Snapshot
from reef.tui.tabs.base import Selection, Tab
from reef.tui.tail import Tail
from reef.tui.text import clock, one

_LEVELS = ("debug", "info", "warning", "error")
_KINDS = {"warning": "warn", "error": "bad", "critical": "bad", "debug": "dim"}
_KEPT, _PAGE = 500, 500


class Logs(Tab):
    """The seventh tab."""

    TITLE: ClassVar[str] = "Logs"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"link", "status"})
    FIRST: ClassVar[tuple[str, ...]] = ("app.filter", "logs.level", "list.open")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("v", "level", "level", id="logs.level")]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: tuple[Data, ...] = ()
        """Newest first."""
        self._level = "info"
        self._of: object = None
        """The daemon that numbered them."""

    def compose(self) -> ComposeResult:
        """One list."""
        yield Tail(
            Column("time", 8), Column("level", 8, at_least=44), Column("message"),
            title="Log", empty=("no line of this level yet: v shows others",), id="log", classes="pane -current",
        )  # fmt: skip

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """Another daemon counts its lines from one."""
        pid = snapshot.status.get("daemon", {}).get("pid")
        if pid != self._of:
            self._of, self._lines = pid, ()
        self._show()
        self.tick(snapshot)

    def tick(self, snapshot: Snapshot) -> None:
        """Ask for what is new."""
        if snapshot.link == "live":
            self.begin("load", self._load)

    def selection(self) -> Selection:
        """The line under the cursor, whole."""
        line = self._line(self.query_one("#log", Tail).key)
        return Selection(text="" if line is None else str(line["message"]))

    def action_level(self) -> None:
        """The next level, and after the last one all lines again."""
        self._level = _LEVELS[(_LEVELS.index(self._level) + 1) % len(_LEVELS)]
        self._show()

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """Everything that the line says, with its trace."""
        if (line := self._line(event.key)) is not None:
            rest = {name: value for name, value in line.items() if name not in ("message", "exc", "number")}
            texts = [str(line["message"]), "", json.dumps(rest, ensure_ascii=False, indent=2), "", line.get("exc", "")]
            self.app.push_screen(Page("Log line", [one(part) for text in texts for part in text.split("\n")]))

    async def _load(self) -> None:
        newest = int(self._lines[0]["number"]) if self._lines else 0
        try:
            found = (await self.reef.store.source.get("/reef/logs", after=newest, limit=_PAGE))["lines"]
        except ReefError as error:
            self.query_one("#log", Tail).titled("Log", f"cannot be read: {error.message}")
            return
        if found:
            self._lines = (*reversed(found), *self._lines)[:_KEPT]
            self._show()

    def _show(self) -> None:
        tail = self.query_one("#log", Tail)
        tail.title = f"Log, {self._level} and above"
        wanted = (*_LEVELS[_LEVELS.index(self._level) :], "critical")
        tail.show([_row(line) for line in self._lines if line["level"] in wanted])

    def _line(self, key: str | None) -> Data | None:
        return next((line for line in self._lines if str(line["number"]) == key), None)


def _row(line: Data) -> Row:
    level = str(line["level"])
    kind = _KINDS.get(level, "")
    said = " ".join([str(line["message"]), *(f"{name}={value}" for name, value in _fields(line).items())])
    return Row(str(line["number"]), ((clock(_at(line)), "dim"), (level, kind), (said, kind)))


def _fields(line: Data) -> dict[str, Any]:
    fields = line.get("fields")
    return fields if isinstance(fields, dict) else {}


def _at(line: Data) -> float | None:
    try:
        return datetime.fromisoformat(str(line["time"])).timestamp()
    except ValueError:
        return None
