"""The version chain as rows and a release as a page: what was served, tried, held, refused, gone back from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reef.tui.rows import Column, Row
from reef.tui.symbols import Symbols
from reef.tui.text import Line, minute, number, one, short, size

Data = Mapping[str, Any]

COLUMNS = (
    Column("", 2),
    Column("", 4),
    Column("", 6),
    Column("", 5, right=True),
    Column("", 5, at_least=36),
    Column(""),
)
MAKING = "making"
"""The key of the row of a candidate that is being made."""
OLDER = "older"
"""The key of the row below which there are more."""
_KINDS = {"serving": "good", "published": "good", "held": "warn", "rejected": "bad", "rolled_back": "dim"}
_WORDS = {"serving": "SERVE", "published": "", "held": "held", "rejected": "reject", "rolled_back": ""}


def reward_of(row: Data) -> float | None:
    """The reward of a release or step: of its batch where it trains weights, of its trials where it evolves."""
    metrics = row.get("metrics") or {}
    found = metrics.get("reward_mean", metrics.get("candidate_mean"))
    return float(found) if isinstance(found, int | float) else None


def rows_of(releases: Sequence[Data], scenario: Data, symbols: Symbols) -> list[Row]:
    """Newest on top: what is in the making, then each release with its mark, state, reward, time and reason."""
    rows = [_making(scenario, symbols)] if scenario.get("state") == "training" else []
    for release in releases:
        state = str(release["state"])
        restored = release.get("restored_from")
        mark = {
            "serving": symbols.serving, "published": symbols.serving, "held": symbols.branch_top + symbols.held,
            "rejected": symbols.branch + symbols.rejected, "rolled_back": symbols.rolled_back,
        }.get(state, symbols.idle)  # fmt: skip
        reason = str((release.get("verdict") or {}).get("reason") or "")
        said = {"rolled_back": "rolled back", "held": "review me"}.get(state, "")
        said = ": ".join(part for part in (said, f"restores {restored}" if restored else reason) if part)
        kind = _KINDS.get(state, "")
        rows.append(
            Row(
                str(release["release_id"]),
                (
                    (mark, kind), str(release["release_id"]), (_WORDS.get(state, state), kind),
                    number(reward_of(release)), (minute(release["created_at"]), "dim"),
                    (said or ("the first one" if release.get("parent") is None else ""), "dim"),
                ),
            )
        )  # fmt: skip
    return rows


def older_row(releases: Sequence[Data], symbols: Symbols) -> list[Row]:
    """The row that stands for those that were not read yet: releases are numbered from 0."""
    count = int(str(releases[-1]["release_id"])[1:]) if releases else 0
    said = f"{count:,} older (down loads)"
    return [Row(OLDER, ((symbols.older, "dim"), "", "", "", "", (said, "dim")))] if count else []


def _making(scenario: Data, symbols: Symbols) -> Row:
    step = int(scenario.get("step") or 0) + 1
    detail = str(scenario.get("detail") or "being made")
    cells = ((symbols.branch_top + symbols.busy, "accent"), "", ("step", "accent"), str(step), "", (detail, "accent"))
    return Row(MAKING, cells)


def counts(releases: Sequence[Data], symbols: Symbols) -> str:
    """How many were accepted, rejected, held."""
    states = [str(row["state"]) for row in releases]
    held, rejected = states.count("held"), states.count("rejected")
    return f"{len(states) - held - rejected} {symbols.serving} {rejected} {symbols.rejected} {held} {symbols.held}"


def page_of(release: Data, parent: Data, diff: str | None, symbols: Symbols) -> list[Line]:
    """Everything that is known of one release; ``diff`` is what changed since its parent, None until it is there."""
    verdict, metrics = release.get("verdict") or {}, release.get("metrics") or {}
    state = str(release["state"])
    before, after = reward_of(parent) if parent else None, reward_of(release)
    lines: list[Line] = [
        (
            (f"{release.get('parent') or 'nothing'} {symbols.to} {release['release_id']}", "bold"),
            (f"   {state.replace('_', ' ')}", _KINDS.get(state, "")), (f" at step {release['step']}", ""),
        ), (),
    ]  # fmt: skip
    if after is not None:
        moved = after - before if before is not None else None
        change = f"{number(before)} {symbols.to} {number(after)}   {moved:+.2f}" if moved is not None else number(after)
        lines.append((("reward   ", "dim"), (change, "good" if (moved or 0) >= 0 else "bad")))
    if verdict:
        lines.append((("gate     ", "dim"), (f"{verdict.get('decision', '-')}: {verdict.get('reason', '-')}", "")))
        lines.append((("rule     ", "dim"), (str(verdict.get("rule", "-")), "")))
    if release.get("restored_from"):
        lines.append((("restores ", "dim"), (str(release["restored_from"]), "")))
    lines.append(
        (("content  ", "dim"), (f"{short(release['content_id'])}  {size(release.get('size_bytes') or 0)}", ""))
    )
    lines.append((("made     ", "dim"), (minute(release["created_at"]), "")))
    if isinstance(records := release.get("records"), list):
        lines.append((("learned  ", "dim"), (f"from {len(records)} records", "")))
    if metrics:
        lines += [(), *((((f"{name:22.22} ", "dim"), (number(value, 4), ""))) for name, value in metrics.items())]
    if diff is None:
        return [*lines, (), one("reading what changed", "dim")]
    return [*lines, (), *diff_lines(diff)] if diff else [*lines, (), one("no text changed", "dim")]


def diff_lines(diff: str, limit: int = 400) -> list[Line]:
    """A unified diff, coloured."""
    found: list[Line] = []
    for text in diff.splitlines()[:limit]:
        first = text[:1]
        kind = "accent" if text.startswith(("@@", "+++", "---")) else {"+": "good", "-": "bad"}.get(first, "")
        found.append(one(text, kind))
    return found
