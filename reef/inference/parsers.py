"""Cuts generated text into text, reasoning and tool calls, however the text arrives. State machines by name.

Knows nothing of dialects' wire forms or tokens. Called by the engine backend, once per answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from reef.errors import BadConfig
from reef.inference.dialects.answer import Piece
from reef.inference.jsonspan import value_span


class Parser(Protocol):
    """Takes text in any cut and gives pieces; nothing of an unfinished tag ever comes out as text."""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are sure after ``text``."""

    def close(self) -> list[Piece]:
        """What was held back, now that the text has ended."""


class _Plain:
    """Everything is text."""

    def feed(self, text: str) -> list[Piece]:
        return [Piece("text", text)] if text else []

    def close(self) -> list[Piece]:
        return []


class _Hermes:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``; a call that does not parse stays text, tags and all."""

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._after_call = False
        self._searched = 0

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while True:
            at = self._held.find(self._CLOSE if self._inside else self._OPEN, self._searched)
            if at < 0:
                break
            if self._inside:
                self._end_of_call(at, pieces)
            else:
                self._say(self._held[:at].rstrip(), pieces)
                self._held, self._inside, self._searched = self._held[at + len(self._OPEN) :], True, 0
        if self._inside:
            self._searched = max(self._searched, len(self._held) - len(self._CLOSE) + 1, 0)
        else:
            sure = self._held[: len(self._held) - overlap(self._held, self._OPEN)].rstrip()
            self._say(sure, pieces)
            self._held = self._held[len(sure) :]
        return pieces

    def close(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._inside:
            call = read_call(held[: len(held) - overlap(held, self._CLOSE)])
            return [call if call is not None else Piece("text", self._OPEN + held)]
        if not held or (self._after_call and not held.strip()):
            return []
        return [Piece("text", held)]

    def _end_of_call(self, at: int, pieces: list[Piece]) -> None:
        inner = self._held[:at]
        if _ends_in_string(inner):  # the tag stands inside an argument
            self._searched = at + 1
            return
        call = read_call(inner)
        pieces.append(call if call is not None else Piece("text", self._OPEN + inner + self._CLOSE))
        self._held, self._inside, self._searched = self._held[at + len(self._CLOSE) :], False, 0
        self._after_call = call is not None

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(Piece("text", text))
            self._after_call = False


class _Json:
    """The whole answer is a call (or a list of calls) written as bare JSON; anything else is text."""

    def __init__(self) -> None:
        self._held = ""
        self._is_text = False

    def feed(self, text: str) -> list[Piece]:
        if self._is_text:
            return [Piece("text", text)] if text else []
        self._held += text
        start = self._held.lstrip()
        if start and start[0] not in "{[":
            self._is_text = True
            return self.close()
        return []

    def close(self) -> list[Piece]:
        held, self._held = self._held, ""
        calls = _read_calls(held)
        if calls:
            return calls
        return [Piece("text", held)] if held else []


class _Think:
    """``<think>...</think>`` before the answer is reasoning; what follows goes to the next parser."""

    _OPEN, _CLOSE = "<think>", "</think>"

    def __init__(self, rest: Parser, inside: bool) -> None:
        self._rest = rest
        self._held = ""
        self._state = "inside" if inside else "start"
        self._spoke = False

    def feed(self, text: str) -> list[Piece]:
        if self._state == "rest":
            return self._rest.feed(text)
        self._held += text
        pieces: list[Piece] = []
        if self._state == "start":
            ahead = self._held.lstrip()
            if ahead.startswith(self._OPEN):
                self._held, self._state = ahead[len(self._OPEN) :], "inside"
            elif not self._OPEN.startswith(ahead):
                return self._hand_over(self._held)
        if self._state == "inside":
            self._think(pieces)
        if self._state == "after":
            ahead = self._held.lstrip()
            if ahead:
                pieces += self._hand_over(ahead)
        return pieces

    def close(self) -> list[Piece]:
        if self._state == "inside":
            return [Piece("reasoning", self._held.rstrip())] if self._held.strip() else []
        said = self._hand_over(self._held) if self._state == "start" else []
        return [*said, *self._rest.close()]

    def _think(self, pieces: list[Piece]) -> None:
        if not self._spoke:
            self._held = self._held.lstrip()
        at = self._held.find(self._CLOSE)
        end = at if at >= 0 else len(self._held) - overlap(self._held, self._CLOSE)
        sure = self._held[:end].rstrip()
        if sure:
            pieces.append(Piece("reasoning", sure))
            self._spoke = True
        if at >= 0:
            self._held, self._state = self._held[at + len(self._CLOSE) :], "after"
        else:
            self._held = self._held[len(sure) :]

    def _hand_over(self, text: str) -> list[Piece]:
        self._held, self._state = "", "rest"
        return self._rest.feed(text)


TOOL_PARSERS: Mapping[str, Callable[[], Parser]] = {"hermes": _Hermes, "json": _Json, "none": _Plain}
REASONING_PARSERS = ("think", "none")


def output_parser(tool_parser: str, reasoning_parser: str, *, tools_offered: bool, prompt_text: str) -> Parser:
    """The parser of one answer; a prompt that ends in ``<think>`` starts it inside the reasoning."""
    rest = TOOL_PARSERS[tool_parser if tools_offered else "none"]()
    if reasoning_parser == "none":
        return rest
    return _Think(rest, prompt_text.rstrip().endswith("<think>"))


def check_parsers(tool_parser: str, reasoning_parser: str) -> None:
    """BadConfig for a parser name nobody knows."""
    for key, name, known in (
        ("tool_parser", tool_parser, tuple(TOOL_PARSERS)),
        ("reasoning_parser", reasoning_parser, REASONING_PARSERS),
    ):
        if name not in known:
            raise BadConfig(f"{key}: no parser {name!r}", hint=f"one of {', '.join(known)}", field=key)


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``tag``."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def read_call(text: str) -> Piece | None:
    """The call a JSON object describes, its arguments verbatim; None when it is not one."""
    text = text.strip()
    try:
        found = json.loads(text, parse_constant=_no_constant)
        if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
            return None
        key = "arguments" if "arguments" in found else "parameters"
        span = value_span(text, key)
        arguments: Any = found.get(key)
        if isinstance(arguments, str):
            return Piece("call", arguments, found["name"]) if isinstance(json.loads(arguments), dict) else None
    except ValueError:
        return None
    if span is None or arguments is None:
        return Piece("call", "{}", found["name"])
    return Piece("call", text[span[0] : span[1]], found["name"]) if isinstance(arguments, dict) else None


def _read_calls(text: str) -> list[Piece]:
    """All calls of a text that is nothing but calls: one object, several in a row, or a list; else none."""
    decoder = json.JSONDecoder()
    calls: list[Piece] = []
    rest = text.strip().removeprefix("[") if text.lstrip().startswith("[") else text
    rest = rest.strip()
    while rest.startswith("{"):
        try:
            _, end = decoder.raw_decode(rest)
        except ValueError:
            return []
        call = read_call(rest[:end])
        if call is None:
            return []
        calls.append(call)
        rest = rest[end:].lstrip(" \t\r\n,;")
    return calls if rest in ("", "]") else []


def _ends_in_string(text: str) -> bool:
    """Whether JSON ``text`` breaks off inside a string."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    return False


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
