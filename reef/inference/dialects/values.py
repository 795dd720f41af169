"""What the three wire dialects have in common: a Prompt in, Pieces and an Outcome out, and how request fields are read.

Knows no dialect, no template and no engine. Used by the dialects, the parsers, the template and the engine backend.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

from reef.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request in template form.

    ``messages`` hold ``role`` (system, user, assistant, tool), ``content`` (text) and where present
    ``reasoning_content``, ``tool_calls`` (arguments as objects), ``tool_call_id``, ``name``. ``tools`` are function
    tools in the chat form. ``prefill`` is the beginning of the answer, to be continued. ``top_logprobs`` None: none
    asked for.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    include_usage: bool = False
    show_reasoning: bool = True
    prefill: str = ""
    template_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer: text, reasoning, or one whole tool call (``text`` holds its arguments, verbatim)."""

    kind: Literal["text", "reasoning", "call"]
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token with its log-prob and the best alternatives."""

    token: str
    token_bytes: tuple[int, ...]
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a generation ended: ``finish`` is the engine's word; ``stop_text`` the stop string it met, if any."""

    finish: Literal["stop", "length"]
    output_tokens: int
    cached_tokens: int = 0
    stop_text: str | None = None
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of an answer before its first token."""

    call_id: str
    model: str
    created_s: int
    input_tokens: int
    prompt: Prompt


class StreamEncoder(Protocol):
    """Renders one streamed answer; every method returns bytes to send, possibly none."""

    def begin(self) -> bytes:
        """The events before the first token."""

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob]) -> bytes:
        """The events for new pieces."""

    def end(self, outcome: Outcome) -> bytes:
        """The closing events with finish reason, usage and end mark."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire format of the embedded engine."""

    parse: Callable[[Mapping[str, Any]], Prompt]
    plain: Callable[[Head, Sequence[Piece], Outcome, Sequence[TokenLogprob]], dict[str, Any]]
    stream: Callable[[Head], StreamEncoder]


def gather(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of the same kind as one piece, empty ones dropped; calls stay single."""
    joined: list[tuple[Piece, list[str]]] = []
    for piece in pieces:
        if piece.kind != "call" and not piece.text:
            continue
        if joined and piece.kind != "call" and joined[-1][0].kind == piece.kind:
            joined[-1][1].append(piece.text)
        else:
            joined.append((piece, [piece.text]))
    return [Piece(first.kind, "".join(texts), first.name) for first, texts in joined]


def refuse(field_name: str, why: str) -> NoReturn:
    """A 400 that names the field."""
    raise BadRequest(f"{field_name}: {why}", field=field_name, code="invalid_request")


def number(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    """A number field within bounds; null counts as absent."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        refuse(name, f"must be a number from {low:g} to {high:g}")
    return float(value)


def whole(body: Mapping[str, Any], name: str, low: int) -> int | None:
    """A whole-number field of at least ``low``; null counts as absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        refuse(name, f"must be a whole number of at least {low}")
    return value


def texts(value: Any, name: str) -> tuple[str, ...]:
    """A string or a list of strings; empty strings are dropped."""
    items = [value] if isinstance(value, str) else value or []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        refuse(name, "must be a string or a list of strings")
    return tuple(item for item in items if item)


def sequence(value: Any, name: str) -> list[Any]:
    """A list field; null counts as empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        refuse(name, "must be a list")
    return value


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """An object field; null counts as empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        refuse(name, "must be an object")
    return value


_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})


def content_text(content: Any, name: str) -> str:
    """The text of a content field, given as a string, null or a list of text parts (joined by newlines)."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for index, part in enumerate(sequence(content, name)):
        kind = part.get("type") if isinstance(part, dict) else "text"
        text = part if isinstance(part, str) else part.get("refusal" if kind == "refusal" else "text")
        if kind in _TEXT_PARTS or kind == "refusal":
            if not isinstance(text, str):
                refuse(f"{name}[{index}].text", "must be a string")
            parts.append(text)
        else:
            refuse(f"{name}[{index}]", f"this model reads text only, not {kind!r}")
    return "\n".join(parts)


def tool_call(call_id: Any, tool_name: Any, arguments: Any, name: str) -> dict[str, Any]:
    """A call of the history in template form; its argument text is decoded once, empty text stands for none."""
    if not isinstance(tool_name, str) or not tool_name:
        refuse(f"{name}.name", "must be the name of a tool")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            refuse(f"{name}.arguments", "is not valid JSON")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        refuse(f"{name}.arguments", "must hold a JSON object, encoded once")
    return {"id": str(call_id or ""), "type": "function", "function": {"name": tool_name, "arguments": arguments}}


def function_tool(tool: Mapping[str, Any], parameters: str, name: str) -> dict[str, Any]:
    """A tool in the chat form; ``parameters`` is the key its dialect keeps the schema under."""
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        refuse(f"{name}.name", "must be the name of a tool")
    function = {"name": tool["name"], "description": tool.get("description") or ""}
    function["parameters"] = mapping(tool.get(parameters), f"{name}.{parameters}") or {
        "type": "object",
        "properties": {},
    }
    return {"type": "function", "function": function}


def tool_choice(choice: Any) -> bool:
    """Whether tools may be used; only ``auto`` and ``none`` can be promised without constrained decoding."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (None, "auto", "none"):
        refuse("tool_choice", f"{kind!r} cannot be enforced by this engine; use auto or none")
    return kind != "none"


def arrange(messages: Sequence[dict[str, Any]], name: str) -> tuple[Mapping[str, Any], ...]:
    """Conversation order for templates: leading system texts as one, each tool result right behind its call.

    Results stand in the order of the calls; nothing is dropped and nothing is made up for a call without a result.
    """
    pending: list[tuple[str, list[dict[str, Any]]]] = []
    placed: list[list[dict[str, Any]]] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            _place(pending, message, f"{name}[{message.get('at', index)}]")
            continue
        group = [message]
        placed.append(group)
        for call in message.get("tool_calls") or ():
            slot: list[dict[str, Any]] = []
            pending.append((call["id"], slot))
            placed.append(slot)
    ordered = [message for group in placed for message in group]
    leading = 0
    while leading < len(ordered) and ordered[leading]["role"] == "system":
        leading += 1
    if leading > 1:
        joined = "\n\n".join(message["content"] for message in ordered[:leading])
        ordered[:leading] = [{"role": "system", "content": joined}]
    return tuple({key: value for key, value in message.items() if key != "at"} for message in ordered)


def _place(pending: list[tuple[str, list[dict[str, Any]]]], result: dict[str, Any], name: str) -> None:
    """Put a result behind the newest earlier call of its id, one that has none yet first."""
    fits = [slot for call_id, slot in pending if call_id == result["tool_call_id"]]
    if not fits:
        refuse(name, f"a tool result for {result['tool_call_id']!r}, which no earlier message calls")
    for slot in reversed(fits):
        if not slot:
            slot.append(result)
            return
    fits[-1].append(result)
