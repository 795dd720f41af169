"""Where the value of one key stands in a JSON text, so that it can be taken or replaced without touching the rest.

Knows nothing of dialects. Called by passthrough (model name) and by the tool-call parsers (verbatim arguments).
"""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def value_span(text: str, key: str) -> tuple[int, int] | None:
    """Start and end of the value of the top-level ``key``; None when the object has no such key.

    Raises ValueError when ``text`` is not a JSON object (up to the key looked for).
    """
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("a key without a value")
        start = _skip(text, at + 1)
        _, end = _DECODER.raw_decode(text, start)
        if name == key:
            return start, end
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
    if text[at : at + 1] != "}":
        raise ValueError("the object does not end")
    return None


def replace_value(raw: bytes, key: str, value: str) -> bytes:
    """``raw`` (a JSON object) with ``key`` set to ``value``; every other byte stays."""
    text = raw.decode("utf-8")
    span = value_span(text, key)
    if span is not None:
        return (text[: span[0]] + json.dumps(value) + text[span[1] :]).encode("utf-8")
    start = text.index("{") + 1
    comma = "" if text[_skip(text, start)] == "}" else ", "
    return (text[:start] + json.dumps(key) + ": " + json.dumps(value) + comma + text[start:]).encode("utf-8")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match is not None else at
