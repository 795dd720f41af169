"""OpenAI's responses, to a client: Pieces to a response object or to its numbered event sequence.

Knows nothing of templates, tokens or HTTP. Called by the engine backend and by translation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reef.inference.dialects.answer import Head, Outcome, Piece, TokenLogprob, gather
from reef.inference.dialects.chat.write import show_logprob
from reef.inference.dialects.tools import free_text, offered
from reef.inference.sse import frame

_PARTS = {"text": "output_text", "refusal": "refusal", "reasoning": "reasoning_text"}
_ID_PREFIX = {"text": "msg", "refusal": "msg", "reasoning": "rs", "call": "fc"}
_REASONS = {"length": "max_output_tokens", "filter": "content_filter"}


def plain(
    head: Head, pieces: Sequence[Piece], outcome: Outcome, logprobs: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    """The response object."""
    parts = gather(pieces)
    output = []
    for index, piece in enumerate(parts):
        cut = _status(outcome) != "completed" and index == len(parts) - 1 and not piece.seal
        output.append(_item(head, index, piece, "incomplete" if cut else "completed"))
    return _response(head, output, outcome)


class ResponsesStream:
    """Renders the event sequence with rising sequence numbers; each item is added, filled and done before the next."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._open: Piece | None = None
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def begin(self) -> bytes:
        """``response.created`` and ``response.in_progress``."""
        response = _response(self._head, [], None)
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Item, part and delta events for the pieces."""
        sent = []
        for piece in pieces:
            if piece.kind == "call" or (
                piece.kind not in ("arguments", self._open and self._open.kind) and (piece.text or piece.seal)
            ):
                sent.append(self._close("completed") + self._start(piece))
            if piece.text or piece.logprobs:
                sent.append(self._fill(piece))
            if piece.seal and self._open is not None:
                self._open = replace(self._open, seal=piece.seal)
                sent.append(self._close("completed"))
        return b"".join(sent)

    def end(self, outcome: Outcome) -> bytes:
        """Close the item, then the whole response."""
        status = _status(outcome)
        closing = self._close(status)
        response = _response(self._head, self._output, outcome)
        return closing + self._event(status, response=response)

    def _start(self, piece: Piece) -> bytes:
        self._open, self._text, self._logprobs = replace(piece, text="", seal="", logprobs=()), [], []
        item = _item(self._head, len(self._output), self._open, "in_progress")
        part = item["content"][0] if item.get("content") else None
        if part is not None:
            item["content"] = []
        added = self._event("output_item.added", output_index=len(self._output), item=item)
        if part is None or not piece.text:  # a thought that is only sealed has no words
            return added
        return added + self._at("content_part.added", content_index=0, part=part)

    def _fill(self, piece: Piece) -> bytes:
        """The next text of the open item; what a custom tool is given can be told only when it is whole."""
        if self._open is None:
            return b""
        self._text.append(piece.text)
        if self._open.kind == "call":
            return b"" if self._is_custom() else self._at("function_call_arguments.delta", delta=piece.text)
        self._logprobs += piece.logprobs
        shown = {"logprobs": _shown(self._head, piece.logprobs)} if self._open.kind == "text" else {}
        return self._at(f"{_PARTS[self._open.kind]}.delta", content_index=0, delta=piece.text, **shown)

    def _close(self, status: str) -> bytes:
        if self._open is None:
            return b""
        text = "".join(self._text)
        piece = replace(self._open, text=text, logprobs=tuple(self._logprobs))
        item = _item(self._head, len(self._output), piece, status)
        sent = b""
        if piece.kind == "call":
            sent = self._close_call(item)
        elif item.get("content"):
            words = {"refusal": text} if piece.kind == "refusal" else {"text": text}
            if piece.kind == "text":
                words |= {"logprobs": item["content"][0]["logprobs"]}
            sent = self._at(f"{_PARTS[piece.kind]}.done", content_index=0, **words)
            sent += self._at("content_part.done", content_index=0, part=item["content"][0])
        sent += self._event("output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._open = None
        return sent

    def _close_call(self, item: dict[str, Any]) -> bytes:
        if item["type"] == "custom_tool_call":
            delta = self._at("custom_tool_call_input.delta", delta=item["input"])
            return delta + self._at("custom_tool_call_input.done", input=item["input"])
        bare = b"" if self._text else self._at("function_call_arguments.delta", delta=item["arguments"])
        return bare + self._at("function_call_arguments.done", name=item["name"], arguments=item["arguments"])

    def _is_custom(self) -> bool:
        return self._open is not None and offered(self._head.prompt, self._open.name).custom

    def _at(self, kind: str, **fields: Any) -> bytes:
        assert self._open is not None
        index = len(self._output)
        item_id = _item_id(self._head, index, self._open)
        return self._event(kind, item_id=item_id, output_index=index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name = f"response.{kind}"
        sent = frame({"type": name, "sequence_number": self._sequence, **fields}, name)
        self._sequence += 1
        return sent


def _item_id(head: Head, index: int, piece: Piece) -> str:
    prefix = "ctc" if piece.kind == "call" and offered(head.prompt, piece.name).custom else _ID_PREFIX[piece.kind]
    return f"{prefix}_{head.call_id}_{index}"


def _shown(head: Head, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    if head.prompt.get("logprobs") is None:
        return []
    return [{**show_logprob(one), "top_logprobs": list(map(show_logprob, one.top))} for one in logprobs]


def _item(head: Head, index: int, piece: Piece, status: str) -> dict[str, Any]:
    item: dict[str, Any] = {"id": _item_id(head, index, piece), "status": status}
    if piece.kind == "call":
        return _call(head, index, piece, item)
    part: dict[str, Any] = {"type": _PARTS[piece.kind], "text": piece.text}
    if piece.kind == "reasoning":
        sealed = {"encrypted_content": piece.seal} if piece.seal else {}
        content = [] if piece.seal and not piece.text else [part]
        return {"type": "reasoning", **item, "summary": [], "content": content, **sealed}
    if piece.kind == "refusal":
        part = {"type": "refusal", "refusal": piece.text}
    else:
        part |= {"annotations": [], "logprobs": _shown(head, piece.logprobs)}
    return {"type": "message", **item, "role": "assistant", "content": [part]}


def _call(head: Head, index: int, piece: Piece, item: dict[str, Any]) -> dict[str, Any]:
    """A call of the tool as the client named it, in its namespace, its free text as text."""
    tool = offered(head.prompt, piece.name)
    named: dict[str, Any] = {"call_id": piece.call_id or f"call_{head.call_id}_{index}", "name": tool.name}
    if tool.namespace:
        named["namespace"] = tool.namespace
    arguments = piece.text
    if item["status"] != "in_progress":
        arguments = arguments if arguments.strip() else "{}"
    if tool.custom:
        return {"type": "custom_tool_call", **item, **named, "input": free_text(piece.text)}
    return {"type": "function_call", **item, **named, "arguments": arguments}


def _status(outcome: Outcome) -> str:
    return "completed" if outcome.finish in ("stop", "calls") else "incomplete"


def _response(head: Head, output: Sequence[dict[str, Any]], outcome: Outcome | None) -> dict[str, Any]:
    """The response object; ``outcome`` None: still in progress. The request's tools are not sent back."""
    prompt = head.prompt
    status, details, usage = "in_progress", None, None
    if outcome is not None:
        status = _status(outcome)
        reason = _REASONS.get(outcome.finish or "")
        details = {"reason": reason} if reason else None
    if outcome is not None and outcome.usage is not None:
        usage = {
            "input_tokens": outcome.usage.input_tokens,
            "input_tokens_details": {
                "cached_tokens": outcome.usage.cached_tokens,
                "cache_write_tokens": outcome.usage.written_tokens,
            },
            "output_tokens": outcome.usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": outcome.usage.reasoning_tokens},
            "total_tokens": outcome.usage.input_tokens + outcome.usage.output_tokens,
        }
    usable = prompt.tools and (prompt.choice is None or prompt.choice.kind != "none")
    return {
        "id": f"resp_{head.call_id}",
        "object": "response",
        "created_at": head.created_s,
        "status": status,
        "error": None,
        "incomplete_details": details,
        "instructions": None,
        "max_output_tokens": prompt.get("max_tokens"),
        "metadata": prompt.get("metadata", {}),
        "model": head.model,
        "output": list(output),
        "parallel_tool_calls": prompt.get("parallel", True),
        "previous_response_id": None,
        "temperature": float(prompt.get("temperature", 1.0)),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto" if usable else "none",
        "tools": [],
        "top_p": float(prompt.get("top_p", 1.0)),
        "usage": usage,
    }
