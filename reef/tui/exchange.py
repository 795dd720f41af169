"""Records as rows and one record as a page: what was asked and answered, what was said of it, and what became of that. Pure.

Reads the forms that providers speak only as far as a reader needs them; everything is in the JSON that Enter shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reef.tui.rows import Column, Row
from reef.tui.symbols import Symbols
from reef.tui.text import Line, clock, number, one, short

Data = Mapping[str, Any]

COLUMNS = (
    Column("time", 8),
    Column("kind", 4),
    Column("id", 8),
    Column("score", 5, right=True),
    Column("ref", 10),
    Column("state", 10, at_least=58),
)
KINDS = {"inference": "INF", "report": "REP", "training": "ASK"}
_STATES = {
    "complete": "", "open": "accent", "incomplete": "warn", "aborted": "warn", "failed": "bad",
    "parked": "warn", "accepted": "good", "consumed": "good", "refused": "bad",
}  # fmt: skip
STATES = tuple(_STATES)
_TURNS, _TURN_CHARS, _ANSWER_CHARS, _JSON_CHARS = 4, 600, 4000, 400_000


def tokens_of(usage: Data | None) -> tuple[int, int]:
    """Tokens in and out, whatever they are called."""
    found = usage or {}
    sent = found.get("input_tokens", found.get("prompt_tokens"))
    return int(sent or 0), int(found.get("output_tokens", found.get("completion_tokens")) or 0)


def rows_of(records: Sequence[Data], symbols: Symbols) -> list[Row]:
    """One row a record, in their order; a call shows the last score that was given for it."""
    scores: dict[str, Any] = {}
    for record in reversed(records):
        scores |= {str(name): record.get("score") for name in record.get("references") or () if "score" in record}
    return [_row(record, scores, symbols) for record in records]


def _row(record: Data, scores: Mapping[str, Any], symbols: Symbols) -> Row:
    kind, state, record_id = str(record["request_type"]), str(record["state"]), str(record["agent_record_id"])
    names = record.get("references") or ()
    score = record.get("score") if kind == "report" else scores.get(record_id)
    more = f"+{len(names) - 1}" if len(names) > 1 else ""
    ref = f"{symbols.to}{short(names[0])}{more}" if names else str(record.get("release_id") or "-")
    reason = record.get("reason") or {}
    return Row(
        record_id,
        (
            (clock(record["created_at"]), "dim"), (KINDS.get(kind, kind), "accent" if kind == "report" else ""),
            short(record_id), number(score), (ref, "dim"), (state, _STATES.get(state, "")),
            # not shown, for the filter looks in them
            kind, record_id, str(record.get("session") or ""), str(reason.get("code", "")), str(reason.get("message", "")),
        ),
    )  # fmt: skip


def page_of(record: Data, symbols: Symbols) -> list[Line]:
    """Everything of a record that a reader looks for first; bodies only where it has them."""
    kind, state = str(record["request_type"]), str(record["state"])
    lines: list[Line] = [((f"{kind} {record['agent_record_id']}", "bold"),)]
    lines.append((("state    ", "dim"), (state, _STATES.get(state, "")), (_became(record), "")))
    if reason := record.get("reason"):
        said = ": ".join(part for part in (str(reason["code"]), str(reason.get("message") or "")) if part)
        lines.append((("reason   ", "dim"), (said, "warn")))
    lines += _feedback(record, symbols) if kind == "report" else _call(record)
    if session := record.get("session"):
        lines.append((("session  ", "dim"), (str(session), "")))
    if record.get("purged_at"):
        return [*lines, (), one("its bodies were removed by retention", "dim")]
    if kind == "inference" and "request" in record:
        try:
            lines += _bodies(record)
        except (AttributeError, KeyError, TypeError):  # what an unknown provider or an import wrote
            lines += [(), one("its form is not known here: enter shows all of it", "warn")]
    elif kind == "training" and record.get("request"):
        lines += [(), *_texts(str(record["request"].get("request") or record["request"]), _ANSWER_CHARS)]
    return lines


def _became(record: Data) -> str:
    """Which step it trained, or why it has not."""
    kind, used = record["request_type"], record.get("consumed_by")
    if used:
        made = f" into {used['release_id']}" if used.get("release_id") else f", no release: {used.get('reason') or '-'}"
        return f"   in step {used['step']}{made}"
    if "consumed_by" not in record:  # read without bodies
        return ""
    if kind == "inference":
        return "   no report names it yet" if not record.get("reports") else "   not trained on yet"
    return {
        "parked": "   waits", "accepted": "   waits for its batch", "refused": "   never trains",
    }.get(str(record["state"]), "")  # fmt: skip


def _call(record: Data) -> list[Line]:
    meta, (sent, answered) = record.get("meta") or {}, tokens_of(record.get("usage"))
    parts = [f"{sent:,} in, {answered:,} out" if sent or answered else "", _ms(meta), str(meta.get("model") or "")]
    lines: list[Line] = [(("tokens   ", "dim"), ("   ".join(part for part in parts if part) or "not said", ""))]
    if meta.get("status", 200) != 200:
        lines.append((("status   ", "dim"), (str(meta["status"]), "bad")))
    if release := record.get("release_id"):
        lines.append((("release  ", "dim"), (str(release), "")))
    if reports := record.get("reports"):
        lines.append((("reports  ", "dim"), (" ".join(map(str, reports[:8])), "accent")))
    return lines


def _ms(meta: Data) -> str:
    took = meta.get("duration_ms")
    return f"{took:,.0f} ms" if isinstance(took, int | float) else ""


def _feedback(record: Data, symbols: Symbols) -> list[Line]:
    names = " ".join(map(str, record.get("references") or ())) or "nothing"
    lines: list[Line] = [
        (("about    ", "dim"), (f"{symbols.to} {names}", "")), (("score    ", "dim"), (number(record.get("score")), ""))
    ]  # fmt: skip
    if feedback := record.get("feedback"):
        lines.append((("feedback ", "dim"), (feedback if isinstance(feedback, str) else _json(feedback), "")))
    if metadata := record.get("metadata"):
        lines.append((("metadata ", "dim"), (_json(metadata), "dim")))
    return lines


def _bodies(record: Data) -> list[Line]:
    turns = list(_turns(record.get("request") or {}))
    lines: list[Line] = [(), one("request, last turn first", "head")]
    for role, text in reversed(turns[-_TURNS:]):
        lines += _turn(role, text, _TURN_CHARS)
    if len(turns) > _TURNS:
        lines.append(one(f"{len(turns) - _TURNS} earlier turns: enter shows all", "dim"))
    lines += [(), one("answer", "head")]
    answers = list(_answers(record.get("response") or {}))
    for role, text in answers:
        lines += _turn(role, text, _ANSWER_CHARS)
    return lines if answers else [*lines, one("none", "dim")]


def _turn(role: str, text: str, limit: int) -> list[Line]:
    first, *rest = _texts(text, limit)
    kind = "accent" if role == "user" else "dim"
    return [((f"{role[:9]:9.9} ", kind), *first), *(((" " * 10, ""), *line) for line in rest)]


def _texts(text: str, limit: int) -> list[Line]:
    cut = f" (and {len(text) - limit:,} characters more)" if len(text) > limit else ""
    return [one(line) for line in (text[:limit] + cut).splitlines()] or [one("(empty)", "dim")]


def _turns(request: Data) -> Iterator[tuple[str, str]]:
    """Role and text of each turn, in the forms of chat, messages and responses."""
    system = request.get("system") or request.get("instructions")
    if system:
        yield "system", _said(system)
    found = request.get("messages") or request.get("input") or request.get("prompt") or ()
    for turn in [{"role": "user", "content": found}] if isinstance(found, str) else found:
        if isinstance(turn, Mapping):
            yield str(turn.get("role") or turn.get("type") or "?"), _whole(turn)


def _answers(response: Data) -> Iterator[tuple[str, str]]:
    if isinstance(response.get("text"), str):
        yield "assistant", response["text"]
    for choice in response.get("choices") or ():
        message = choice.get("message") or {}
        yield str(message.get("role") or "assistant"), _whole(message) or str(choice.get("text") or "")
    if "content" in response:
        yield str(response.get("role") or "assistant"), _said(response["content"])
    for part in response.get("output") or ():
        if isinstance(part, Mapping):
            yield str(part.get("role") or part.get("type") or "?"), _whole(part)
    if error := response.get("error"):
        yield "error", _said(error)


def _whole(turn: Data) -> str:
    """A turn's text, and the calls it makes."""
    parts = [_said(turn.get("content") or turn.get("output") or turn.get("summary") or "")]
    for call in turn.get("tool_calls") or ():
        made = call.get("function") or call
        parts.append(f"calls {made.get('name')} {made.get('arguments') or ''}")
    if turn.get("type") == "function_call":
        parts.append(f"calls {turn.get('name')} {turn.get('arguments') or ''}")
    return "\n".join(part for part in parts if part)


def _said(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        match content.get("type"):
            case "tool_use":
                return f"calls {content.get('name')} {_json(content.get('input'))}"
            case "tool_result":
                return f"result {_said(content.get('content') or '')}"
        found = content.get("text") or content.get("thinking") or content.get("message")
        return found if isinstance(found, str) else f"[{content.get('type') or 'object'}]"
    return "\n".join(_said(part) for part in content) if isinstance(content, Sequence) else str(content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def json_text(record: Data) -> str:
    """The whole record, to be read."""
    return json.dumps(record, ensure_ascii=False, indent=2)


def json_lines(record: Data) -> list[Line]:
    """The same as lines; of a huge one its beginning."""
    text = json_text(record)
    lines = [one(line) for line in text[:_JSON_CHARS].splitlines()]
    if len(text) > _JSON_CHARS:
        lines.append(one(f"and more: reef records show {record['agent_record_id']} --json", "warn"))
    return lines
