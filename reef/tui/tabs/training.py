"""Tab: Training. Rewards by step, why nothing trains, what the gate found; beside each of them where the loop stands."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from reef.tui import training
from reef.tui.chart import plot
from reef.tui.files import save
from reef.tui.painted import Lines
from reef.tui.store import Snapshot
from reef.tui.tabs.base import Selection, Tab

_LEAST_SHOWN = 5
_NONE = "no step has been made yet: w says why"


class View(Lines):
    """Is drawn for its size."""

    def on_resize(self) -> None:
        """Draw again."""
        next(one for one in self.ancestors if isinstance(one, Training)).draw()


class Training(Tab):
    """The fourth tab. One pane shows one of three views."""

    TITLE: ClassVar[str] = "Training"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"status", "steps", "chains", "scenario", "link"})
    FIRST: ClassVar[tuple[str, ...]] = (
        "training.chart", "training.why", "training.gate", "act.pause", "act.step", "training.closer",
        "training.farther", "training.log", "training.newer", "training.older", "training.export",
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "view('chart')", "chart", id="training.chart"),
        Binding("w", "view('why')", "why", id="training.why"),
        Binding("v", "view('gate')", "gate", id="training.gate"),
        Binding("+,=", "zoom(1)", "zoom", id="training.closer"),
        Binding("-", "zoom(-1)", "zoom out", show=False, id="training.farther"),
        Binding("L", "log", "log scale", id="training.log"),
        Binding("]", "other(-1)", "newer", id="training.newer"),
        Binding("[", "other(1)", "older", id="training.older"),
        Binding("o", "export", "csv", id="training.export"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._view = "chart"
        self._last: int | None = None
        """How many steps are drawn; None for all."""
        self._log = False
        self._judged: str | None = None
        """The candidate that the gate view shows; None for the newest."""

    def compose(self) -> ComposeResult:
        """The view, and the loop."""
        with Horizontal():
            yield View(folds=True, id="view", classes="pane -current")
            yield Lines(folds=True, id="loop", classes="pane")

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """Draw again; panes paint only what is another line."""
        loop = self.query_one("#loop", Lines)
        loop.titled(f"Loop {snapshot.scenario or ''}".rstrip())
        loop.show(training.loop_lines(snapshot, self.symbols))
        self.draw()

    def selection(self) -> Selection:
        """The candidate of the gate view; for copying, the sentence that says why."""
        found = self._chosen(self.reef.store.snapshot) if self._view == "gate" else None
        name = str(found["release_id"]) if found and "verdict" in found else None
        return Selection(release=name, text=name or training.why(self.reef.store.snapshot))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of one view are not those of another."""
        if action == "view":
            return parameters != (self._view,)
        return {"zoom": "chart", "log": "chart", "other": "gate"}.get(action, self._view) == self._view

    def action_view(self, name: str) -> None:
        """Show this one."""
        self._view = name
        self.refresh_bindings()
        self.query_one("#view", Lines).scroll_home(animate=False)
        self.draw()

    def action_zoom(self, by: int) -> None:
        """Draw half as many of the newest steps, or twice as many."""
        steps = len(self.reef.store.snapshot.steps)
        wanted = (self._last or steps) // 2 if by > 0 else (self._last or steps) * 2
        self._last = None if wanted >= steps else max(_LEAST_SHOWN, wanted)
        self.draw()

    def action_log(self) -> None:
        """Rewards on a scale of powers of ten, or not."""
        if not self._log and not training.above_zero(self.reef.store.snapshot.steps):
            self.reef.say("a log scale needs rewards above 0", "warning")
            return
        self._log = not self._log
        self.draw()

    def action_other(self, by: int) -> None:
        """Another candidate of the gate view."""
        names = [str(one["release_id"]) for one in training.judged(self.reef.store.snapshot)]
        if names:
            at = names.index(self._judged) if self._judged in names else 0
            self._judged = names[max(0, min(at + by, len(names) - 1))]
            self.draw()

    def action_export(self) -> None:
        """Write all steps that are known, with their metrics."""
        steps, name = self.reef.store.snapshot.steps, self.reef.store.snapshot.scenario
        if not steps:
            self.reef.say("no step has been made yet", "warning")
            return
        lines, what = training.csv_lines(steps), f"{len(steps)} steps"
        twin = f"reef releases -s {name} --json"
        self.begin("act", save, self.reef, f"reef-steps-{name}", "csv", lines, twin, what)

    # -- inside

    def _chosen(self, snapshot: Snapshot) -> training.Data | None:
        found = training.judged(snapshot)
        return next((one for one in found if one["release_id"] == self._judged), found[0] if found else None)

    def draw(self) -> None:
        """The view that is chosen."""
        snapshot, pane = self.reef.store.snapshot, self.query_one("#view", Lines)
        if self._view == "why":
            pane.titled(f"Why? {snapshot.scenario or ''}".rstrip(), "from reports to releases")
            pane.show(training.funnel_lines(snapshot, self.symbols))
        elif self._view == "gate":
            found = self._chosen(snapshot)
            pane.titled(f"Gate {found['release_id'] if found else ''}".rstrip(), training.needed(found))
            pane.show(training.gate_lines(found, snapshot, pane.room.width, pane.room.height, self.symbols))
        else:
            self._chart(pane, snapshot)

    def _chart(self, pane: Lines, snapshot: Snapshot) -> None:
        log = self._log and training.above_zero(snapshot.steps)
        series, beside = training.rewards(snapshot.steps, self._last, log=log)
        marks = ("* ", "o ") if self.symbols.plain else ("─ ", "┄ ")
        named = f"{marks[0]}train" + (f"  {marks[1]}{beside}" if beside else "")
        shown = f"the last {self._last}" if self._last else "all steps"
        pane.titled("Reward by step", f"{named}   {shown}{'   log' if log else ''}")
        width, height = pane.room
        label = (lambda value: f"{10**value:.2g}") if log else "{:5.2f}".format
        pane.show(plot(series, width, height, ascii_only=self.symbols.plain, label=label, empty=_NONE))
