"""Server-sent events as bytes: split a finished stream, cut a running one, frame an event.

Knows nothing of any wire dialect. Called by assembly, by the dialects and by the engine client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

DONE = b"data: [DONE]\n\n"
"""The end mark of the chat route and of the engine's own streams."""


class Event(NamedTuple):
    """One event: ``name`` is empty when the stream gave none, ``data`` its joined data lines."""

    name: str
    data: bytes


def blocks_of(raw: bytes) -> list[bytes]:
    """What stands between the blank lines of a whole stream, with one kind of line end."""
    text = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text.split(b"\n\n")


def read_events(raw: bytes) -> Iterator[Event]:
    """The events of a whole stream; comments are dropped, a last event without its blank line is still given."""
    for block in blocks_of(raw):
        if block.startswith(b"data: ") and b"\n" not in block:
            yield Event("", block[6:])
            continue
        name, data = "", []
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
        if data:
            yield Event(name, b"\n".join(data))


class EventCutter:
    """Cuts a running stream into events, whatever its line ends; the bytes of an unfinished event wait for the next slice."""

    def __init__(self) -> None:
        self._rest = bytearray()  # with "\n" as its line ends
        self._half = b""  # a "\r" at the end of a slice: perhaps the first half of a line end

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes. Looks at new bytes only, however long the event is that they belong to."""
        text, self._half = self._half + chunk, b""
        if b"\r" in text:
            if text.endswith(b"\r") and not text.endswith(b"\r\r"):
                text, self._half = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        before = max(0, len(self._rest) - 1)
        self._rest += text
        end = self._rest.rfind(b"\n\n", before)
        if end < 0:
            return []
        whole = bytes(self._rest[:end])
        del self._rest[: end + 2]
        return list(read_events(whole))

    def pending(self) -> list[Event]:
        """The event whose lines have all come, and only its blank line has not; it is still given when that comes."""
        ended = bool(self._half) or self._rest.endswith((b"\n", b"[DONE]"))
        return list(read_events(bytes(self._rest))) if ended else []

    def close(self) -> list[Event]:
        """The last event of a stream that ended without a blank line."""
        rest, self._rest, self._half = bytes(self._rest), bytearray(), b""
        return list(read_events(rest))


def load(data: bytes) -> Any:
    """The JSON value of an event; half surrogate pairs and NaN too, which the fast parser refuses. ValueError when none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def dump(value: Any) -> bytes:
    """Compact JSON bytes; half surrogate pairs stay escapes, NaN and infinities raise ValueError."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def frame(value: Any, name: str = "") -> bytes:
    """One event with ``value`` as its JSON data."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump(value) + b"\n\n"
