"""Options, output and the error edge that all commands share."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from reef.cli.complete import complete_records, complete_releases, complete_scenarios
from reef.cli.last import last_start
from reef.cli.place import here, home_of, place
from reef.client import ReefClient, discovery
from reef.core.reports import check_name
from reef.errors import BadRequest, DaemonUnreachable, NotFound, ReefError, Unauthorized

SCHEMA_VERSION = 1
_NARROWEST = 8
"""Characters of a cell that are worth showing."""

HomeOption = Annotated[
    Path | None, typer.Option("--home", help="State directory (REEF_HOME).", show_default=False, callback=place)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document (versioned schema).")]
ScenarioOption = Annotated[
    str | None,
    typer.Option(
        "--scenario",
        "-s",
        envvar="REEF_SCENARIO",
        help="Scenario; needed only when there are several.",
        show_default=False,
        autocompletion=complete_scenarios,
    ),
]
LinesOption = Annotated[bool, typer.Option("--json", "--jsonl", help="Print JSON lines, one document a line.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

RecordArgument = Annotated[
    str, typer.Argument(help="A record's id: a receipt, or a report's id.", autocompletion=complete_records)
]
ReleaseArgument = Annotated[str, typer.Argument(help="A release, e.g. r7.", autocompletion=complete_releases)]

_PIPED = not (sys.stdout is not None and sys.stdout.isatty())
out = Console(highlight=False, soft_wrap=_PIPED, width=1000 if _PIPED else None)  # a pipe is given whole lines
talk = Console(stderr=True, highlight=False, soft_wrap=True)


def client_of(home: Path | None, scenario: str | None = None) -> ReefClient:
    """The client of the daemon that serves ``home``."""
    return ReefClient.from_home(home_of(home), scenario=scenario, actor="cli")


def scenario_of(client: ReefClient, scenario: str | None) -> str:
    """The named scenario, or the only one there is."""
    if named := check_name(scenario, "scenario"):
        return named
    names = [row["name"] for row in client.get("/reef/scenarios")["scenarios"]]
    if len(names) == 1:
        return str(names[0])
    if not names:
        raise NotFound("there is no scenario yet", hint='make a call first: reef call "hello"')
    more = " and more, see: reef scenarios" if len(names) > 20 else ""
    raise BadRequest(f"there are {len(names)} scenarios", hint=f"choose one with -s: {', '.join(names[:20])}{more}")


def print_json(kind: str, data: Any) -> None:
    """One JSON document on stdout: ``{"schema": "reef.<kind>/1", ...}``."""
    document = {"schema": f"reef.{kind}/{SCHEMA_VERSION}", **(data if isinstance(data, dict) else {kind: data})}
    sys.stdout.write(json.dumps(document, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A plain table, or a sentence that names the next command when there is nothing to show."""
    listed = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    if not listed:
        say(empty)
        return
    from rich.table import Table  # most commands show none

    shown = Table(box=None, pad_edge=False, header_style="bold")
    widths = [max(len(column), *(row[at].cell_len for row in listed)) for at, column in enumerate(columns)]
    # On a narrow terminal the widest column gives way first, and an id never: it must stay whole, to be copied.
    gives = max((at for at, column in enumerate(columns) if column != "id"), key=lambda at: widths[at])
    room = out.width - sum(widths) + widths[gives] - 2 * (len(columns) - 1)
    if room < _NARROWEST:  # not even so: each row takes the lines it needs, so that nothing is hidden
        for row in ([Text(column, "bold") for column in columns], *listed):
            first, *more = Text("  ").join(row).wrap(out, out.width - 2)
            out.print(first, *(Text.assemble("  ", line) for line in more), sep="\n")
        return
    for at, column in enumerate(columns):
        limit = min(widths[at], room) if at == gives else widths[at]
        folds = at == gives and limit >= 20
        shown.add_column(
            column,
            overflow="fold" if folds else "ellipsis",
            no_wrap=not folds,
            width=None if column == "id" else limit,
            min_width=limit if column == "id" else None,
        )
    for row in listed:
        shown.add_row(*row)
    out.print(shown)


def say(text: str, style: str = "") -> None:
    """One line on stderr; commands in it name the state directory where they must."""
    talk.print(Text(here(text), style))


def show_error(error: ReefError, *, as_json: bool) -> None:
    """Say what is wrong and what to do, on stderr."""
    hint = here(error.hint)
    if as_json:
        document = {"schema": f"reef.error/{SCHEMA_VERSION}", "error": {**error.as_dict(), "hint": hint}}
        sys.stderr.write(json.dumps(document) + "\n")
        return
    talk.print(Text.assemble(("error: ", "bold red"), error.message))
    if hint:
        talk.print(Text.assemble(("  try: ", "dim"), hint))


def known_better(error: ReefError) -> ReefError:
    """What the daemon or the network said, in the words of someone who also sees the state directory."""
    home = home_of(place(None))
    found = discovery(home)
    if error.code.startswith("upstream_") and not error.hint:  # the shape of a provider's errors has no room for one
        error.hint = "see: reef status"
    if error.status == 404 and found is not None:
        from reef.cli.guess import meant

        error.hint = meant(error, home) + error.hint
    kept = last_start(home)
    if isinstance(error, DaemonUnreachable) and kept is not None:
        error.hint = error.hint.replace("reef up", kept.command, 1)
    if found is None or not (isinstance(error, DaemonUnreachable) or error.code == "unauthorized"):
        return error
    from reef.launch import locked  # what it loads is only needed where something is wrong

    if error.code == "unauthorized":
        said = f"the daemon at {found['url']} was started with another token than the one in {home / 'token'}"
        return Unauthorized(said, hint="start it again, it then takes that one: reef down, then: reef up")
    if locked(home):
        return error
    said = f"no daemon runs on {home}: the last one (pid {found.get('pid')}) was killed, or the machine went down"
    again = "reef up" if kept is None else kept.command
    return DaemonUnreachable(said, hint=f"start it with: {again} (what was acknowledged is kept)")


def goes_on(context: typer.Context) -> bool:
    """True when a subcommand follows; what was given to its group would be lost, so it is refused."""
    sub = context.invoked_subcommand
    if sub is None:
        return False
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name != "home" and source is not None and source.name == "COMMANDLINE":
            raise BadRequest(
                f"{option.opts[0]} stands before {sub}, which would not see it",
                hint=f"put it behind: {context.command_path} {sub} {option.opts[0]}",
            )
    return True


def ago(at: float | None) -> str:
    """A time as people say it: ``4m``, ``2h``, ``3d`` ago."""
    if not at:
        return "-"
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def since_of(text: str) -> float:
    """The time that ``10m``, ``2h``, ``3d`` or an ISO date and time means, in seconds since 1970."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if text[:-1].isdecimal() and text[-1] in units:
        return time.time() - int(text[:-1]) * units[text[-1]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadRequest(f"{text!r} is no time", hint="for example 10m, 2h, 3d, or 2026-01-31T08:00") from None


def size(count: float) -> str:
    """Bytes as people say it."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def counted(count: int, noun: str) -> str:
    """A number of things in words: 1 call, 2 calls."""
    return f"{count} {noun}{'s' * (count != 1)}"


def cut(text: object, width: int) -> str:
    """One line of at most ``width`` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; without one, refuse and name --yes."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadRequest(f"{question} needs an answer, and this is no terminal", hint="add --yes")
    if not typer.confirm(question, default=False, err=True):
        raise typer.Abort


@contextlib.contextmanager
def spinner(text: str) -> Iterator[None]:
    """Says on a terminal that something goes on, where nobody knows for how long."""
    if talk.is_terminal:
        with talk.status(text):
            yield
    else:
        yield


def read_stdin() -> str:
    """All of standard input as text; raises BadRequest where it is closed."""
    if sys.stdin is None:
        raise BadRequest("standard input is closed", hint="give the text as an argument, or a pipe")
    return sys.stdin.read()
