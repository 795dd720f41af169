"""Joins the events of a streamed answer into its route's plain response object, one function per route.

Knows nothing of transport, codings or verdicts. Called by ``assembly.assemble``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from reef.inference.sse import blocks_of, load, read_events


@dataclass(frozen=True, slots=True)
class Joined:
    """A stream as one object; ``complete`` when its end mark came and every event could be read."""

    body: dict[str, Any] | None
    complete: bool
    error: str | None
    flags: tuple[str, ...]


class _Text(list[str]):
    """Pieces of one growing string; joined at the end, because adding strings one by one is quadratic."""


_SET_ONCE_OR_REPLACED = frozenset(
    {
        "id",
        "type",
        "role",
        "index",
        "name",
        "object",
        "model",
        "format",
        "status",
        "finish_reason",
        "system_fingerprint",
    }
)
"""String fields that are repeated rather than continued by later pieces."""


def join_chat(raw: bytes) -> Joined:
    """Chat chunks: choices and tool calls by index, whatever the cut; ends with ``[DONE]`` or a finish reason."""
    chunks = _Objects(raw)
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    last: dict[str, Any] = {}
    error = None
    for chunk in chunks:
        if chunk.get("error"):
            error = _words(chunk["error"])
            continue
        pieces = chunk.pop("choices", None) or ()
        for piece in pieces:
            index = piece.pop("index", None) or 0
            choice = choices.get(index) or choices.setdefault(index, {"index": index, "message": {}})
            message = choice["message"]
            delta = piece.pop("delta", None) or piece.pop("message", None) or {}
            if len(pieces) == 1 and not any(piece.values()):
                chunks.took(delta, message)
            for call in delta.pop("tool_calls", None) or ():
                _merge_call(message.setdefault("tool_calls", []), call, chunks.flags)
            _merge(message, delta)
            _merge(choice, piece)
        if chunk != last:
            body |= {key: value for key, value in chunk.items() if value is not None or key not in body}
            last = chunk
    done, flags = chunks.done, chunks.flags
    if not body and not choices:
        return Joined(None, done and error is None and not flags, error, tuple(flags))
    if body.get("object") == "chat.completion.chunk":
        body["object"] = "chat.completion"
    body["choices"] = [_plain(choices[index]) for index in sorted(choices)]
    ended = done or (bool(choices) and all(choice.get("finish_reason") for choice in choices.values()))
    return Joined(body, ended and "event_not_json" not in flags, error, tuple(flags))


def join_messages(raw: bytes) -> Joined:
    """Messages events: blocks by index, tool input parsed once from its joined text; ends with ``message_stop``."""
    events = _Objects(raw)
    body: dict[str, Any] | None = None
    blocks: dict[int, dict[str, Any]] = {}
    ended, error = False, None
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            body = dict(event.get("message") or {})
        elif kind == "content_block_start":
            blocks[event.get("index") or 0] = dict(event.get("content_block") or {})
        elif kind == "content_block_delta":
            delta = {key: value for key, value in (event.get("delta") or {}).items() if key != "type"}
            if "citation" in delta:
                delta = {"citations": [delta["citation"]]}
            block = blocks.setdefault(event.get("index") or 0, {})
            events.took(delta, block)
            _merge(block, delta)
        elif kind == "message_delta" and body is not None:
            body.update(event.get("delta") or {})
            body["usage"] = {**(body.get("usage") or {}), **(event.get("usage") or {})}
        elif kind == "message_stop":
            ended = True
        elif kind == "error" or event.get("error"):
            error = _words(event.get("error"))
    if body is None:
        return Joined(None, False, error, tuple(events.flags))
    body["content"] = [_block(_plain(blocks[index])) for index in sorted(blocks)]
    return Joined(body, ended and "event_not_json" not in events.flags, error, tuple(events.flags))


def _block(block: dict[str, Any]) -> dict[str, Any]:
    """A content block whose tool input is the parsed text of its pieces; text that does not parse stays text."""
    text = block.pop("partial_json", "")
    if text.strip():
        try:
            block["input"] = json.loads(text)
        except ValueError:
            block["input"] = text
    return block


def join_responses(raw: bytes) -> Joined:
    """Responses events: the closing event carries the whole object; a cut stream gives the items it had."""
    events = _Objects(raw)
    body: dict[str, Any] | None = None
    items: dict[int, dict[str, Any]] = {}
    ended, error = False, None
    for event in events:
        kind = str(event.get("type") or "")
        index = event.get("output_index") or 0
        if isinstance(event.get("response"), dict):
            body = dict(event["response"])
            ended = kind in ("response.completed", "response.incomplete", "response.failed")
        elif kind in ("response.output_item.added", "response.output_item.done"):
            items[index] = dict(event.get("item") or {})
        elif kind == "error" or event.get("error"):
            error = _words(event.get("error") or event)
        elif index in items and kind.startswith("response."):
            _grow_item(items[index], kind, event)
    if body is None:
        return Joined(None, False, error, tuple(events.flags))
    if items and not body.get("output"):
        body["output"] = [_plain(items[index]) for index in sorted(items)]
    return Joined(body, ended and "event_not_json" not in events.flags, error, tuple(events.flags))


def _grow_item(item: dict[str, Any], kind: str, event: Mapping[str, Any]) -> None:
    """Apply a part or delta event to an item that has not been closed yet."""
    if kind.startswith("response.function_call_arguments."):
        if kind.endswith(".done"):
            item["arguments"] = event.get("arguments", item.get("arguments"))
        else:
            _merge(item, {"arguments": event.get("delta") or ""})
    elif kind in ("response.content_part.added", "response.content_part.done"):
        parts = item["content"] = list(item.get("content") or ())
        del parts[event.get("content_index") or 0 :]
        parts.append(dict(event.get("part") or {}))
    elif kind.endswith(".delta") and isinstance(event.get("delta"), str):
        parts = item.get("content") or []
        if parts and kind in ("response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta"):
            _merge(parts[-1], {"refusal" if "refusal" in kind else "text": event["delta"]})


STREAMS: Mapping[str, Callable[[bytes], Joined]] = {
    "chat": join_chat,
    "responses": join_responses,
    "messages": join_messages,
}


_GROWING = ("content", "reasoning_content", "reasoning", "text", "thinking", "partial_json")
_PIECES: Callable[[bytes], Iterator[re.Match[bytes]]] = re.compile(
    rb'"(?:%b)"\s*:\s*"((?:[^"\\]|\\.)*)"' % "|".join(_GROWING).encode()
).finditer
_PATIENCE = 8
"""Frames that are tried on one stream: where every event carries a number of its own, none comes twice."""


class _Objects:
    """The JSON objects of a stream one after the other, so that only one is alive; ``done`` once ``[DONE]`` has come.

    A list of them all would have the garbage collector look through the whole daemon several times for a long answer.
    Nearly all events of a long answer differ in one string only: once a reader ``took`` an object for one more piece of a
    text, what comes in the same frame is added to that text here, and not given.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.done = False
        self.flags: list[str] = []
        self._grows: _Text | None = None

    def took(self, delta: Mapping[str, Any], holder: Mapping[str, Any]) -> None:
        """The object given last is worth no more than this ``delta``, about to be added to ``holder``."""
        key = next(iter(delta)) if len(delta) == 1 else ""
        if key in _GROWING and type(delta[key]) is str and type(holder.get(key)) is _Text:
            self._grows = holder[key]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        broken, before, patience = False, b"", _PATIENCE
        frame: tuple[bytes, bytes] | None = None
        for block in blocks_of(self._raw):
            if self._grows is not None:
                if frame is None and patience:
                    cuts = [piece.span(1) for piece in _PIECES(before)]
                    patience -= 1
                    if len(cuts) == 1:  # of several it would have to be guessed which one grows
                        frame = before[: cuts[0][0]], before[cuts[0][1] :]
                if frame is not None and block.startswith(frame[0]) and block.endswith(frame[1], len(frame[0])):
                    try:
                        self._grows.append(orjson.loads(b'"%b"' % block[len(frame[0]) : -len(frame[1])]))
                        continue
                    except orjson.JSONDecodeError:  # more than one string: another event
                        pass
                self._grows = frame = None
            before = block
            try:  # nearly all are one line of JSON
                value = orjson.loads(block[6:]) if block[:6] == b"data: " else None
            except orjson.JSONDecodeError:
                value = None
            if type(value) is dict:
                yield value
                continue
            for event in read_events(block):
                if event.data.strip() == b"[DONE]":
                    self.done = True
                    continue
                try:
                    value = load(event.data)
                except ValueError:
                    value = None
                if isinstance(value, dict):
                    yield value
                else:
                    broken = True
        if broken:
            self.flags.append("event_not_json")


def _merge(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add one piece: strings continue, lists grow (indexed items by index), objects merge, the rest replaces."""
    for key, value in delta.items():
        old = into.get(key)
        if value is None:
            into.setdefault(key, None)
        elif isinstance(value, str) and key not in _SET_ONCE_OR_REPLACED:
            if isinstance(old, _Text):
                old.append(value)
            else:
                into[key] = _Text([old, value]) if isinstance(old, str) else _Text([value])
        elif isinstance(value, dict):
            if not isinstance(old, dict):
                old = into[key] = {}
            _merge(old, value)
        elif isinstance(value, list):
            if not isinstance(old, list):
                old = into[key] = []
            for item in value:
                _merge_item(old, item)
        elif value != "" or old is None:
            into[key] = value


def _merge_item(items: list[Any], item: Any) -> None:
    """Append a list item, or continue the one with the same ``index``."""
    if isinstance(item, dict) and isinstance(item.get("index"), int):
        for known in items:
            if isinstance(known, dict) and known.get("index") == item["index"]:
                _merge(known, item)
                return
        started: dict[str, Any] = {}
        _merge(started, item)
        item = started
    items.append(item)


def _merge_call(calls: list[dict[str, Any]], piece: dict[str, Any], flags: list[str]) -> None:
    """Continue the tool call a piece belongs to: by index; a new id under a used index starts another call."""
    index, call_id = piece.get("index"), piece.get("id")
    known: dict[str, Any] | None = None
    for call in calls:
        if call_id and call.get("id") == call_id:
            known = call
            break
        if index is not None and call.get("index") == index:
            known = call
    if known is None and index is None and not call_id and calls:
        known = calls[-1]
    if known is not None and call_id and known.get("id") not in (None, "", call_id):
        flags.append("call_index_reused")
        known = None
    if known is None:
        known = {}
        calls.append(known)
    _merge(known, piece)


def _plain(value: Any) -> Any:
    """Texts joined, halves of surrogate pairs that two pieces carried put together, indexes of tool calls dropped."""
    if isinstance(value, _Text):
        text = "".join(value)
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return text
    if isinstance(value, dict):
        plain = {key: _plain(item) for key, item in value.items()}
        for call in plain.get("tool_calls") or ():
            call.pop("index", None)
        return plain
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _words(fault: object) -> str:
    """The message of an error event."""
    if isinstance(fault, dict):
        return str(fault.get("message") or fault)
    return str(fault)
