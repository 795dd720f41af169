"""The frame round the tabs: status line, tab line, key line, filter line, and the card of a daemon that is down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import Input

from reef.tui.painted import Lines, wrapped
from reef.tui.rows import Rows
from reef.tui.store import Snapshot
from reef.tui.text import Line, one, span_of, uptime

if TYPE_CHECKING:
    from reef.tui.app import ReefApp

_NARROW = 80
_LAST = ("app.palette", "app.help")
"""Keys that the key line ends with."""


class Bar(Lines, can_focus=False):
    """One line of parts, each of which may be clicked."""

    def parts(self, parts: Sequence[tuple[Line, str]]) -> None:
        """Show these side by side; the second of each is the action that a click runs."""
        self._ends: list[tuple[int, str]] = []
        end = 0
        line: Line = ()
        for spans, action in parts:
            end += sum(cell_len(text) for text, _ in spans)
            self._ends.append((end, action))
            line = (*line, *spans)
        self.show([line])

    async def on_click(self, event: events.Click) -> None:
        """Run what was clicked."""
        for end, action in getattr(self, "_ends", ()):
            if event.x < end:
                if action:
                    await self.app.run_action(action)
                return


class StatusLine(Bar):
    """Daemon, time up, address, scenario, and how old all of it is."""

    def say(self, snapshot: Snapshot, now: float, demo: bool, read_only: bool) -> None:
        """Show these, and as much of the rest as there is room for."""
        width, status = self.size.width, snapshot.status
        word, kind = _state(snapshot)
        mark = self.symbols.serving if kind == "good" else self.symbols.busy
        age = "no data yet" if snapshot.status_at is None else span_of(now - snapshot.status_at)
        if snapshot.link == "down":
            age += f", again in {max(0.0, snapshot.retry_at - now):.0f} s"
        right: Line = ((f"{age} ", "bad" if snapshot.link == "down" else "dim"),)
        narrow = width < _NARROW
        left: list[Line] = [((" " if narrow else " reef ", "bold"), (f"{mark} {word}", kind))]
        if demo:
            left.append((("  DEMO DATA", "warn"),))
        left.append((("  " if narrow else "  scenario: ", "dim"), (snapshot.scenario or "-", "accent")))
        extra: list[Line] = []
        if status:
            extra.append((("  up ", "dim"), (uptime(status["daemon"]["uptime_s"]), "")))
        extra.append(((f"  {snapshot.address.removeprefix('http://')}" if not demo else "", "dim"),))
        if read_only:
            extra.append((("  read-only", "warn"),))
        if chosen := snapshot.chosen:
            extra.append((("  recipe: ", "dim"), (str(chosen["recipe"]), "")))
            extra.append((("  head: ", "dim"), (str(chosen["release_id"] or "-"), "")))
        room = width - sum(map(_cells, left)) - _cells(right) - 1
        for part in extra:
            if (room := room - _cells(part)) < 0:
                break
            left.append(part)
        gap = width - sum(map(_cells, left)) - _cells(right)
        self.parts([*((part, "") for part in left), (((" " * max(1, gap), ""), *right), "refresh")])


def _state(snapshot: Snapshot) -> tuple[str, str]:
    if snapshot.link != "live":
        return snapshot.link, "bad" if snapshot.link == "down" else "warn"
    if snapshot.status["store"]["degraded"]:
        return "degraded", "warn"
    if (snapshot.status["inference"].get("upstream") or {}).get("failing"):
        return "provider fails", "warn"
    return ("serving", "good") if snapshot.status["daemon"]["ready"] else ("starting", "warn")


def _cells(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


class TabLine(Bar):
    """The seven, with their keys."""

    def say(self, titles: Sequence[str], current: int) -> None:
        """Show which is in front."""
        self.parts(
            [
                (((" ", ""), (f"{at + 1} {title}", "marked" if at == current else "dim"), (" ", "")), f"tab({at})")
                for at, title in enumerate(titles)
            ]
        )


class KeyLine(Bar):
    """The keys of the pane that has them; whole ones only, the palette and the help last."""

    def on_resize(self) -> None:
        """Say it in the new width, as all of the frame."""
        self.call_later(cast("ReefApp", self.app).resized)

    def say(self, first: Sequence[str], *, alone: bool) -> None:
        """Show what can be pressed now: keys of the pane, then ``first``, then the others; or ``first`` alone."""
        app = cast("ReefApp", self.app)
        found: dict[str, tuple[str, str, str]] = {}
        early: list[str] = []
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show and binding.id and active.enabled and binding.id not in found:
                found[binding.id] = (app.shown_key(binding), binding.description, binding.action)
                if active.node is not app:
                    early.append(binding.id)
        last = [found.pop(name) for name in _LAST if name in found]
        room = self.size.width - sum(cell_len(key) + len(said) + 3 for key, said, _ in last)
        parts: list[tuple[Line, str]] = []
        wanted = first if alone else (*early, *first, *found)
        order = dict.fromkeys(name for name in wanted if name in found)
        for key, said, action in (found[name] for name in order):
            if (room := room - cell_len(key) - len(said) - 3) < 0:
                break
            parts.append((_key(key, said), action))
        self.parts([*parts, *((_key(key, said), action) for key, said, action in last)])

    async def on_click(self, event: events.Click) -> None:
        """Press it, for whichever pane has the keys."""
        for end, action in getattr(self, "_ends", ()):
            if event.x < end:
                await self.app.run_action(action, self.screen.focused or self.app)
                return


def _key(key: str, said: str) -> Line:
    return ((f" {key}", "accent"), (f" {said} ", "dim"))


class FilterLine(Input):
    """Where the filter of a list is typed; the list is narrowed with every letter."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "clear", "show all", id="filter.clear")]

    def __init__(self) -> None:
        super().__init__(placeholder="words to look for; ! first turns it round", id="filter", compact=True)
        self.rows: Rows | None = None

    def begin(self, rows: Rows) -> None:
        """Type for this list."""
        self.rows = rows
        self.value = rows.filter
        self.display = True
        self.focus()

    def on_input_changed(self) -> None:
        """Narrow the list."""
        if self.rows is not None:
            self.rows.narrow(self.value)

    def on_input_submitted(self) -> None:
        """Back to the list, which stays narrow."""
        self.leave()

    def action_clear(self) -> None:
        """All rows again."""
        self.value = ""
        self.leave()

    def leave(self) -> None:
        """Give the keys back."""
        rows, self.rows = self.rows, None
        if rows is not None:
            rows.narrow(self.value)
            rows.focus()
        self.display = bool(rows is not None and rows.filter)


class Down(Lines):
    """Takes the screen while there is nothing to show: no daemon has answered yet."""

    def say(self, snapshot: Snapshot, now: float, startable: bool) -> None:
        """Say where none is, why, and what can be done."""
        width = max(20, self.size.width - 6)
        lines: list[Line] = [
            (),
            one(f"  no daemon {f'at {snapshot.address}' if snapshot.address else 'answers'}", "bold"),
            (),
        ]
        lines += [one(f"  {text}", "bad") for text in wrapped(snapshot.trouble, width)]
        lines += [(), one(f"  trying again in {max(0.0, snapshot.retry_at - now):.0f} s", "dim"), ()]
        if startable:
            lines.append((("  d", "accent"), ("  start it (reef up)", "")))
        lines += [(("  u", "accent"), ("  use another address", "")), (("  q", "accent"), ("  leave", ""))]
        self.show(lines)
