"""Events as rows of a tail: one place says how each kind reads. Pure; knows no widgets but what a row is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reef.tui.exchange import tokens_of
from reef.tui.rows import Column, Row
from reef.tui.symbols import Symbols
from reef.tui.text import clock, number, short

COLUMNS = (
    Column("time", 8),
    Column("kind", 9, at_least=36),
    Column("id", 8, at_least=60),
    Column("scenario", 14, at_least=60),
    Column("detail"),
)
_KINDS = {"inference": "", "report": "accent", "step": "good", "release": "good", "unrecorded": "bad", "store": "warn"}
_QUIET = frozenset({"ready"})


def rows_of(events: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]], symbols: Symbols) -> list[Row]:
    """Events, newest first, and below them the records that were there before the stream was listened to."""
    seen = {event["data"].get("id") for event in events}
    rows = [_of_event(event, symbols) for event in events if event["kind"] not in _QUIET]
    oldest = min((float(event["at"]) for event in events if event["kind"] in ("inference", "report")), default=None)
    rows += [
        _of_record(record)
        for record in records
        if record["agent_record_id"] not in seen and (oldest is None or record["created_at"] < oldest)
    ]
    return rows


def _of_event(event: Mapping[str, Any], symbols: Symbols) -> Row:
    data, kind = event["data"], str(event["kind"])
    name = data.get("id") or data.get("release") or "-"
    cells = (
        (clock(event["at"]), "dim"),
        (kind, _KINDS.get(kind, "warn" if "trouble" in data else "dim")),
        (short(name), ""),
        (str(event["scenario"] or "-"), ""),
        said(event, symbols),
    )
    return Row(f"{event['id']}@{event['at']}", cells)


def _of_record(record: Mapping[str, Any]) -> Row:
    kind, usage = str(record["request_type"]), record.get("usage") or {}
    score = f"score {number(record.get('score'))}  " if kind == "report" else ""
    reason = (record.get("reason") or {}).get("message", "")
    tokens = sum(tokens_of(usage))
    detail = f"{score}{record['state']}{f'  {tokens:,} tok' if tokens else ''}{f'  {reason}' if reason else ''}"
    cells = (
        (clock(record["created_at"]), "dim"), (kind, _KINDS.get(kind, "dim")), short(record["agent_record_id"]),
        str(record["scenario"]), detail,
    )  # fmt: skip
    return Row(str(record["agent_record_id"]), cells)


def said(event: Mapping[str, Any], symbols: Symbols) -> str:
    """What an event says, in a line."""
    data, kind = event["data"], event["kind"]
    if kind == "inference":
        tokens = sum(tokens_of(data.get("usage")))
        ended = "" if data.get("state") == "complete" else f"{data.get('state')}  "
        counted = f"   {tokens:,} tok" if tokens else ""
        release = f"   {data['release']}" if data.get("release") else ""
        return f"{ended}{data.get('status', '-')}   {data.get('ms') or 0:,.0f} ms{counted}{release}"
    if kind == "report":
        return f"score {number(data.get('score'))}" if data.get("score") is not None else "feedback"
    if kind == "step" and "phase" in data:  # of a step that is being made
        done = f"  {data['done']:,} of {data['total']:,}" if data.get("total") else ""
        return f"{data['phase']}{done}"
    if kind == "step":
        reward = (data.get("metrics") or {}).get("reward_mean")
        parts = (data.get("outcome"), data.get("release"), data.get("reason"))
        return "  ".join(str(part) for part in parts if part) + (f"  reward {reward:.2f}" if reward is not None else "")
    if kind == "release":
        return f"{data.get('release')} {symbols.to} {data.get('state')}"
    if kind == "trainer":
        return f"{data.get('state')}{': ' if data.get('detail') else ''}{data.get('detail') or ''}"
    return "  ".join(f"{key} {value}" for key, value in data.items() if value is not None)
