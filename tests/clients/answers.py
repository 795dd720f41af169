"""A provider's answers in all three wire formats, plain and streamed, with and without a tool call; made for these tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from reef.inference.testing import Script

TEXT = "naïve 海"
ARGUMENTS = {"path": "a.txt", "lines": [1, 2]}
CALL = json.dumps(ARGUMENTS)
JSON = (("content-type", "application/json"), ("x-request-id", "req-1"))
SSE = (("content-type", "text/event-stream"),)


def plain(body: dict[str, Any]) -> Script:
    return Script([json.dumps(body).encode()], headers=JSON)


def stream(events: Iterable[dict[str, Any]], *, named: bool, done: bool = False) -> Script:
    """Events as the provider sends them, each cut in two in the middle of its bytes."""
    pieces: list[bytes] = []
    for event in events:
        head = f"event: {event['type']}\n" if named else ""
        raw = f"{head}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        pieces += [raw[: len(raw) // 2], raw[len(raw) // 2 :]]
    return Script([*pieces, *([b"data: [DONE]\n\n"] if done else [])], headers=SSE)


# -- chat completions

_CHAT = {"id": "chatcmpl-1", "created": 1, "model": "m-1"}
_CHAT_USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


def chat_plain(*, tools: bool) -> Script:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": CALL}}
    message: dict[str, Any] = {"role": "assistant", "content": TEXT}
    if tools:
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if tools else "stop", "logprobs": None}
    return plain({**_CHAT, "object": "chat.completion", "choices": [choice], "usage": _CHAT_USAGE})


def chat_stream(*, tools: bool) -> Script:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if tools else ""}]
    if tools:
        head = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in (CALL[:9], CALL[9:])]
    else:
        deltas += [{"content": part} for part in (TEXT[:3], TEXT[3:])]
    chunk = {**_CHAT, "object": "chat.completion.chunk"}
    events = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if tools else "stop"}
    events += [{**chunk, "choices": [end]}, {**chunk, "choices": [], "usage": _CHAT_USAGE}]
    return stream(events, named=False, done=True)


# -- messages

_MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "stop_sequence": None}
_MESSAGE_USAGE = {"input_tokens": 9, "output_tokens": 4}


def messages_plain(*, tools: bool) -> Script:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": TEXT}]
    if tools:
        blocks.append({"type": "tool_use", "id": "toolu_1", "name": "look", "input": ARGUMENTS})
    reason = "tool_use" if tools else "end_turn"
    return plain({**_MESSAGE, "content": blocks, "stop_reason": reason, "usage": _MESSAGE_USAGE})


def messages_stream(*, tools: bool) -> Script:
    start = {**_MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for part in (TEXT[:3], TEXT[3:]):
        events.append({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}})
    events.append({"type": "content_block_stop", "index": 0})
    if tools:
        block = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
        events.append({"type": "content_block_start", "index": 1, "content_block": block})
        for part in (CALL[:9], CALL[9:]):
            delta = {"type": "input_json_delta", "partial_json": part}
            events.append({"type": "content_block_delta", "index": 1, "delta": delta})
        events.append({"type": "content_block_stop", "index": 1})
    reason = {"stop_reason": "tool_use" if tools else "end_turn", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": reason, "usage": {"output_tokens": 4}})
    return stream([*events, {"type": "message_stop"}], named=True)


# -- responses

_RESPONSES_USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 13,
}


def _response(status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "m-1", "output": output,
        "usage": usage, "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
        "parallel_tool_calls": True, "temperature": 1.0, "top_p": 1.0, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


def _item(*, tools: bool, done: bool = True) -> dict[str, Any]:
    status = "completed" if done else "in_progress"
    if tools:
        call = CALL if done else ""
        return {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "look",
            "arguments": call,
            "status": status,
        }
    content = [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}] if done else []
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}


def responses_plain(*, tools: bool) -> Script:
    return plain(_response("completed", [_item(tools=tools)], _RESPONSES_USAGE))


def responses_stream(*, tools: bool) -> Script:
    item = {"item_id": "fc_1" if tools else "msg_1", "output_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response("in_progress", [], None)},
        {"type": "response.output_item.added", "output_index": 0, "item": _item(tools=tools, done=False)},
    ]
    if tools:
        for part in (CALL[:9], CALL[9:]):
            events.append({"type": "response.function_call_arguments.delta", **item, "delta": part})
        events.append({"type": "response.function_call_arguments.done", **item, "arguments": CALL, "name": "look"})
    else:
        item |= {"content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        events.append({"type": "response.content_part.added", **item, "part": empty})
        for part in (TEXT[:3], TEXT[3:]):
            events.append({"type": "response.output_text.delta", **item, "delta": part, "logprobs": []})
        events.append({"type": "response.output_text.done", **item, "text": TEXT, "logprobs": []})
        events.append({"type": "response.content_part.done", **item, "part": {**empty, "text": TEXT}})
    events.append({"type": "response.output_item.done", "output_index": 0, "item": _item(tools=tools)})
    events.append(
        {"type": "response.completed", "response": _response("completed", [_item(tools=tools)], _RESPONSES_USAGE)}
    )
    return stream([{**event, "sequence_number": number} for number, event in enumerate(events)], named=True)
