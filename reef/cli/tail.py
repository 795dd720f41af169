"""records tail: records as they come, over restarts of the daemon; and what a record is about in one line.

Woken by the daemon's events and told by pages of records, so nothing is missed between two of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.common import HomeOption, LinesOption, ScenarioOption, client_of, cut, out, say, scenario_of
from reef.client import ReefClient
from reef.errors import DaemonUnreachable

_POLL_S = 0.3
_PAGE = 200
_USAGE = ("input_tokens", "output_tokens")


def tail(
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come.")] = False,
    lines: Annotated[int, typer.Option("-n", help="Records to begin with.", min=0, max=500)] = 10,
    as_json: LinesOption = False,
) -> None:
    """The newest records, the newest last; with -f also those that come, also after the daemon was started again.

    Examples: reef records tail | reef records tail -f | reef records tail -f --json
    """
    with client_of(home) as client:
        name = scenario_of(client, scenario)
        newest = client.records(name, limit=1)
        rows = client.records(name, limit=lines) if lines else []
    seen = newest[0]["seq"] if newest else 0
    for row in reversed([one for one in rows if one["seq"] <= seen]):
        _show(row, as_json)
    for row in _coming(home, name, seen) if follow else ():
        _show(row, as_json)


def _coming(home: Path | None, name: str, seen: int) -> Iterator[dict[str, Any]]:
    """Records beyond ``seen`` when they have ended, until interrupted."""
    waiting: set[int] = set()
    gone = False
    while True:
        try:
            with client_of(home) as client:
                for _ in client.events(greeting=True):
                    if gone:
                        say("the daemon is back")
                    gone = False
                    for row in _new(client, name, seen, waiting):
                        seen = max(seen, row["seq"])
                        yield row
        except DaemonUnreachable:
            pass
        if not gone:
            say("the daemon has ended; waiting for it: reef up")
        gone = True
        time.sleep(_POLL_S)


def _new(client: ReefClient, name: str, seen: int, waiting: set[int]) -> Iterator[dict[str, Any]]:
    """What has ended since; an answer that is still on its way is remembered in ``waiting``."""
    for seq in sorted(waiting):
        for row in client.records(name, after=seq - 1, limit=1):
            if row["state"] != "open":
                waiting.discard(seq)
                yield row
    while page := client.records(name, after=seen, limit=_PAGE):
        for row in page:
            seen = max(seen, row["seq"])
            if row["state"] == "open":
                waiting.add(row["seq"])
            else:
                yield row


def _show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        return
    when = time.strftime("%H:%M:%S", time.localtime(row["created_at"]))
    kind, state = row["request_type"], row["state"]
    out.print(Text(f"{when} {row['agent_record_id']} {kind:9} {state:10} {row['release_id'] or '-':5} {what(row)}"))


def what(row: dict[str, Any]) -> str:
    """What a record is about, in one line."""
    if row["reason"]:
        return cut(f"{row['reason']['code']}: {row['reason']['message']}".rstrip(": "), 60)
    if row["request_type"] == "report":
        score = "" if row["score"] is None else f"score {row['score']:g} "
        return cut(f"{score}-> {', '.join(row['references'])}", 60)
    if row["request_type"] == "training":
        return "a change asked for"
    usage, meta = row.get("usage") or {}, row["meta"]
    tokens = (
        ", " + " + ".join(str(usage[key]) for key in _USAGE) + " tokens" if all(key in usage for key in _USAGE) else ""
    )
    return cut(f"{meta.get('model') or ''} {meta.get('duration_ms', 0):.0f} ms{tokens}", 60)
