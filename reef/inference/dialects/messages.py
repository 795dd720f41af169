"""Anthropic's messages: request to Prompt, generation to an object or to its event sequence.

Knows nothing of templates, tokens or HTTP. Called by the engine backend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from reef.inference.dialects.values import (
    Dialect,
    Head,
    Outcome,
    Piece,
    Prompt,
    TokenLogprob,
    arrange,
    content_text,
    function_tool,
    gather,
    mapping,
    number,
    refuse,
    sequence,
    texts,
    tool_call,
    tool_choice,
    whole,
)
from reef.inference.sse import frame


def parse(body: Mapping[str, Any]) -> Prompt:
    """The Prompt of a messages request; BadRequest names the field that cannot be honoured."""
    found = sequence(body.get("messages"), "messages")
    if not found:
        refuse("messages", "must hold at least one message")
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": content_text(body["system"], "system")})
    for at, message in enumerate(found):
        messages.extend(_turn(mapping(message, f"messages[{at}]"), f"messages[{at}]", at))
    prefill = ""
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and "tool_calls" not in last:
        prefill = str(messages.pop()["content"]).rstrip()
    tools = []
    for at, tool in enumerate(sequence(body.get("tools"), "tools")):
        if isinstance(tool, dict) and tool.get("type") in (None, "custom"):
            tools.append(function_tool(tool, "input_schema", f"tools[{at}]"))
    kind = mapping(body.get("output_config"), "output_config").get("format")
    if kind:
        refuse("output_config.format", "cannot be enforced by this engine; ask for JSON in the prompt instead")
    thinks = mapping(body.get("thinking"), "thinking").get("type") in ("enabled", "adaptive")
    return Prompt(
        messages=arrange(messages, "messages"),
        tools=tuple(tools) if tool_choice(body.get("tool_choice")) else (),
        max_tokens=whole(body, "max_tokens", 1),
        temperature=number(body, "temperature", 1.0, 0.0, 10.0),
        top_p=number(body, "top_p", 1.0, 0.0, 1.0),
        top_k=whole(body, "top_k", 0) or -1,
        stop=texts(body.get("stop_sequences"), "stop_sequences"),
        show_reasoning=thinks,
        prefill=prefill,
        template_options={"enable_thinking": thinks},
    )


def _turn(message: Mapping[str, Any], name: str, at: int) -> list[dict[str, Any]]:
    """One turn as messages in template form: tool results first, then the rest of it in its order."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        refuse(f"{name}.role", f"{role!r} is not known")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else sequence(content, f"{name}.content")
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    spoken: list[str] = []
    thought: list[str] = []
    for index, block in enumerate(blocks):
        where = f"{name}.content[{index}]"
        kind = mapping(block, where).get("type")
        if kind == "tool_result" and role == "user":
            results.append(_result(block, where, at))
        elif kind == "tool_use" and role == "assistant":
            calls.append(tool_call(block.get("id"), block.get("name"), block.get("input"), where))
        elif kind == "thinking" and role == "assistant":
            thought.append(str(block.get("thinking") or ""))
        elif kind == "document":
            spoken.append(_document(block, where))
        elif kind != "redacted_thinking":  # sealed by another model, nothing in it can be read
            spoken.append(content_text([block], f"{name}.content"))
    if results and not spoken:
        return results
    turn: dict[str, Any] = {"role": role, "content": "\n".join(spoken)}
    if any(thought):
        turn["reasoning_content"] = "\n".join(thought)
    if calls:
        turn["tool_calls"] = calls
    return [*results, turn]


def _result(block: Mapping[str, Any], where: str, at: int) -> dict[str, Any]:
    call_id = str(block.get("tool_use_id") or "")
    text = content_text(block.get("content"), f"{where}.content")
    return {"role": "tool", "content": text, "tool_call_id": call_id, "at": at}


def _document(block: Mapping[str, Any], where: str) -> str:
    """A text document's text, its title before it."""
    source = mapping(block.get("source"), f"{where}.source")
    if source.get("type") == "content":
        text = content_text(source.get("content"), f"{where}.source.content")
    elif source.get("type") == "text" and isinstance(source.get("data"), str):
        text = source["data"]
    else:
        refuse(where, f"this model reads text only, not a document of type {source.get('type')!r}")
    titles = [str(block[key]) for key in ("title", "context") if block.get(key)]
    return "\n".join([*titles, text])


def plain(
    head: Head, pieces: Sequence[Piece], outcome: Outcome, logprobs: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    """The message object."""
    content = []
    calls = 0
    for piece in gather(pieces):
        if piece.kind == "reasoning" and not head.prompt.show_reasoning:
            continue
        content.append(_block(head, piece, calls))
        calls += piece.kind == "call"
    message = _message(head, content)
    message.update(_stop(outcome, calls > 0))
    message["usage"] = _usage(head, outcome)
    return message


class MessagesStream:
    """Renders the event sequence: one message, blocks opened, filled and closed in order, indexes rising."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._open: str | None = None
        self._index = -1
        self._calls = 0

    def begin(self) -> bytes:
        """``message_start``."""
        return frame({"type": "message_start", "message": _message(self._head, [])}, "message_start")

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Block events for the pieces; log-probs have no place in this dialect."""
        sent = []
        for piece in pieces:
            if piece.kind == "reasoning" and not self._head.prompt.show_reasoning:
                continue
            if piece.kind == "call" or piece.kind != self._open:
                sent.append(self._close())
                sent.append(self._start(piece))
            if piece.text:
                key, kind = _DELTAS[piece.kind]
                sent.append(self._event("content_block_delta", delta={"type": kind, key: piece.text}))
            if piece.kind == "call":
                sent.append(self._close())
        return b"".join(sent)

    def end(self, outcome: Outcome) -> bytes:
        """Close the block, then stop reason, usage and ``message_stop``."""
        closing = self._close()
        delta = {
            "type": "message_delta",
            "delta": _stop(outcome, self._calls > 0),
            "usage": _usage(self._head, outcome),
        }
        return closing + frame(delta, "message_delta") + frame({"type": "message_stop"}, "message_stop")

    def _start(self, piece: Piece) -> bytes:
        self._index += 1
        self._open = piece.kind
        block = _block(self._head, Piece(piece.kind, "", piece.name), self._calls)
        self._calls += piece.kind == "call"
        return self._event("content_block_start", content_block=block)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return self._event("content_block_stop")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return frame({"type": kind, "index": self._index, **fields}, kind)


_DELTAS = {
    "text": ("text", "text_delta"),
    "reasoning": ("thinking", "thinking_delta"),
    "call": ("partial_json", "input_json_delta"),
}


def _block(head: Head, piece: Piece, calls: int) -> dict[str, Any]:
    """A content block; a thinking block carries no signature, because nothing here could sign it."""
    if piece.kind == "text":
        return {"type": "text", "text": piece.text}
    if piece.kind == "reasoning":
        return {"type": "thinking", "thinking": piece.text, "signature": ""}
    arguments = json.loads(piece.text) if piece.text.strip() else {}
    return {"type": "tool_use", "id": f"toolu_{head.call_id}_{calls}", "name": piece.name, "input": arguments}


def _message(head: Head, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{head.call_id}",
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": head.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }


def _stop(outcome: Outcome, called: bool) -> dict[str, Any]:
    if outcome.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if called:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if outcome.stop_text is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": outcome.stop_text}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(head: Head, outcome: Outcome) -> dict[str, Any]:
    return {
        "input_tokens": head.input_tokens - outcome.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": outcome.cached_tokens,
        "output_tokens": outcome.output_tokens,
    }


MESSAGES = Dialect(parse, plain, MessagesStream)
"""The messages route's dialect."""
