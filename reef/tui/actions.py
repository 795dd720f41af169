"""Everything that can be done, each in one place: its key, its guard, the call it makes, the command that does the same.

An action is a coroutine over the app; it runs in a worker and may ask. What it did is kept for ``@``.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reef.client import path_part
from reef.errors import ReefError
from reef.tui import chain
from reef.tui.dialogs import Form, TypedConfirm, YesNo
from reef.tui.installing import install
from reef.tui.source import Source
from reef.tui.store import ALL
from reef.tui.text import Line, number, one

if TYPE_CHECKING:
    from reef.tui.app import ReefApp


@dataclass(frozen=True, slots=True)
class Entry:
    """One act, for the log: when, the command that does the same, and what came of it."""

    at: float
    twin: str
    answer: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Action:
    """``name`` is its id in keys.yaml as act.NAME; ``changes`` is False for what only looks, also on a read-only dashboard."""

    name: str
    key: str
    title: str
    twin: str
    run: Callable[[ReefApp], Awaitable[None]]
    changes: bool = True


async def send(
    app: ReefApp, path: str, body: Mapping[str, Any], twin: list[str], said: Callable[[Mapping[str, Any]], str]
) -> bool:
    """Make the call, keep it in the log, tell how it went; True when it was done."""
    return await _done(app, lambda source: source.post(path, body), twin, said)


async def _done(
    app: ReefApp,
    call: Callable[[Source], Awaitable[Mapping[str, Any]]],
    twin: list[str],
    said: Callable[[Mapping[str, Any]], str],
) -> bool:
    command = shlex.join(twin)
    try:
        answer = await call(app.store.source)
    except ReefError as error:
        app.acted(Entry(app.clock(), command, f"{error.code}: {error.message} {error.hint}".strip(), False))
        app.tell(error)
        return False
    app.acted(Entry(app.clock(), command, str(answer), True))
    app.say(said(answer))
    app.store.hurry()
    return True


def _target(app: ReefApp) -> tuple[str, str] | None:
    """Name and path of the scenario that is shown."""
    name = app.store.snapshot.scenario
    if name is None:
        app.say("there is no scenario yet: make a call first", "warning")
        return None
    return name, f"/reef/scenarios/{path_part(name)}"


async def pause(app: ReefApp) -> None:
    """Stop or go on training; the same key undoes it."""
    if (found := _target(app)) is not None:
        name, path = found
        act = "resume" if app.store.snapshot.chosen.get("state") == "paused" else "pause"
        undo = "training goes on" if act == "resume" else "training is paused, calls are answered; p goes on"
        await send(app, f"{path}/{act}", {}, ["reef", act, "-s", name], lambda _: f"{name}: {undo}")


async def step(app: ReefApp) -> None:
    """Make a step of what is there; the daemon says why when nothing is."""
    if (found := _target(app)) is not None:
        name, path = found
        await send(
            app, f"{path}/step", {}, ["reef", "step", "-s", name], lambda _: f"{name}: a step has been asked for"
        )


async def rollback(app: ReefApp) -> None:
    """Serve the selected release again, or that before the serving one; its id must be typed."""
    if (found := _target(app)) is None:
        return
    name, path = found
    snapshot = app.store.snapshot
    head = snapshot.release(snapshot.chosen.get("release_id"))
    chosen = app.selection().release
    try:
        to = snapshot.release(chosen) or (await app.store.source.get(f"{path}/releases/{chosen}") if chosen else {})
    except ReefError as error:  # an older one than the snapshot holds
        app.tell(error)
        return
    if not to or to["release_id"] == head.get("release_id"):
        to = snapshot.release(head.get("parent"))
    if not to or not head:
        app.say(f"{name} has no earlier release to go back to", "warning")
        return
    if to["state"] in ("held", "rejected"):
        app.say(f"{to['release_id']} is {to['state']} and was never served: choose another", "warning")
        return
    to_id, head_id = str(to["release_id"]), str(head["release_id"])
    lines = [f"{head_id} (serving) {app.symbols.to} {to_id}"]
    before, after = chain.reward_of(head), chain.reward_of(to)
    if before is not None and after is not None:
        lines.append(f"reward {number(before)} {app.symbols.to} {number(after)}")
    if files := await _files(app, path, head_id, to_id):
        lines.append(f"{files} file{'s' * (files != 1)} change")
    lines.append(f"it becomes a new release; undo: b to {head_id}")
    if await app.push_screen_wait(TypedConfirm(f"Roll back {name}", lines, to_id, "Roll back")):
        twin = ["reef", "rollback", to_id, "-s", name]
        await send(app, f"{path}/rollback", {"to": to_id}, twin, lambda made: f"{made['release_id']} restores {to_id}")


async def _files(app: ReefApp, path: str, old: str, new: str) -> int:
    """How many files differ between two releases; 0 where that cannot be said."""
    try:
        found = await app.store.source.get(f"{path}/releases/{path_part(new)}/diff", to=old)
    except ReefError:
        return 0
    return sum(line.startswith("+++ ") for line in str(found["diff"]).splitlines())


async def promote(app: ReefApp) -> None:
    """Serve a held release."""
    await _decide(app, "promote", "serve it from now on")


async def reject(app: ReefApp) -> None:
    """Refuse a held release for good."""
    await _decide(app, "reject", "refuse it for good")


async def _decide(app: ReefApp, act: str, what: str) -> None:
    if (found := _target(app)) is None:
        return
    name, path = found
    snapshot = app.store.snapshot
    held = snapshot.release(app.selection().release)
    if held.get("state") != "held":
        held = next((row for row in snapshot.releases if row["state"] == "held"), {})
    if not held:
        app.say(f"no release of {name} waits for review", "warning")
        return
    one_id = str(held["release_id"])
    lines: list[Line] = [one(f"{one_id} of {name}: {what}?", "bold"), ()]
    verdict = held.get("verdict") or {}
    lines += [one(f"gate: {verdict.get('reason', '-')}"), one(f"reward: {number(chain.reward_of(held))}"), ()]
    try:
        changed = await app.store.source.get(f"{path}/releases/{path_part(one_id)}/diff")
        lines += chain.diff_lines(str(changed["diff"])) or [one("no text changed", "dim")]
    except ReefError as error:
        lines.append(one(f"what changed cannot be read: {error.message}", "bad"))
    if await app.push_screen_wait(YesNo(f"{act.capitalize()} {one_id}", lines)):
        twin = ["reef", act, one_id, "-s", name]
        body = {"release_id": one_id}
        await send(app, f"{path}/{act}", body, twin, lambda made: f"{made['release_id']} is {made['state']}")


async def report(app: ReefApp) -> None:
    """Say how good answers were; receipts are those of the marked records, or of the selected one."""
    fields = [
        ("references", "receipts, with spaces between them", " ".join(app.selection().records)),
        ("score", "score, for example 0 to 1", ""),
        ("feedback", "feedback, in words", ""),
    ]
    while (values := await app.push_screen_wait(Form("New report", fields, "Send"))) is not None:
        if (wrong := _wrong(values)) is None:
            break
        app.say(wrong, "warning")
        fields = [(name, question, values[name]) for name, question, _ in fields]
    if values is None:
        return
    references, score, said = values["references"].split(), values["score"], values["feedback"]
    name = app.store.snapshot.scenario
    body = {
        "references": references, "score": float(score) if score else None, "feedback": said or None, "scenario": name
    }  # fmt: skip
    twin = ["reef", "report", *(["--score", score] if score else []), *(["--feedback", said] if said else [])]
    twin += [*(["-s", name] if name else []), *references]
    kept = {key: value for key, value in body.items() if value is not None}
    if await send(
        app, "/reef/report", kept, twin, lambda made: f"report {made['agent_record_id'][:8]} is {made['state']}"
    ):
        app.tab.unmark()


async def knob(app: ReefApp) -> None:
    """Change the number under the cursor of the tab Recipe."""
    if (row := app.selection().knob) is None:
        app.say("choose a key in the tab Recipe first", "warning")
        return
    if row["applies"] == "restart":
        app.say(f"{row['name']} is read at a start only: set it in the file of reef up -c", "warning")
        return
    fields = [("value", f"{row['name']}: {row['help']}", str(row["value"]))]
    values = await app.push_screen_wait(Form(f"Change {row['name']} from the next batch on", fields, "Change"))
    if values is not None:
        await _change_knob(app, row["name"], values["value"])


async def unknob(app: ReefApp) -> None:
    """Go back to what the daemon was started with."""
    row = app.selection().knob
    if row is None or not str(row["origin"]).startswith("set by "):
        app.say("nothing to take back: choose a key that was changed while the daemon runs", "warning")
    else:
        await _change_knob(app, row["name"], None)


async def _change_knob(app: ReefApp, name: str, value: str | None) -> None:
    twin = ["reef", "knob", "reset", name] if value is None else ["reef", "knob", "set", name, value]
    told = "as it was started with" if value is None else f"{value}, until the daemon stops"
    await _done(app, lambda source: source.change_knobs({name: value}), twin, lambda _: f"{name} is {told}")
    app.tab.renew(app.store.snapshot, ALL)


def _wrong(values: Mapping[str, str]) -> str | None:
    if not values["references"]:
        return "name at least one receipt: mark records with space, then press r"
    if not values["score"] and not values["feedback"]:
        return "give a score or feedback"
    try:
        return None if math.isfinite(float(values["score"] or 0)) else "the score must be a finite number"
    except ValueError:
        return f"the score {values['score']!r} is no number"


ACTIONS = (
    Action("pause", "p", "pause/resume", "reef pause, reef resume", pause),
    Action("step", "n", "step", "reef step", step),
    Action("rollback", "b", "rollback", "reef rollback RELEASE", rollback),
    Action("promote", "m", "promote", "reef promote RELEASE", promote),
    Action("reject", "x", "reject", "reef reject RELEASE", reject),
    Action("report", "r", "report", "reef report --score 1 RECEIPT", report),
    Action("install", "i", "install an agent", "reef harness install AGENT", install),
    Action("knob", "e", "change a knob", "reef knob set batch_size 16", knob),
    Action("unknob", "u", "take it back", "reef knob reset batch_size", unknob),
)
"""A new one is a line here: the key, the palette, the help, the read-only rule and the log follow from it."""
