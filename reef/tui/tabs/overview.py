"""Tab: Overview. Everything at a glance: cards, scenarios, what happens now; on wide terminals also rewards and the chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from reef.tui import chain, happening
from reef.tui.chart import chart
from reef.tui.painted import Lines
from reef.tui.rows import Cell, Column, Row, Rows
from reef.tui.store import Snapshot
from reef.tui.symbols import gauge, spark
from reef.tui.tabs.base import Selection, Tab
from reef.tui.tail import Tail
from reef.tui.text import Line, Span, number, one, size, span_of
from reef.tui.traffic import traffic

_FIRST_CALLS = (
    "No record yet. The first one:",
    "",
    '  reef call "hello"',
    "  reef wrap claude      (or codex, pi, opencode)",
)
_STATES = {"training": "accent", "held": "warn", "blocked": "bad", "failed": "bad", "paused": "warn"}


class Overview(Tab):
    """The first tab."""

    TITLE: ClassVar[str] = "Overview"
    FIRST: ClassVar[tuple[str, ...]] = ("app.filter", "act.pause", "act.report")

    def compose(self) -> ComposeResult:
        """Cards above, lists left, chart and chain right."""
        with Horizontal(classes="cards full-only"):
            for name in ("traffic", "records", "training", "release"):
                card = Lines(id=name, classes="card")
                card.can_focus = False
                yield card
        with Horizontal():
            with Vertical(id="left"):
                yield Rows(
                    Column("name"), Column("recipe", 8, at_least=60), Column("head", 5), Column("step", 4, right=True),
                    Column("reward", 12), Column("queue", 6, at_least=60), Column("last seen", 9, at_least=84),
                    Column("state", 11), empty=_FIRST_CALLS, id="scenarios", classes="pane -current",
                )  # fmt: skip
                yield Tail(
                    *happening.COLUMNS,
                    title="Live tail",
                    empty=("nothing has happened yet",),
                    id="tail",
                    classes="pane",
                )
            with Vertical(id="right", classes="wide-only"):
                yield Lines(id="reward", classes="card")
                yield Rows(*chain.COLUMNS, empty=("no release yet",), id="chain", classes="pane wide-only")

    def on_mount(self) -> None:
        """The chart has no keys."""
        self.query_one("#reward", Lines).can_focus = False

    def renew(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        """Each pane only when what it shows has changed."""
        if changed & {"events", "records", "scenario"}:
            rows = happening.rows_of(snapshot.events, snapshot.records, self.symbols)
            self.query_one("#tail", Tail).show(rows)
        if changed & {"status", "chains", "scenario", "events"}:
            self._scenarios(snapshot)
            self._cards(snapshot)
        if changed & {"chains", "scenario", "status"}:
            pane = self.query_one("#chain", Rows)
            pane.show(chain.rows_of(snapshot.releases, snapshot.chosen, self.symbols))
            pane.titled("Version chain", chain.counts(snapshot.releases, self.symbols))
        if changed & {"steps", "scenario"}:
            self._chart(snapshot)

    def tick(self, snapshot: Snapshot) -> None:
        """Figures of the last minute age."""
        self._cards(snapshot)

    def selection(self) -> Selection:
        """A release of the chain, or a scenario."""
        focused = self.screen.focused
        if focused is self.query_one("#chain"):
            release = self.query_one("#chain", Rows).key
            return Selection(None if release == chain.MAKING else release, text=release or "")
        if isinstance(focused, Tail) and focused.key is not None:
            row = next(row for row in focused.shown if row.key == focused.key)
            return Selection(text=row.words)
        return Selection(text=self.query_one("#scenarios", Rows).key or "")

    async def on_rows_opened(self, event: Rows.Opened) -> None:
        """A scenario or a release is looked at in the next tab."""
        if event.rows.id == "scenarios":
            self.reef.store.show(event.key)
        if event.rows.id in ("scenarios", "chain"):
            await self.reef.action_tab(1)

    # -- panes

    def _scenarios(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#scenarios", Rows)
        if snapshot.status_at is None:
            rows.empty = ("waiting for the daemon",)
        else:
            rows.empty = _FIRST_CALLS
        rows.show([self._scenario(row, snapshot) for row in snapshot.scenarios])
        rows.titled(f"Scenarios {len(snapshot.scenarios)}" if snapshot.scenarios else "Scenarios")

    def _scenario(self, row: Mapping[str, Any], snapshot: Snapshot) -> Row:
        name, state, batch = str(row["name"]), str(row["state"]), row["batch"]
        releases = snapshot.chains.get(name, ())
        rewards = [found for one in reversed(releases) if (found := chain.reward_of(one)) is not None]
        kind = _STATES.get(state, "good" if row["release_id"] else "dim")
        mark = (
            self.symbols.busy
            if state == "training"
            else self.symbols.serving
            if row["release_id"]
            else self.symbols.idle
        )
        reward: Span = (f"{rewards[-1]:.2f} {spark(rewards[-7:], self.symbols)}", "accent") if rewards else ("-", "dim")
        cells: tuple[Cell, ...] = (
            (name, "bold" if name == snapshot.scenario else ""), str(row["recipe"]), str(row["release_id"] or "-"),
            str(row["step"] or "-"), reward, f"{batch['have']}/{batch['need']}" if batch["need"] else "-",
            (self._seen_of(name, snapshot), "dim"), (f"{mark} {'serving' if kind == 'good' else state}", kind),
        )  # fmt: skip
        return Row(name, cells)

    def _seen_of(self, name: str, snapshot: Snapshot) -> str:
        at = next((event["at"] for event in snapshot.events if event["scenario"] == name), None)
        if at is None and name == snapshot.scenario and snapshot.records:
            at = snapshot.records[0]["created_at"]
        return "-" if at is None else span_of(self.reef.clock() - at)

    def _cards(self, snapshot: Snapshot) -> None:
        cards = {
            "traffic": self._traffic(snapshot), "records": self._records(snapshot), "training": self._training(snapshot),
            "release": self._release(snapshot),
        }  # fmt: skip
        for name, lines in cards.items():
            card = self.query_one(f"#{name}", Lines)
            card.titled(name.capitalize())
            card.show(lines if snapshot.status else [one(" -", "dim")])

    @property
    def _roomy(self) -> bool:
        return self.screen.has_class("-wide")

    def _traffic(self, snapshot: Snapshot) -> list[Line]:
        found = traffic(snapshot.events, self.reef.clock())
        if not found.calls:
            return [one(" no call in the", "dim"), one(" last minute", "dim")]
        rate: Line = ((f" {found.rate:.1f} req/s  ", ""), (spark(list(found.buckets), self.symbols)[-6:], "accent"))
        p95 = f" p95 {number(found.p95_ms, 0)} ms"
        times = f" p50 {number(found.p50_ms, 0)} ms {p95}" if self._roomy else p95
        return [rate, one(times), one(f" {found.errors} errors", "bad" if found.errors else "dim")]

    def _records(self, snapshot: Snapshot) -> list[Line]:
        calls = reports = parked = 0
        for row in snapshot.scenarios:
            calls += sum(row["counts"].get("inference", {}).values())
            reports += sum(row["counts"].get("report", {}).values())
            parked += row["counts"].get("report", {}).get("parked", 0)
        store = snapshot.status.get("store") or {}
        bodies = f"  {size(store.get('bytes', 0))}" if self._roomy else ""
        waiting: Line = ((f" {parked:>5,} waiting", "warn" if parked else "dim"), (bodies, "dim"))
        return [one(f" {calls:>5,} inference"), one(f" {reports:>5,} reports"), waiting]

    def _training(self, snapshot: Snapshot) -> list[Line]:
        row = snapshot.chosen
        if not row:
            return [one(" -", "dim")]
        have, need = row["batch"]["have"], row["batch"]["need"]
        state = str(row["state"])
        first: Line = ((f" step {row['step']}  ", ""), (state, _STATES.get(state, "dim")))
        batch = f" batch {have}/{need} {gauge(have, need, 4, self.symbols)}" if need else " no batch"
        return [first, one(batch), one(f" {row['detail'] or row['waiting_for']}", "dim")]

    def _release(self, snapshot: Snapshot) -> list[Line]:
        row, states = snapshot.chosen, [str(one["state"]) for one in snapshot.releases]
        if not row or not row["release_id"]:
            return [one(" nothing versioned", "dim")]
        held, rejected = states.count("held"), states.count("rejected")
        return [
            ((f" {row['release_id']} ", "bold"), ("serving", "good")),
            one(f" {held} held for review", "warn" if held else "dim"),
            one(f" {rejected} rejected", "dim"),
        ]

    def _chart(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#reward", Lines)
        pane.titled(f"Reward by step of {snapshot.scenario or '-'}")
        found = [(step["step"], chain.reward_of(step)) for step in reversed(snapshot.steps)]
        values = [value for _, value in found if value is not None]
        first = next((at for at, value in found if value is not None), 0)
        width, height = pane.size.width or 48, pane.size.height or 11
        pane.show(chart(values, width, height, ascii_only=self.symbols.plain, first=first))
