"""Pages about the dashboard itself: its keys, and what was done with it. Called by app.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reef.tui.actions import ACTIONS, Entry
from reef.tui.keys import keys_file
from reef.tui.text import Line, clock, one

if TYPE_CHECKING:
    from reef.tui.app import ReefApp


def help_page(app: ReefApp) -> list[Line]:
    """Keys of the focused pane, then of everywhere, then commands."""
    here: dict[str, tuple[list[str], str]] = {}
    everywhere: dict[str, tuple[list[str], str]] = {}
    for active in app.screen.active_bindings.values():
        binding = active.binding
        if binding.id and active.enabled and binding.description:
            group = everywhere if active.node in (app, app.screen) else here
            group.setdefault(binding.id, ([], binding.description))[0].append(app.shown_key(binding))
    lines: list[Line] = []
    for title, group in (("This pane", here), ("Everywhere", everywhere)):
        if group:
            lines += [one(title, "bold"), *(_keys(*found, name) for name, found in group.items()), ()]
    lines.append(one("The same from a shell", "bold"))
    lines += [
        ((f"  {action.title:16}", "accent"), (action.twin, ""))
        for action in ACTIONS
        if app.check_action("act", (action.name,))
    ]
    return [*lines, (), one(f"Other keys: lines like  app.quit: Q  in {keys_file()}", "dim")]


def _keys(keys: Sequence[str], said: str, name: str) -> Line:
    return ((f"  {' '.join(keys):16}", "accent"), (f"{said:26}", ""), (name, "dim"))


def log_page(entries: Sequence[Entry]) -> list[Line]:
    """Newest first; the whole answer below each command."""
    lines: list[Line] = []
    for entry in reversed(entries):
        lines.append(((f"{clock(entry.at)}  ", "dim"), (f"$ {entry.twin}", "bold")))
        lines += [one(f"  {text}", "" if entry.ok else "bad") for text in entry.answer.splitlines()[:20] or ["done"]]
        lines.append(())
    return lines or [one("nothing has been done here yet", "dim")]
