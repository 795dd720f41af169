"""State machines of the three event streams: each raises ProtocolError on the first event its protocol does not allow.

Knows nothing of Reef's writers. For tests of whoever writes streams, a provider's or ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from reef.inference.sse import Event, load, read_events


class ProtocolError(AssertionError):
    """A stream broke its protocol."""


def check_stream(route: str, raw: bytes, *, whole: bool = True) -> None:
    """Check every event of ``raw``; ``whole`` False allows it to break off, or to end in an error event."""
    checker = _CHECKERS[route]()
    for number, event in enumerate(read_events(raw)):
        try:
            checker.event(event)
        except ProtocolError as error:
            raise ProtocolError(f"event {number} of {route}: {error}\n{event}") from None
    if whole and not checker.ended:
        raise ProtocolError(f"{route}: the stream has no end")


def _broken(why: str) -> NoReturn:
    raise ProtocolError(why)


def _demand(holds: object, why: str) -> None:
    if not holds:
        _broken(why)


def _arguments(text: str) -> None:
    """A call's arguments, which are one JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        _broken(f"arguments that are no JSON: {text!r}")
    _demand(isinstance(found, dict), f"arguments that are no object: {text!r}")


class ChatChecker:
    """Role, deltas, one finish reason, perhaps usage, ``[DONE]``."""

    def __init__(self) -> None:
        self.ended = False
        self._failed = False
        self._head: tuple[Any, ...] | None = None
        self._finished = self._counted = False
        self._calls: dict[int, str] = {}
        self._ids: list[str] = []

    def event(self, event: Event) -> None:
        """The next event."""
        _demand(not self.ended and not self._failed, "something after the end")
        _demand(not event.name, "chat events have no name")
        if event.data == b"[DONE]":
            _demand(self._finished, "[DONE] before a finish reason field")
            self.ended = True
            return
        chunk = load(event.data)
        if "error" in chunk:
            _demand(isinstance(chunk["error"].get("message"), str), "an error without words")
            self._failed = True
            return
        _demand(chunk.get("object") == "chat.completion.chunk", "not a chunk")
        head = chunk["id"], chunk["model"], chunk["created"]
        first, self._head = self._head is None, self._head or head
        _demand(head == self._head, "id, model or time changed")
        if not chunk["choices"]:
            _demand(self._finished and not self._counted and chunk.get("usage"), "an empty chunk that is no usage")
            self._counted = True
            return
        self._choice(chunk["choices"], first)

    def _choice(self, choices: list[dict[str, Any]], first: bool) -> None:
        _demand(len(choices) == 1 and choices[0]["index"] == 0, "one choice was asked for")
        choice = choices[0]
        delta = choice["delta"]
        _demand(not self._finished, "a delta after the finish reason")
        _demand(first == (delta.get("role") == "assistant"), "the role stands in the first chunk only")
        _demand(delta.get("tool_calls") != [], "an empty list of calls")
        for call in delta.get("tool_calls") or ():
            self._call(call)
        if delta == {} and "finish_reason" in choice and choice["logprobs"] is None:
            self._finished = True
            for text in self._calls.values():
                if choice["finish_reason"] != "length":
                    _arguments(text)
        else:
            _demand(choice["finish_reason"] is None, "a finish reason beside a delta")

    def _call(self, call: Mapping[str, Any]) -> None:
        index = call["index"]
        if index not in self._calls:
            _demand(index == len(self._calls), "indexes of calls do not rise")
            _demand(call.get("id") and call["function"].get("name"), "a call without id or name")
            _demand(call["id"] not in self._ids, "two calls of one id")
            self._ids.append(call["id"])
            for text in list(self._calls.values())[-1:]:
                _arguments(text)
            self._calls[index] = ""
        else:
            _demand(index == len(self._calls) - 1, "a call goes on after the next has begun")
            _demand("id" not in call, "an id twice")
        self._calls[index] += call["function"]["arguments"]


class MessagesChecker:
    """One ``message_start``; blocks opened, filled and closed in order with rising index; stop reason; ``message_stop``."""

    _DELTAS: Mapping[str, tuple[str, ...]] = {
        "text": ("text_delta", "citations_delta"),
        "thinking": ("thinking_delta", "signature_delta"),
        "tool_use": ("input_json_delta",),
        "redacted_thinking": (),
    }

    def __init__(self) -> None:
        self.ended = False
        self._state = "new"
        self._index = -1
        self._kind = ""
        self._input = ""
        self._ids: list[str] = []

    def event(self, event: Event) -> None:
        """The next event."""
        value = load(event.data)
        _demand(value.get("type") == event.name, "name and type differ")
        _demand(self._state not in ("ended", "failed"), "something after the end")
        if event.name == "ping":
            return
        if event.name == "error":
            _demand(value["error"]["type"] and value["error"]["message"], "an error without type or words")
            self._state = "failed"
            return
        step = getattr(self, f"_{event.name}", None)
        _demand(step is not None, "an event of no known type")
        assert step is not None
        step(value)

    def _message_start(self, value: Mapping[str, Any]) -> None:
        message = value["message"]
        _demand(self._state == "new", "two message_start")
        _demand(message["role"] == "assistant" and message["type"] == "message", "not an assistant's message")
        _demand(message["id"] and message["content"] == [] and message["stop_reason"] is None, "a message begun")
        _demand(type(message["usage"]["input_tokens"]) is int, "no usage")
        self._state = "between"

    def _content_block_start(self, value: Mapping[str, Any]) -> None:
        block = value["content_block"]
        _demand(self._state == "between", "a block opens where none may")
        _demand(value["index"] == self._index + 1, "the index does not rise by one")
        _demand(block["type"] in self._DELTAS, "a block of no known type")
        self._state, self._index, self._kind, self._input = "open", value["index"], block["type"], ""
        if block["type"] == "tool_use":
            _demand(block["id"] and block["name"] and block["input"] == {}, "a tool without id or name, or with input")
            _demand(block["id"] not in self._ids, "two calls of one id")
            self._ids.append(block["id"])

    def _content_block_delta(self, value: Mapping[str, Any]) -> None:
        _demand(self._state == "open" and value["index"] == self._index, "a delta for a block that is not open")
        _demand(value["delta"]["type"] in self._DELTAS[self._kind], "a delta of another kind than its block")
        self._input += value["delta"].get("partial_json", "")

    def _content_block_stop(self, value: Mapping[str, Any]) -> None:
        _demand(self._state == "open" and value["index"] == self._index, "a stop for a block that is not open")
        self._state = "between"

    def _message_delta(self, value: Mapping[str, Any]) -> None:
        _demand(self._state == "between", "the stop reason within a block")
        reason = value["delta"]["stop_reason"]
        if self._input.strip() and reason != "max_tokens":
            _arguments(self._input)
        _demand(type(value["usage"]["output_tokens"]) is int, "no usage")
        self._state = "told"

    def _message_stop(self, value: Mapping[str, Any]) -> None:
        _demand(self._state == "told", "message_stop before the stop reason")
        self._state, self.ended = "ended", True


class ResponsesChecker:
    """Numbered events; each item added, filled and done before the next; the closing response holds the same items."""

    _WORDS: Mapping[str, tuple[str, str]] = {
        "output_text": ("message", "text"),
        "refusal": ("message", "refusal"),
        "reasoning_text": ("reasoning", "text"),
        "function_call_arguments": ("function_call", "arguments"),
        "custom_tool_call_input": ("custom_tool_call", "input"),
    }

    def __init__(self) -> None:
        self.ended = False
        self._failed = False
        self._number = 0
        self._id = ""
        self._item: dict[str, Any] | None = None
        self._part: dict[str, Any] | None = None
        self._text = ""
        self._told = False
        self._items: list[dict[str, Any]] = []

    def event(self, event: Event) -> None:
        """The next event."""
        value = load(event.data)
        _demand(value.get("type") == event.name, "name and type differ")
        _demand(not self.ended and not self._failed, "something after the end")
        if event.name == "error":
            _demand(isinstance(value["message"], str), "an error without words")
            self._failed = True
            return
        _demand(value["sequence_number"] == self._number, "sequence numbers do not rise by one")
        self._number += 1
        kind = event.name.removeprefix("response.")
        if "response" in value:
            self._lifecycle(kind, value["response"])
        elif kind == "output_item.added":
            _demand(self._item is None and self._number > 2, "an item within an item")
            self._open(value)
        else:
            _demand(self._item is not None, "an event of an item that is not open")
            self._within(kind, value)

    def _lifecycle(self, kind: str, response: Mapping[str, Any]) -> None:
        if self._number <= 2:
            _demand(kind == ("created", "in_progress")[self._number - 1], "not created, then in progress")
            _demand(response["status"] == "in_progress" and response["output"] == [], "begun before it began")
            self._id = self._id or response["id"]
        else:
            _demand(kind in ("completed", "incomplete") and response["status"] == kind, "an end that is none")
            _demand(self._item is None, "an end within an item")
            _demand(response["output"] == self._items, "the closing response holds other items")
            self.ended = True
        _demand(response["id"] == self._id and self._id, "the response's id changed")

    def _open(self, value: Mapping[str, Any]) -> None:
        item = value["item"]
        _demand(value["output_index"] == len(self._items), "output_index does not rise by one")
        _demand(item["status"] == "in_progress" and not item.get("content"), "an item that is begun when it is added")
        ids = {one["id"] for one in self._items} | {one["call_id"] for one in self._items if "call_id" in one}
        _demand(item["id"] not in ids and item.get("call_id") not in ids, "two items of one id")
        self._item, self._part, self._text, self._told = item, None, "", False

    def _within(self, kind: str, value: Mapping[str, Any]) -> None:
        assert self._item is not None
        _demand(value["output_index"] == len(self._items), "an event of another item")
        if kind == "output_item.done":
            self._done(value["item"])
            return
        _demand(value["item_id"] == self._item["id"], "an event of another id")
        if kind == "content_part.added":
            _demand(self._part is None and value["content_index"] == 0, "a part within a part")
            self._part = value["part"]
            return
        if kind == "content_part.done":
            _demand(
                self._told and value["part"]["type"] == (self._part or {}).get("type"), "a part done before its text"
            )
            return
        name, _, step = kind.rpartition(".")
        _demand(name in self._WORDS and step in ("delta", "done"), "an event of no known type")
        owner, field = self._WORDS[name]
        _demand(self._item["type"] == owner, "an event of another kind of item")
        if owner in ("message", "reasoning"):
            _demand((self._part or {}).get("type") == name, "text without its part")
        _demand(not self._told, "text after it was done")
        if step == "delta":
            self._text += value["delta"]
        else:
            _demand(value[field] == self._text, "the whole text differs from its deltas")
            self._told = True

    def _done(self, item: dict[str, Any]) -> None:
        assert self._item is not None
        _demand(self._told or not (item.get("content") or "call_id" in item), "an item done before its text")
        same = ("id", "type", "call_id", "name", "namespace")
        _demand(all(self._item.get(key) == item.get(key) for key in same), "another item is done than was added")
        text = item.get("arguments", item.get("input"))
        if text is None:
            text = "".join(part.get("text", part.get("refusal")) for part in item["content"])
        _demand(text == self._text, "the item holds another text than its deltas")
        if item["type"] == "function_call" and item["status"] == "completed":
            _arguments(item["arguments"])
        self._items.append(item)
        self._item = None


_CHECKERS: Mapping[str, Callable[[], ChatChecker | MessagesChecker | ResponsesChecker]] = {
    "chat": ChatChecker,
    "messages": MessagesChecker,
    "responses": ResponsesChecker,
}
