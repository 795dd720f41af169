"""why: from a release to everything behind it, and from a record to the releases it went into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.common import (
    HomeOption,
    JsonOption,
    ScenarioOption,
    client_of,
    counted,
    cut,
    out,
    print_json,
    scenario_of,
)
from reef.cli.complete import complete_what
from reef.cli.pager import paged
from reef.client import ReefClient

_SHOWN = 10


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(why)


@paged
def why(
    what: Annotated[str, typer.Argument(help="A release (r3), or a record's id.", autocompletion=complete_what)],
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is behind a release: reports, proposal, pairs; or where a record went. Example: reef why r3"""
    with client_of(home) as client:
        name = scenario_of(client, scenario)
        told = _release if re.fullmatch(r"r[0-9]+", what) else _record
        found = told(client, name, what)
    if as_json:
        print_json("why", found)
        return
    for line in found["lines"]:
        out.print(Text(line))


def _release(client: ReefClient, scenario: str, release_id: str) -> dict[str, Any]:
    release = client.release(scenario, release_id)
    verdict = release["verdict"] or {}
    lines = [f"{release_id} of {scenario} is {release['state']}, made from {release['parent'] or 'nothing'}"]
    if release["restored_from"]:
        lines.append(
            f"  it restores {release['restored_from']}; see: reef why {release['restored_from']} -s {scenario}"
        )
    if verdict:
        lines.append(f"  judged by {verdict.get('rule')}: {verdict.get('decision')}, {verdict.get('reason')}")
    evidence = verdict.get("evidence") or {}
    found = client.get(f"/reef/scenarios/{scenario}/proposals", step_id=release["step_id"] or "")["proposals"]
    proposal = next(iter(found), None)
    if proposal is not None:
        lines.append(
            f"  proposed from {proposal['origin']}: {cut(proposal['proposal']['why'] or '(no reason given)', 200)}"
        )
        lines += [f"    {one['action']} {one['kind']}/{one['name']}" for one in proposal["proposal"]["edits"]]
        if shared := proposal["seen"].get("shared_with_tasks"):
            lines.append(f"    words it shares with the tasks: {', '.join(shared)}")
        if request := proposal["seen"].get("request"):
            lines.append(f"    asked for: {cut(request, 200)}")
    if "pairs" in evidence:
        lines.append(f"  {len(evidence['pairs'])} pairs of episodes; see: reef gate show {release_id} -s {scenario}")
        given = evidence.get("given_away") or {}
        lines += [f"    task {task} scores {score:g} when nothing is done" for task, score in given.items()]
    rows = [client.record(one) for one in release["records"]]
    reports = [row for row in rows if row["request_type"] != "inference"]
    lines.append(f"  learned from {counted(len(reports), 'report')} on {counted(len(rows) - len(reports), 'call')}")
    lines += [f"    {_said(row)}" for row in reports[:_SHOWN]]
    if len(reports) > _SHOWN:
        lines.append(f"    and {len(reports) - _SHOWN} more: reef releases show {release_id} -s {scenario}")
    return {"release": release, "proposal": proposal, "reports": reports, "records": release["records"], "lines": lines}


def _record(client: ReefClient, scenario: str, record_id: str) -> dict[str, Any]:
    record = client.record(record_id)
    used = record.get("consumed_by")
    reason = record["reason"]
    said = (
        ""
        if not reason
        else f" ({reason['message'] or reason['code']})"
        if isinstance(reason, Mapping)
        else f" ({reason})"
    )
    lines = [f"{record['agent_record_id']} is {record['state']}{said}"]
    releases: list[str] = []
    if used and used.get("release_id"):
        head = used["release_id"]
        rows = {row["release_id"]: row for row in client.releases(scenario)}
        releases = [head, *(_later(rows, head))]
        lines.append(f"  it went into {head}, and into all made from it: {', '.join(releases[1:]) or 'none yet'}")
    elif used:
        reason = f": {used['reason']}" if used.get("reason") else ""
        lines.append(f"  step {used['step']} has used it, without a release{reason}")
    else:
        lines.append("  no release has learned from it")
    ids = record.get("reports") or []
    lines += [f"  reported: {_said(client.record(one))}" for one in ids[:_SHOWN]]
    if len(ids) > _SHOWN:
        lines.append(f"  and {len(ids) - _SHOWN} more: reef records show {record_id}")
    return {"record": record, "releases": releases, "lines": lines}


def _later(rows: Mapping[str, Mapping[str, Any]], head: str) -> list[str]:
    """Releases whose chain of parents holds ``head``, oldest first."""
    made: list[str] = []
    for release_id in sorted(rows, key=lambda one: int(one[1:])):
        if rows[release_id]["parent"] in (head, *made) and rows[release_id]["state"] != "rejected":
            made.append(release_id)
    return made


def _said(row: Mapping[str, Any]) -> str:
    """A report or a request in one line."""
    body = row.get("request") or row.get("payload") or row
    score, feedback = (body.get(name) for name in ("score", "feedback")) if isinstance(body, Mapping) else (None, None)
    asked = body.get("request") if isinstance(body, Mapping) else None
    parts = [
        row["agent_record_id"],
        f"score {score:g}" if isinstance(score, int | float) else "",
        cut(feedback or asked or "", 160),
    ]
    return "  ".join(part for part in parts if part)
