"""Which command lies in which module: help and names of commands load none of them, a command loads its own.

Knows nothing of what commands do. Used by reef.cli.app, and by hints that must know which commands there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main
from typer.core import TyperGroup
from typer.main import get_group

SECTIONS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "Daemon": (
        ("demo", "tools", "Watch a small language model learn from scored use, on this machine, with no GPU and no key."),
        ("up", "daemon", "Start the daemon in the background and return when it is ready."),
        ("down", "daemon", "Stop the daemon: answers in flight end, what is recorded is committed."),
        ("status", "daemon", "What runs, what it has recorded, and what each scenario waits for."),
        ("tui", "tui", "Watch it work: calls, reports, steps and releases as they happen, and the keys to act on them."),
        ("serve", "daemon", "Run the daemon in the foreground; Ctrl-C stops it in order."),
        ("logs", "logs", "The daemon's log, the newest lines, over all its files."),
        ("service", "service", "Let this machine start the daemon by itself: a systemd user unit, or a launchd agent."),
        ("doctor", "doctor", "Check what Reef needs on this machine and say how to mend what is wrong."),
    ),
    "Use and feedback": (
        ("call", "records", "Ask the model and print the answer; the receipt goes to stderr and is what a report names."),
        ("report", "records", "Say how good an answer was."),
        ("records", "records", "What has been recorded."),
        ("train", "ask", "Ask for a change in words: it is proposed, compared and judged as the next step."),
        ("scenarios", "scenarios", "Workloads: their records, trainer and releases."),
        ("export", "exporting", "Write what was recorded, oldest first, a line or a row for each record."),
        ("import", "exporting", "Bring exported records and reports in. Doing it again changes nothing."),
    ),
    "Releases": (
        ("releases", "releases", "The chain of versions of a scenario."),
        ("why", "why", "What is behind a release: reports, proposal, pairs; or where a record went."),
        ("rollback", "releases", "Serve an earlier release again, its weights exactly as they were."),
        ("promote", "releases", "Serve a release that waits for review."),
        ("reject", "releases", "Refuse a release that waits for review."),
        ("step", "releases", "Train now on what is complete, without waiting for a full batch."),
        ("pause", "releases", "Stop training a scenario; calls go on being answered."),
        ("resume", "releases", "Go on training a scenario."),
        ("gate", "gate", "How candidates are judged, what that costs, and how sure it is."),
        ("recipe", "recipes", "Recipes: what feedback becomes."),
    ),
    "Agents": (
        ("harness", "harness", "Agents that run on a harness which Reef serves."),
        ("agent", "harness", "Run an installed agent, as reef-AGENT does."),
        ("mcp", "mcp", "Serve Reef's tools to a coding agent over MCP."),
        ("wrap", "wrap", "Let your own copy of an agent make its calls through Reef."),
        ("unwrap", "wrap", "Take out what reef wrap put in."),
    ),
    "State and settings": (
        ("knob", "knobs", "The keys of the deployment that runs."),
        ("config", "settings", "The configuration: what is set, what each key does, and a file of it."),
        ("completion", "completion", "Complete names of commands, scenarios, releases and records in a shell."),
        ("model", "tools", "The embedded model."),
        ("backup", "backup", "Write everything that was recorded and trained into one file, also while the daemon runs."),
        ("restore", "backup", "Make a state directory of a backup; everything is checked before anything is touched."),
        ("verify", "verify", "Kill writers on this disk and count what was acknowledged and what is lost."),
    ),
}  # fmt: skip
"""``(command, module, summary)`` by section, in the order of the help; a test compares the summaries with the commands."""

_MODULES = {name: module for rows in SECTIONS.values() for name, module, _ in rows}
_DOCS = {"gate": "gate", "harness": "harness", "agent": "harness", "wrap": "harness", "unwrap": "harness",
         "recipe": "write-a-recipe", "config": "config", "verify": "durability", "tui": "dashboard", "mcp": "agents"}  # fmt: skip


class Commands(TyperGroup):
    """The root: knows the names and sections of all commands, and loads one when it is asked for."""

    def get_params(self, ctx: Any) -> Any:
        """The options of the root; those that Typer adds of its own are what reef completion does."""
        found: Any = super().get_params(ctx)
        _read_plainly(found)
        for option in found:
            option.hidden = (option.name or "").endswith("_completion")
        return found

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, in the order of the help."""
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, None for none."""
        if cmd_name in _MODULES and cmd_name not in self.commands:
            holder = typer.Typer(rich_markup_mode=None)
            import_module(f"reef.cli.{_MODULES[cmd_name]}").add_to(holder)
            for name, command in get_group(holder).commands.items():
                _finish(command, name, ctx)
                self.commands.setdefault(name, command)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by section, one line each."""
        width = formatter.width - 4 - max(map(len, _MODULES))
        for title, rows in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _short(summary, width)) for name, _, summary in rows])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Names of commands and options that begin so, with what they are for."""
        item = type(next(iter(super(TyperGroup, self).shell_complete(ctx, "--help"))))
        rows = (row for rows in SECTIONS.values() for row in rows)
        found = [item(name, help=_short(summary, 60)) for name, _, summary in rows if name.startswith(incomplete)]
        return found + list(super(TyperGroup, self).shell_complete(ctx, incomplete))


class _Plain:
    """Reads what needs no reading: nothing, a default, plain text, a path. All else loads Typer's own way, with pydantic,

    which takes as long as the rest of a command.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command's function takes it."""
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if isinstance(kind, type) and isinstance(value, kind):
            return value
        if kind is Path and isinstance(value, str):
            return Path(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _read_plainly(options: Iterable[Any]) -> None:
    for option in options:
        if getattr(option, "_runtime_param", 0) is None:  # else another Typer than the one this knows
            option._runtime_param = _Plain()


def _short(text: str, width: int) -> str:
    """The beginning of a sentence that fits, without its full stop."""
    text = text.rstrip(".")
    return text if len(text) <= width else text[: max(1, width - 1)].rsplit(" ", 1)[0].rstrip(",;:") + "…"


def _finish(command: Any, name: str, context: Any) -> None:
    """Examples and the page of the docs stand at the end of the help, each example on its own line."""
    text, _, examples = re.sub(r"\s*\bExamples?:\s*", "\f", command.help or "", count=1).partition("\f")
    command.help = text
    page = f"Docs: docs/{_DOCS.get(name.split()[0], 'operate')}.md"
    lines = [f"  {one.strip()}" for one in " ".join(examples.split()).split(" | ") if one]
    command.epilog = "\n".join(["\b", *(["Examples:", *lines] if lines else []), page])
    _read_plainly(command.get_params(context))
    for below, one in getattr(command, "commands", {}).items():
        _finish(one, f"{name} {below}", context)


def walk(context: Any) -> Iterator[tuple[str, Any]]:
    """Every command below that of ``context`` by its path, groups before what is in them; loads what lies in them."""
    yield from _below(context.command, context)


def everything() -> Iterator[tuple[str, Any]]:
    """Every command of reef by its path."""
    from reef.cli.app import app

    root: Any = typer.main.get_command(app)
    yield from _below(root, root.context_class(root, info_name="reef", **root.context_settings))


def _below(group: Any, context: Any) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield name, command
        if hasattr(command, "list_commands"):
            yield from ((f"{name} {below}", one) for below, one in _below(command, context))
