"""OpenAI's responses: request to Prompt, generation to a response object or to its numbered event sequence.

Stateless: what refers to an earlier response is refused. Knows nothing of templates, tokens or HTTP. Called by the
engine backend.
"""

from __future__ import annotations

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
    tool_call,
    tool_choice,
    whole,
)
from reef.inference.sse import frame

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_STATEFUL = ("previous_response_id", "conversation", "background", "prompt")


def parse(body: Mapping[str, Any]) -> Prompt:
    """The Prompt of a responses request; BadRequest names the field that cannot be honoured."""
    for name in _STATEFUL:
        if body.get(name):
            refuse(name, "needs responses kept by the server; send the whole input instead")
    kind = mapping(mapping(body.get("text"), "text").get("format"), "text.format").get("type", "text")
    if kind != "text":
        refuse("text.format", f"{kind!r} cannot be enforced by this engine; ask for JSON in the prompt instead")
    if "message.output_text.logprobs" in sequence(body.get("include"), "include"):
        refuse("include", "log-probs are given on /v1/chat/completions only")
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": content_text(body["instructions"], "instructions")})
    messages.extend(_input(body.get("input")))
    tools = []
    for at, tool in enumerate(sequence(body.get("tools"), "tools")):
        if isinstance(tool, dict) and tool.get("type") == "function":
            tools.append(function_tool(tool, "parameters", f"tools[{at}]"))
    options: dict[str, Any] = {}
    effort = mapping(body.get("reasoning"), "reasoning").get("effort")
    if effort is not None:
        options = {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}
    return Prompt(
        messages=arrange(messages, "input"),
        tools=tuple(tools) if tool_choice(body.get("tool_choice")) else (),
        max_tokens=whole(body, "max_output_tokens", 1),
        temperature=number(body, "temperature", 1.0, 0.0, 10.0),
        top_p=number(body, "top_p", 1.0, 0.0, 1.0),
        template_options=options,
    )


def _input(given: Any) -> list[dict[str, Any]]:
    """Input items as messages; an assistant's reasoning, text and calls that follow each other are one turn."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items = sequence(given, "input")
    if not items:
        refuse("input", "must be a string or hold at least one item")
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None
    for at, item in enumerate(items):
        where = f"input[{at}]"
        kind = mapping(item, where).get("type") or ("message" if "role" in item else None)
        if kind == "message" and item.get("role") != "assistant":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                refuse(f"{where}.role", f"{item.get('role')!r} is not known")
            messages.append({"role": role, "content": content_text(item.get("content"), f"{where}.content")})
            turn = None
        elif kind in ("function_call_output", "custom_tool_call_output"):
            text = content_text(item.get("output"), f"{where}.output")
            call_id = str(item.get("call_id") or "")
            messages.append({"role": "tool", "content": text, "tool_call_id": call_id, "at": at})
            turn = None
        else:
            turn = _spoken(turn, kind, item, where, messages)
    return messages


def _spoken(
    turn: dict[str, Any] | None, kind: Any, item: Mapping[str, Any], where: str, messages: list[dict[str, Any]]
) -> dict[str, Any]:
    """Add an assistant item to the open turn, or to a new one (text behind text, reasoning behind anything)."""
    if turn is None or kind == "reasoning" or (kind == "message" and (turn["content"] or "tool_calls" in turn)):
        turn = {"role": "assistant", "content": ""}
        messages.append(turn)
    if kind == "message":
        turn["content"] = content_text(item.get("content"), f"{where}.content")
    elif kind == "reasoning":
        parts = sequence(item.get("content"), f"{where}.content") or sequence(item.get("summary"), f"{where}.summary")
        turn["reasoning_content"] = content_text(parts, where)
    elif kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
        call = tool_call(item.get("call_id"), item.get("name"), arguments, where)
        turn.setdefault("tool_calls", []).append(call)
    else:
        refuse(f"{where}.type", f"an item of type {kind!r} cannot be given to this model")
    return turn


def plain(
    head: Head, pieces: Sequence[Piece], outcome: Outcome, logprobs: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    """The response object."""
    parts = gather(pieces)
    output = []
    for index, piece in enumerate(parts):
        cut = outcome.finish == "length" and index == len(parts) - 1 and piece.kind != "call"
        output.append(_item(head, index, piece, "incomplete" if cut else "completed"))
    return _response(head, output, outcome)


class ResponsesStream:
    """Renders the event sequence with rising sequence numbers; each item is added, filled and done before the next."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._kind = ""
        self._text: list[str] = []

    def begin(self) -> bytes:
        """``response.created`` and ``response.in_progress``."""
        response = _response(self._head, [], None)
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Item, part and delta events for the pieces."""
        sent = []
        for piece in pieces:
            if piece.kind == "call":
                sent.append(self._close("completed"))
                sent.append(self._call(piece))
            elif piece.text:
                if piece.kind != self._kind:
                    sent.append(self._close("completed"))
                    sent.append(self._start(piece.kind))
                self._text.append(piece.text)
                sent.append(self._part_event(f"{_PARTS[piece.kind]}.delta", delta=piece.text))
        return b"".join(sent)

    def end(self, outcome: Outcome) -> bytes:
        """Close the item, then the whole response."""
        closing = self._close("incomplete" if outcome.finish == "length" else "completed")
        response = _response(self._head, self._output, outcome)
        return closing + self._event(response["status"], response=response)

    def _start(self, kind: str) -> bytes:
        self._kind, self._text = kind, []
        item = _item(self._head, len(self._output), _empty(kind), "in_progress")
        part, item["content"] = item["content"][0], []
        added = self._event("output_item.added", output_index=len(self._output), item=item)
        return added + self._part_event("content_part.added", part=part)

    def _close(self, status: str) -> bytes:
        if not self._kind:
            return b""
        kind, text = self._kind, "".join(self._text)
        item = _item(self._head, len(self._output), Piece("text" if kind == "text" else "reasoning", text), status)
        sent = self._part_event(f"{_PARTS[kind]}.done", text=text)
        sent += self._part_event("content_part.done", part=item["content"][0])
        sent += self._event("output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._kind = ""
        return sent

    def _call(self, piece: Piece) -> bytes:
        index = len(self._output)
        item = _item(self._head, index, piece, "completed")
        at = {"item_id": item["id"], "output_index": index}
        started = {**item, "arguments": "", "status": "in_progress"}
        sent = self._event("output_item.added", output_index=index, item=started)
        sent += self._event("function_call_arguments.delta", **at, delta=piece.text)
        sent += self._event("function_call_arguments.done", **at, name=piece.name, arguments=piece.text)
        self._output.append(item)
        return sent + self._event("output_item.done", output_index=index, item=item)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        index = len(self._output)
        item_id = _item_id(self._head, index, self._kind)
        if self._kind == "text" and kind.startswith("output_text"):
            fields["logprobs"] = []
        return self._event(kind, item_id=item_id, output_index=index, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name = f"response.{kind}"
        sent = frame({"type": name, "sequence_number": self._sequence, **fields}, name)
        self._sequence += 1
        return sent


_PARTS = {"text": "output_text", "reasoning": "reasoning_text"}
_ID_PREFIX = {"text": "msg", "reasoning": "rs", "call": "fc"}


def _empty(kind: str) -> Piece:
    return Piece("text" if kind == "text" else "reasoning", "")


def _item_id(head: Head, index: int, kind: str) -> str:
    return f"{_ID_PREFIX[kind]}_{head.call_id}_{index}"


def _item(head: Head, index: int, piece: Piece, status: str) -> dict[str, Any]:
    item: dict[str, Any] = {"id": _item_id(head, index, piece.kind), "status": status}
    if piece.kind == "text":
        part = {"type": "output_text", "text": piece.text, "annotations": [], "logprobs": []}
        return {"type": "message", **item, "role": "assistant", "content": [part]}
    if piece.kind == "reasoning":
        part = {"type": "reasoning_text", "text": piece.text}
        return {"type": "reasoning", **item, "summary": [], "content": [part]}
    call_id = f"call_{head.call_id}_{index}"
    return {"type": "function_call", **item, "call_id": call_id, "name": piece.name, "arguments": piece.text}


def _response(head: Head, output: Sequence[dict[str, Any]], outcome: Outcome | None) -> dict[str, Any]:
    """The response object; ``outcome`` None: still in progress. The request's tools are not sent back."""
    prompt = head.prompt
    status, details, usage = "in_progress", None, None
    if outcome is not None:
        cut = outcome.finish == "length"
        status, details = ("incomplete", {"reason": "max_output_tokens"}) if cut else ("completed", None)
        usage = {
            "input_tokens": head.input_tokens,
            "input_tokens_details": {"cached_tokens": outcome.cached_tokens},
            "output_tokens": outcome.output_tokens,
            "output_tokens_details": {"reasoning_tokens": outcome.reasoning_tokens},
            "total_tokens": head.input_tokens + outcome.output_tokens,
        }
    return {
        "id": f"resp_{head.call_id}",
        "object": "response",
        "created_at": head.created_s,
        "status": status,
        "error": None,
        "incomplete_details": details,
        "instructions": None,
        "max_output_tokens": prompt.max_tokens,
        "metadata": {},
        "model": head.model,
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": prompt.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto" if prompt.tools else "none",
        "tools": [],
        "top_p": prompt.top_p,
        "usage": usage,
    }


RESPONSES = Dialect(parse, plain, ResponsesStream)
"""The responses route's dialect."""
