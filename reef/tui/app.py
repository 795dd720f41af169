"""The app: the frame, the tabs, the keys. Knows the store and the actions; shows nothing itself but where things stand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.keys import format_key
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Static

from reef.errors import ReefError
from reef.tui.actions import ACTIONS, Entry
from reef.tui.child import run_child
from reef.tui.dialogs import Form, Page
from reef.tui.frame import Down, FilterLine, KeyLine, StatusLine, TabLine
from reef.tui.help import help_page, log_page
from reef.tui.keys import ids_of, read_keys
from reef.tui.painted import Painted
from reef.tui.rows import Rows
from reef.tui.source import Connect, of_url
from reef.tui.store import ALL, WAITS_S, Snapshot, Store
from reef.tui.symbols import symbols_for
from reef.tui.tabs import TABS
from reef.tui.tabs.base import Selection, Tab
from reef.tui.text import plain, sendable

_ACTIONS = {action.name: action for action in ACTIONS}
_DOWN_KEYS = ("app.start_daemon", "app.other_address", "app.quit")
_SHOWN = {"escape": "esc"}


class Main(Screen[None]):
    """The one screen under the dialogs; tab goes from pane to pane."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.pane(1)", "next pane", show=False, id="app.next_pane"),
        Binding("shift+tab", "app.pane(-1)", "previous pane", show=False, id="app.previous_pane"),
    ]


class ReefApp(App[None]):
    """``connect`` makes sources of data; ``home`` is where ``d`` starts a daemon, None where that is not offered."""

    CSS_PATH = "reef.tcss"
    TITLE = "reef"
    COMMAND_PALETTE_BINDING = "ctrl+p"
    COMMAND_PALETTE_DISPLAY = "ctrl+p"
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-tiny"), (40, "-narrow"), (80, "-normal"), (100, "-wide"),
    ]  # fmt: skip
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-flat"),
        (10, "-short"),
        (24, "-tall"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(at + 1), f"tab({at})", tab.TITLE, show=False, id=f"tab.{tab.TITLE.lower()}")
          for at, tab in enumerate(TABS)),
        Binding("d", "start_daemon", "start it", id="app.start_daemon"),
        Binding("u", "other_address", "other address", id="app.other_address"),
        Binding("/", "filter", "filter", id="app.filter"),
        *(Binding(action.key, f"act('{action.name}')", action.title, id=f"act.{action.name}") for action in ACTIONS),
        Binding("S", "scenario", "scenario", id="app.scenario"),
        Binding("y", "copy", "copy", id="app.copy"),
        Binding("z", "zoom", "zoom", id="app.zoom"),
        Binding("@", "log", "what was done", show=False, id="app.log"),
        Binding("t", "change_theme", "theme", show=False, id="app.theme"),
        Binding("escape", "back", "back", show=False, id="app.back"),
        Binding("ctrl+r", "refresh", "ask the daemon now", show=False, id="app.refresh"),
        Binding("q", "quit", "quit", id="app.quit"),
        Binding("ctrl+p,:", "command_palette", "commands", id="app.palette"),
        Binding("question_mark", "help", "help", id="app.help"),
    ]  # fmt: skip

    def __init__(
        self,
        connect: Connect,
        *,
        home: Path | None = None,
        scenario: str | None = None,
        read_only: bool = False,
        demo: bool = False,
        ascii_only: bool = False,
        theme: str | None = None,
        keys: Path | None = None,
        clock: Callable[[], float] = time.time,
        waits_s: Sequence[float] = WAITS_S,
    ) -> None:
        self.symbols = symbols_for(ascii_only)
        self.clock = clock
        self.home = home
        self.read_only = read_only
        self.demo = demo
        self.log_of_acts: list[Entry] = []
        super().__init__()
        self.store = Store(connect, self._changed, scenario=scenario, clock=clock, waits_s=waits_s)
        self._tab = 0
        self._wrong_keys: list[str] = []
        if theme is not None:
            self.theme = theme
        if keys is not None:
            keymap, self._wrong_keys = read_keys(keys, self._binding_ids())
            self.set_keymap(keymap)

    # -- the frame

    def get_default_screen(self) -> Screen[None]:
        """The screen under the dialogs."""
        return Main(id="_default")

    def compose(self) -> ComposeResult:
        """Frame and first tab; the others are made when they are asked for."""
        yield StatusLine(id="status")
        yield TabLine(id="tab-line")
        with ContentSwitcher(id="tabs", initial=_tab_id(0)):
            yield TABS[0](id=_tab_id(0))
        yield Down(id="down")
        yield Static("reef needs 40 columns and 10 lines", id="too-small")
        yield FilterLine()
        yield KeyLine(id="keys")

    def on_mount(self) -> None:
        """Begin to read, to tick, and to end well when asked to by a signal."""
        self.screen.set_class(self.symbols.plain, "-ascii")
        self._say_tabs()
        self.tab.renew(self.store.snapshot, ALL)
        self.tab.go(0)
        self.run_worker(self.store.poll(), group="poll", exclusive=True)
        self.run_worker(self.store.follow(), group="follow", exclusive=True)
        self.run_worker(self.store.drain(), group="drain", exclusive=True)
        self.set_interval(1.0, self.tick)
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self._say_keys())
        for wrong in self._wrong_keys:
            self.say(wrong, "warning")
        if not self.is_headless:
            with contextlib.suppress(NotImplementedError, RuntimeError):  # no such signals, or not the main thread
                for number in (signal.SIGTERM, signal.SIGHUP):
                    asyncio.get_running_loop().add_signal_handler(number, self.exit)

    async def on_unmount(self) -> None:
        """Give the connection back."""
        await self.store.close()

    def on_app_blur(self) -> None:
        """Nobody types here: ask less often. It goes on, for a dashboard is looked at beside other work."""
        self.store.away = True

    def on_app_focus(self) -> None:
        """Somebody is back."""
        self.store.away = False
        self.store.hurry()

    def tick(self) -> None:
        """What changes by itself: the age of the data, and figures of the last minute."""
        if not self._there or len(self.screen_stack) != 1:
            return
        snapshot = self.store.snapshot
        self.query_one(StatusLine).say(snapshot, self.clock(), self.demo, self.read_only)
        self.query_one(Down).say(snapshot, self.clock(), self.home is not None)
        self.tab.tick(snapshot)

    @property
    def stale(self) -> bool:
        """What is shown is not known to be so any more."""
        return self.store.snapshot.link == "down"

    @property
    def tab(self) -> Tab:
        """The tab in front."""
        return self._default.query_one(f"#{_tab_id(self._tab)}", Tab)

    def selection(self) -> Selection:
        """What is under the cursor of the tab in front."""
        return self.tab.selection()

    def _changed(self, snapshot: Snapshot, changed: frozenset[str]) -> None:
        if not self._there:
            return
        if "link" in changed:
            nothing = snapshot.link == "down" and not snapshot.status
            self._default.set_class(nothing, "-down")
            for pane in self._default.query(Painted):
                pane.refresh()
            self._say_keys()
        if changed & self.tab.NEEDS:
            self.tab.renew(snapshot, changed)
        if changed - {"events"}:
            status = self._default.query_one(StatusLine)
            status.say(snapshot, self.clock(), self.demo, self.read_only)
            self._default.query_one(Down).say(snapshot, self.clock(), self.home is not None)

    @property
    def _default(self) -> Screen[Any]:
        return self.screen_stack[0]

    @property
    def _there(self) -> bool:
        """The frame is on the screen: what arrives while the app begins or ends finds none."""
        return bool(self.screen_stack) and bool(self._default.query(KeyLine)) and self.is_running

    def resized(self) -> None:
        """Lines of the frame are as wide as the terminal; the key line says when it has its new width."""
        if not self._there:
            return
        self._say_tabs()
        self.tick()
        self.tab.renew(self.store.snapshot, ALL)
        if self.screen.focused is None:
            self.tab.go(0)
        self._say_keys()

    def _say_tabs(self) -> None:
        self._default.query_one(TabLine).say([tab.TITLE for tab in TABS], self._tab)

    def _say_keys(self) -> None:
        if self._there and len(self.screen_stack) == 1:
            self.query_one(KeyLine).say(_DOWN_KEYS if self.stale else self.tab.FIRST, alone=self.stale)

    def shown_key(self, binding: Binding) -> str:
        """A key as it is named on the screen."""
        *modifiers, key = binding.key.split("+")
        if key == "enter" and not self.symbols.plain:
            return "⏎"
        shown = _SHOWN.get(key) or (key if key == "enter" else format_key(key))
        return "+".join([*modifiers, key if self.symbols.plain and not shown.isascii() else shown])

    def _binding_ids(self) -> set[str]:
        from reef.tui import dialogs, frame

        classes: list[type] = [type(self), Main, FilterLine, *TABS]
        for module in (dialogs, frame, *(sys.modules[tab.__module__] for tab in TABS)):
            classes += [one for one in vars(module).values() if isinstance(one, type) and "BINDINGS" in vars(one)]
        bases = {base for one in classes for base in one.__mro__ if base.__module__.startswith("reef.")}
        return ids_of(vars(base).get("BINDINGS", ()) for base in bases)

    # -- what keys do

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A read-only dashboard has no keys that change something; others need what they are about."""
        if action == "act":
            name = str(parameters[0])
            here = name not in ("knob", "unknob") or self.tab.TITLE == "Recipe"
            return here and not (self.read_only and _ACTIONS[name].changes)
        if action == "start_daemon":
            return self.stale and self.home is not None and not self.read_only
        if action == "other_address":
            return self.stale
        if action == "filter":
            return isinstance(self.screen.focused, Rows)
        return True

    async def action_tab(self, at: int) -> None:
        """Bring a tab to the front; it is made the first time."""
        if self.screen.maximized is not None:
            self.screen.minimize()
        self.query_one(FilterLine).display = False
        switcher = self.query_one(ContentSwitcher)
        if not switcher.query(f"#{_tab_id(at)}"):
            await switcher.add_content(TABS[at](id=_tab_id(at)))
        self._tab = at
        switcher.current = _tab_id(at)
        self._say_tabs()
        self.tab.renew(self.store.snapshot, ALL)
        self.tab.go(0)

    def action_pane(self, by: int) -> None:
        """Give the keys to another pane of the tab."""
        self.tab.go(by)

    async def action_act(self, name: str) -> None:
        """Do something; it may ask first."""
        self.run_worker(_ACTIONS[name].run(self), group="act", exclusive=True)

    def action_filter(self) -> None:
        """Narrow the list that has the keys."""
        if isinstance(rows := self.screen.focused, Rows):
            self.query_one(FilterLine).begin(rows)

    async def action_back(self) -> None:
        """Leave a zoom, a filter, a pane: the first of these there is."""
        if self.screen.maximized is not None:
            self.screen.minimize()
        elif isinstance(rows := self.screen.focused, Rows) and rows.filter:
            rows.narrow("")
            self.query_one(FilterLine).display = False
        elif self.tab.panes:
            self.tab.focus_pane(self.tab.panes[0])

    def action_zoom(self) -> None:
        """The pane that has the keys takes the screen, or gives it back."""
        if self.screen.maximized is not None:
            self.screen.minimize()
        elif self.screen.focused is not None:
            self.screen.maximize(self.screen.focused, container=False)

    def action_copy(self) -> None:
        """Copy what is under the cursor, by OSC 52."""
        text = self.selection().text
        if text:
            self.copy_to_clipboard(sendable(text))
            self.say(f"copied {plain(text[:60])}")

    def action_scenario(self) -> None:
        """Choose the scenario that is shown."""
        names = [str(row["name"]) for row in self.store.snapshot.scenarios]
        self.search_commands([(name, lambda name=name: self.store.show(name)) for name in names], "Scenario")

    def action_log(self) -> None:
        """Everything that was done here, as commands."""
        self.push_screen(Page("What was done", log_page(self.log_of_acts)))

    def action_help(self) -> None:
        """The keys of this pane first, then the others, then the command of each action."""
        self.push_screen(Page("Keys", help_page(self)))

    def action_refresh(self) -> None:
        """Ask the daemon now."""
        self.store.hurry()

    def action_start_daemon(self) -> None:
        """Start the daemon of the home with reef up."""
        if self.home is not None:
            self.run_worker(self._start(self.home), group="start", exclusive=True)

    async def _start(self, home: Path) -> None:
        self.say("starting: reef up")
        done, told = await run_child("up", "--home", str(home))
        self.acted(Entry(self.clock(), f"reef up --home {home}", told, done))
        self.say(told[-400:] or "started", "information" if done else "error")
        self.store.hurry()

    def action_other_address(self) -> None:
        """Connect to a daemon that is named."""
        self.run_worker(self._ask_address(), group="act", exclusive=True)

    async def _ask_address(self) -> None:
        about = "address of the daemon; its token is taken from REEF_TOKEN or from the home"
        form = Form("Other address", [("url", about, "http://127.0.0.1:8900")], "Connect")
        values = await self.push_screen_wait(form)
        if values and values["url"]:
            self.store.connect_to(of_url(values["url"], self.home or Path()))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the palette offers: actions, tabs, scenarios, and the dashboard itself."""
        for action in ACTIONS:
            if self.check_action("act", (action.name,)):
                yield SystemCommand(
                    action.title,
                    f"{action.key}   {action.twin}",
                    lambda name=action.name: self.run_action(f"act('{name}')"),
                )
        for at, tab in enumerate(TABS):
            yield SystemCommand(f"go to {tab.TITLE}", f"key {at + 1}", lambda at=at: self.run_action(f"tab({at})"))
        for row in self.store.snapshot.scenarios:
            name = str(row["name"])
            yield SystemCommand(f"show {name}", "switch to this scenario", lambda name=name: self.store.show(name))
        for title, key, run in (
            ("theme", "t", self.action_change_theme), ("help", "?", self.action_help), ("quit", "q", self.action_quit),
            ("what was done", "@", self.action_log), ("zoom", "z", self.action_zoom),
        ):  # fmt: skip
            yield SystemCommand(title, f"key {key}", run)

    # -- what is told

    def _handle_exception(self, error: Exception) -> None:
        """A bug of ours is told in a line, as by every command; in Textual's trace even the token could be read."""
        super()._handle_exception(error)
        if not os.environ.get("REEF_TRACE"):
            cause = getattr(error, "error", error)  # a worker's is wrapped
            said = plain(f"error: reef has a bug: {type(cause).__name__}: {cause}"[:300])
            self._exit_renderables[:] = [Text(f"{said}\n  try: please report it with what REEF_TRACE=1 shows")]

    def say(self, text: str, severity: Any = "information") -> None:
        """A toast; never markup."""
        self.notify(plain(text.replace("\n", "  ")), severity=severity, markup=False)

    def tell(self, error: ReefError) -> None:
        """What the daemon said, and what to do."""
        self.say(f"{error.message}. {error.hint}" if error.hint else error.message, "error")

    def acted(self, entry: Entry) -> None:
        """Keep what was done for ``@``."""
        self.log_of_acts.append(entry)


def _tab_id(at: int) -> str:
    return f"tab-{TABS[at].TITLE.lower()}"
