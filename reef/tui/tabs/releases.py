"""Tab: Releases. The version chain as it grows, and everything that is known of the release under the cursor."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal

from reef.client import path_part
from reef.errors import ReefError
from reef.tui import chain
from reef.tui.painted import Lines
from reef.tui.rows import Rows
from reef.tui.store import Data, Snapshot
from reef.tui.tabs.base import Selection, Tab
from reef.tui.tabs.harness import Harness
from reef.tui.text import Line, one

_NONE = ("No release yet: steps make them, of reports.", "", '  reef call "hello"', "  reef report --score 1")


class Releases(Tab):
    """The second tab."""

    TITLE: ClassVar[str] = "Releases"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"status", "chains", "scenario", "link"})
    FIRST: ClassVar[tuple[str, ...]] = ("act.rollback", "act.promote", "act.reject", "app.copy")

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._read: dict[tuple[str, str], tuple[Data, str]] = {}
        """What was read of a release: itself with its records, and what changed in it."""
        self._of: str | None = None
        self._seen: dict[int, Data] = {}
        """Releases by number, also those below what the snapshot holds."""

    def compose(self) -> ComposeResult:
        """The chain, and a page."""
        with Horizontal():
            yield Rows(*chain.COLUMNS, empty=_NONE, id="chain", classes="pane -current")
            yield Lines(folds=True, id="page", classes="pane")

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """Draw the chain again where it has grown or moved."""
        rows = self.query_one("#chain", Rows)
        nothing = snapshot.chosen.get("surface") == "nothing"
        rows.empty = ("This recipe only records:", "there is nothing to version.") if nothing else _NONE
        if snapshot.scenario != self._of:
            self._of, self._seen = snapshot.scenario, {}
        releases = self._releases(snapshot)
        listed = chain.rows_of(releases, snapshot.chosen, self.symbols)
        rows.show([*listed, *chain.older_row(releases, self.symbols)])
        rows.titled(f"Version chain {snapshot.scenario or ''}", chain.counts(releases, self.symbols))
        self._page()

    def selection(self) -> Selection:
        """The release under the cursor."""
        key = self.query_one("#chain", Rows).key
        return Selection(None if key in (chain.MAKING, chain.OLDER) else key, text=key or "")

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """Show the release that the cursor is on; on the last row, read more."""
        if event.key == chain.OLDER and self.reef.store.snapshot.link == "live":
            self.begin("list", self._load_older)
        self._page()

    def _releases(self, snapshot: Snapshot) -> list[Data]:
        """All that were read, newest first; the snapshot holds the newest, as they are now."""
        self._seen |= {_number(one): one for one in snapshot.releases}
        return [self._seen[number] for number in sorted(self._seen, reverse=True)]

    def _release(self, release_id: str | None) -> Data:
        found = self._releases(self.reef.store.snapshot)
        return next((one for one in found if one["release_id"] == release_id), {})

    async def _load_older(self) -> None:
        """The next page, below the rows that are there."""
        last = min(self._seen)
        path = f"/reef/scenarios/{path_part(self._of or '')}/releases"
        try:
            found = (await self.reef.store.source.get(path, before=last))["releases"]
        except ReefError as error:
            self.reef.tell(error)
            return
        self._seen |= {_number(one): one for one in found}
        self.renew(self.reef.store.snapshot, frozenset({"chains"}))
        if found:
            self.query_one("#chain", Rows).point(str(found[0]["release_id"]))

    async def on_rows_opened(self, event: Rows.Opened) -> None:
        """Its page where there is none beside the chain, else its texts beside those of its parent."""
        page = self.query_one("#page")
        if not page.display:
            self.focus_pane(page)
        elif release := self._release(self.selection().release):
            await self.reef.action_tab(4)
            if isinstance(tab := self.reef.tab, Harness):
                tab.compare(release.get("parent"), str(release["release_id"]))

    def _page(self) -> None:
        snapshot, key = self.reef.store.snapshot, self.selection().release
        release, page = self._release(key), self.query_one("#page", Lines)
        page.titled(f"Selected {key}" if key else "In the making" if self.query_one("#chain", Rows).key else "Selected")
        if not release:
            detail = str(snapshot.chosen.get("detail") or snapshot.chosen.get("waiting_for") or "")
            page.show([one(detail, "dim")] if detail else [])
            return
        scenario, name = str(release["scenario"]), str(release["release_id"])
        known = self._read.get((scenario, name))
        page.show(self._lines(release, snapshot, known))
        if known is None and snapshot.link == "live":
            self.begin("release", self._load, scenario, name)

    def _lines(self, release: Data, snapshot: Snapshot, known: tuple[Data, str] | None) -> list[Line]:
        parent = self._release(release.get("parent"))
        whole = release if known is None else {**release, "records": known[0].get("records", [])}
        return chain.page_of(whole, parent, None if known is None else known[1], self.symbols)

    async def _load(self, scenario: str, name: str) -> None:
        """A release is immutable but for its state, so it is read once."""
        path = f"/reef/scenarios/{path_part(scenario)}/releases/{path_part(name)}"
        try:
            source = self.reef.store.source
            self._read[scenario, name] = (await source.get(path), str((await source.get(f"{path}/diff"))["diff"]))
        except ReefError as error:
            self._read[scenario, name] = ({}, f"what changed cannot be read: {error.message}")
        self._page()


def _number(release: Data) -> int:
    return int(str(release["release_id"])[1:])
