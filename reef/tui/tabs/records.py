"""Tab: Records. Calls and reports as they come and as far back as there are any, and one of them beside the list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from reef.client import path_part
from reef.errors import ReefError
from reef.tui import exchange
from reef.tui.dialogs import Page
from reef.tui.files import save
from reef.tui.paged import Paged
from reef.tui.painted import Lines
from reef.tui.rows import Rows
from reef.tui.store import Data, Snapshot
from reef.tui.tabs.base import Selection, Tab
from reef.tui.text import one

_NONE = ("No record yet. The first one:", "", '  reef call "hello"', "  reef report --score 1")
_PAGE, _SETTLE_S, _READ = 100, 0.04, 64
_KINDS = {"inference": "inference", "report": "report", "reports": "report", "training": "training"}


class Records(Tab):
    """The third tab. A kind or a state among the words of the filter is looked for in all records, not only in those read."""

    TITLE: ClassVar[str] = "Records"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"records", "scenario", "link"})
    FIRST: ClassVar[tuple[str, ...]] = ("records.json", "app.filter", "act.report", "records.export", "app.copy")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "json", "json", id="records.json"),
        Binding("o", "export", "export", id="records.export"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._of: str | None = None
        self._known: dict[str, Data] = {}
        """Rows that are listed or may be, by id."""
        self._read: dict[str, Data] = {}
        """Those that were read whole."""
        self._query: dict[str, str] = {}
        self._last = False
        """There is nothing older than the last row."""

    def compose(self) -> ComposeResult:
        """The list, and a page."""
        with Horizontal():
            yield Paged(*exchange.COLUMNS, title="Records", empty=_NONE, id="list", classes="pane -current")
            yield Lines(folds=True, id="detail", classes="pane")

    @property
    def _list(self) -> Paged:
        return self.query_one("#list", Paged)

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """List what has come; with a filter on kinds the daemon is asked for the newest of them."""
        if snapshot.scenario != self._of:
            self._of, self._known, self._read, self._last = snapshot.scenario, {}, {}, False
            self._list.marked.clear()
            self._list.action_follow() if not self._list.following else None
        self._list.title = f"Records {snapshot.scenario or ''}".rstrip()
        if not self._query:
            self._newest(snapshot.records)
        elif "records" in changed:
            self._ask_newest()
        self._detail()

    def selection(self) -> Selection:
        """The marked records, or the one under the cursor; a report stands for the calls it is about."""
        names = [name for name in self._list.marked if name in self._known] or [self._list.key or ""]
        found = [self._known[name] for name in names if name in self._known]
        calls = [
            str(name)
            for record in sorted(found, key=lambda record: record["seq"])
            for name in (
                [record["agent_record_id"]] if record["request_type"] == "inference" else record.get("references") or ()
            )
        ]
        key = self._list.key or ""
        whole = self._read.get(key)
        reads = self.query_one("#detail", Lines).has_focus and whole is not None
        return Selection(records=tuple(dict.fromkeys(calls)), text=exchange.json_text(whole or {}) if reads else key)

    def unmark(self) -> None:
        """Marks go when something was done with what is marked."""
        self._list.marked.clear()
        self._list.refresh()

    # -- the list

    def _rows(self, records: Iterable[Data]) -> Any:
        return exchange.rows_of(list(records), self.symbols)

    def _newest(self, records: Sequence[Data]) -> None:
        new = {str(record["agent_record_id"]): record for record in records}
        for name, record in new.items():
            if name in self._read and self._known.get(name) != record:
                del self._read[name]  # it has been reported on, or trained on, since
        listed = {row.key for row in self._list.shown} | set(self._list.marked)
        self._known = {name: record for name, record in self._known.items() if name in listed} | new
        if self._list.following:
            self._last = len(records) < _PAGE
        self._list.show(self._rows(records))

    def on_paged_narrowed(self, event: Paged.Narrowed) -> None:
        """Ask the daemon for what only it can find: a kind, a state."""
        words = [] if event.text.startswith("!") else event.text.lower().split()
        kinds, states = {_KINDS[word] for word in words if word in _KINDS}, set(words) & set(exchange.STATES)
        query = {
            name: found.pop() for name, found in (("type", kinds), ("state", states)) if len(found) == 1
        }  # two of them are words like others
        if query != self._query:
            self._query, self._last = query, False
            if not self._list.following:
                self._list.action_follow()
            if query:
                self._ask_newest()
            else:
                self._newest(self.reef.store.snapshot.records)

    def on_paged_at_end(self, event: Paged.AtEnd) -> None:
        """Read the next page, once at a time."""
        reading = any(worker.group == "page" and not worker.is_finished for worker in self.app.workers)
        if not reading and not (event.older and self._last) and self.reef.store.snapshot.link == "live":
            self.begin("page", self._turn, event.older)

    def _ask_newest(self) -> None:
        self.begin("list", self._load_newest)

    async def _load_newest(self) -> None:
        if (found := await self._page(limit=2 * _PAGE, **self._query)) is not None:
            self._newest(found)

    async def _turn(self, older: bool) -> None:
        first, last = self._list.ends
        edge = self._known.get((last if older else first) or "")
        if edge is None:
            return
        side = {"before": edge["seq"]} if older else {"after": edge["seq"]}
        if (found := await self._page(limit=_PAGE, **side, **self._query)) is None:
            return
        if (last if older else first) != self._list.ends[older]:
            return  # another list is shown by now
        self._known |= {str(record["agent_record_id"]): record for record in found}
        if older:
            self._last = len(found) < _PAGE
            self._list.older(self._rows(found))
        else:
            self._last = False
            self._list.newer(self._rows(reversed(found)))

    async def _page(self, **query: Any) -> list[Data] | None:
        try:
            path = f"/reef/scenarios/{path_part(self._of or '')}/records"
            found: list[Data] = (await self.reef.store.source.get(path, **query))["records"]
        except ReefError as error:
            self.reef.tell(error)
            return None
        return found

    # -- the page beside it

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """Show the record that the cursor is on."""
        self._detail()

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """Its page where there is none beside the list, else all of it."""
        detail = self.query_one("#detail", Lines)
        if detail.display:
            self.action_json()
        else:
            self.focus_pane(detail)

    def _detail(self) -> None:
        pane, key = self.query_one("#detail", Lines), self._list.key or ""
        record = self._read.get(key) or self._known.get(key)
        pane.titled("Detail")
        if record is None:
            pane.show([])
            return
        pane.show(exchange.page_of(record, self.symbols))
        if key not in self._read and self.reef.store.snapshot.link == "live":
            self.begin("load", self._load, key)

    async def _load(self, key: str) -> None:
        await asyncio.sleep(_SETTLE_S)  # a key that is held down asks for the last record only
        try:
            found = await self.reef.store.source.get(f"/reef/records/{path_part(key)}")
        except ReefError as error:
            self.query_one("#detail", Lines).show([one(f"it cannot be read: {error.message}", "bad")])
            return
        self._read = dict(list(self._read.items())[-_READ:]) | {key: found}
        self._detail()

    def action_json(self) -> None:
        """All of the record."""
        key = self._list.key or ""
        if (whole := self._read.get(key)) is not None:
            self.app.push_screen(Page(f"Record {key}", exchange.json_lines(whole), folds=True))

    # -- export

    def action_export(self) -> None:
        """Write the marked records, or else all that are listed, with their bodies."""
        listed = [row.key for row in self._list.shown]
        names = sorted(self._list.marked & set(self._known), key=lambda name: self._known[name]["seq"]) or listed[::-1]
        if names:
            self.begin("act", self._export, names)
        else:
            self.reef.say("there is nothing to export", "warning")

    async def _export(self, names: Sequence[str]) -> None:
        if len(names) > _PAGE:
            self.reef.say(f"reading {len(names)} records")
        try:
            source = self.reef.store.source
            lines = [json.dumps(await source.get(f"/reef/records/{path_part(name)}")) for name in names]
        except ReefError as error:
            self.reef.tell(error)
            return
        what = f"{len(names)} records"
        if await save(self.reef, f"reef-records-{self._of}", "jsonl", lines, f"reef export -s {self._of}", what):
            self.unmark()
