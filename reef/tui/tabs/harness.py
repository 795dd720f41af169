"""Tab: Harness. The files of two releases and what changed in each; for weights, what changed in figures."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from reef.errors import ReefError
from reef.tui import diff
from reef.tui.dialogs import Form
from reef.tui.painted import Lines
from reef.tui.rows import Rows
from reef.tui.store import Snapshot
from reef.tui.tabs.base import Selection, Tab
from reef.tui.text import one

_NONE = ("No harness yet:", "", "  reef up --recipe harness", "  reef harness install pi")
_KEPT = 40


class Harness(Tab):
    """The fifth tab. Without a choice it compares what is served with what that was made from."""

    TITLE: ClassVar[str] = "Harness"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"status", "chains", "scenario", "link"})
    FIRST: ClassVar[tuple[str, ...]] = (
        "harness.compare", "harness.next_file", "harness.next_hunk", "harness.split", "act.install", "app.copy",
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "compare", "compare", id="harness.compare"),
        Binding("]", "file(1)", "file", id="harness.next_file"),
        Binding("[", "file(-1)", "file before", show=False, id="harness.previous_file"),
        Binding("}", "hunk(1)", "hunk", id="harness.next_hunk"),
        Binding("{", "hunk(-1)", "hunk before", show=False, id="harness.previous_hunk"),
        Binding("s", "split", "split", id="harness.split"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._of: str | None = None
        self._asked: tuple[str | None, str] | None = None
        """What somebody chose to compare; None for what is served."""
        self._trees: dict[tuple[str, str], diff.Tree] = {}
        self._trouble: dict[tuple[str, str], str] = {}
        self._changes: list[diff.Change] = []
        self._compared: tuple[str | None, str | None] = (None, None)
        self._hunks: list[int] = []
        self._split = False

    def compose(self) -> ComposeResult:
        """Files, and the change of one."""
        with Horizontal():
            yield Rows(*diff.COLUMNS, empty=_NONE, id="files", classes="pane -current")
            yield Lines(id="diff", classes="pane")

    @property
    def _files(self) -> Rows:
        return self.query_one("#files", Rows)

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """Compare; trees are read once, for a release does not change."""
        if snapshot.scenario != self._of:
            self._of, self._asked = snapshot.scenario, None
        if snapshot.chosen.get("surface") != "harness":
            self._without(snapshot)
            return
        old, new = self._pair(snapshot)
        missing = [name for name in (old, new) if name and (self._of, name) not in self._trees]
        if new is None:
            self._files.empty = ("nothing is served yet",)
            self._show([], (None, None))
        elif missing:
            wrong = [self._trouble[key] for name in missing if (key := (str(self._of), name)) in self._trouble]
            self._files.empty = tuple(wrong) or (f"reading {' and '.join(missing)}",)
            self._show([], (old, new))
            if not wrong and snapshot.link == "live":
                self.begin("load", self._load, str(self._of), missing)
        else:
            trees = [self._trees[str(self._of), name] if name else {} for name in (old, new)]
            self._show(diff.changes_of(*trees), (old, new))

    def compare(self, old: str | None, new: str) -> None:
        """Compare these two from now on."""
        self._of, self._asked, self._trouble = self.reef.store.snapshot.scenario, (old, new), {}
        self.renew(self.reef.store.snapshot, frozenset({"chains"}))

    def selection(self) -> Selection:
        """The release that is looked at; ``y`` copies the new text of the file."""
        change = self._change()
        return Selection(release=self._compared[1], text=(change.new or change.old or "") if change else "")

    # -- what is compared

    def _pair(self, snapshot: Snapshot) -> tuple[str | None, str | None]:
        if self._asked is not None:
            return self._asked
        head = snapshot.chosen.get("release_id")
        parent = snapshot.release(head).get("parent")
        return (str(parent) if parent else None), (str(head) if head else None)

    def _without(self, snapshot: Snapshot) -> None:
        """There is no harness here: say what there is instead."""
        pane, row = self.query_one("#diff", Lines), snapshot.chosen
        old, new = self._pair(snapshot)
        self._changes, self._compared = [], (old, new)
        weights = row.get("surface") == "weights"
        self._files.empty = (
            _NONE if not row else ("This recipe trains weights." if weights else "This recipe only records.",)
        )
        self._files.show([])
        self._files.titled("Files")
        pane.titled(f"{old or 'nothing'} {self.symbols.to} {new}" if weights and new else "Change")
        pane.show(diff.weights_lines(snapshot.release(new), snapshot.release(old)) if weights else [])

    async def _load(self, scenario: str, names: list[str]) -> None:
        for name in names:
            try:
                found = await self.reef.store.source.get("/reef/harness", scenario=scenario, release=name)
                self._trees = dict(list(self._trees.items())[-_KEPT:]) | {
                    (scenario, name): diff.tree_of(found["entries"])
                }
            except ReefError as error:
                self._trouble[scenario, name] = f"{name} cannot be read: {error.message}"
        self.renew(self.reef.store.snapshot, frozenset({"chains"}))

    def _show(self, changes: list[diff.Change], compared: tuple[str | None, str | None]) -> None:
        fresh = changes != self._changes or compared != self._compared
        self._changes, self._compared = changes, compared
        files, (old, new) = self._files, compared
        files.titled(f"{old or 'nothing'} {self.symbols.to} {new or '-'}", diff.said(changes) if changes else "")
        files.show(diff.rows_of(changes))
        if fresh and (first := next((one.name for one in changes if one.sign != " "), None)):
            files.point(first)
        self._draw()

    # -- one file

    def _change(self) -> diff.Change | None:
        return next((change for change in self._changes if change.name == self._files.key), None)

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """Show the file that the cursor is on."""
        self.query_one("#diff", Lines).scroll_home(animate=False)
        self._draw()

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """Read it."""
        self.focus_pane(self.query_one("#diff"))

    def _draw(self) -> None:
        pane, change = self.query_one("#diff", Lines), self._change()
        if change is None:
            pane.titled("Change")
            pane.show([])
            return
        added = "as it was" if change.sign == " " else "+{} -{}".format(*change.counts)
        pane.titled(change.name, f"{added}   {'split' if self._split else 'unified'}")
        lines, self._hunks = diff.lines_of(change, pane.room.width, split=self._split)
        pane.show(lines or [one("the file is empty", "dim")])

    def action_file(self, by: int) -> None:
        """The next file, or the one before."""
        self._files.action_move(by)

    def action_hunk(self, by: int) -> None:
        """The next change in the file, or the one before."""
        pane = self.query_one("#diff", Lines)
        here = int(pane.scroll_offset.y)
        later = [at for at in self._hunks if at > here] if by > 0 else [at for at in self._hunks if at < here][::-1]
        if later:
            pane.scroll_to(y=later[0], animate=False)

    def action_split(self) -> None:
        """Old and new side by side, or one below the other."""
        if not self._split and self.query_one("#diff", Lines).room.width < diff.SPLIT_CELLS:
            self.reef.say(f"a split needs {diff.SPLIT_CELLS} columns: zoom the pane with z", "warning")
            return
        self._split = not self._split
        self._draw()

    def action_compare(self) -> None:
        """Choose two releases."""
        self.begin("act", self._choose)

    async def _choose(self) -> None:
        old, new = self._compared
        fields = [
            ("old", "release, for example r3; none for an empty harness", old or ""),
            ("new", "is compared with", new or ""),
        ]
        values = await self.app.push_screen_wait(Form("Compare", fields, "Compare"))
        if values and values["new"]:
            self.compare(values["old"] or None, values["new"])
