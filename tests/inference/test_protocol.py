"""The protocol checkers let through what a provider sends and stop every kind of broken stream."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from reef.inference.protocol import ProtocolError, check_stream
from reef.inference.sse import frame, read_events
from tests.clients import answers

STREAMS: dict[str, Callable[..., Any]] = {
    "chat": answers.chat_stream,
    "messages": answers.messages_stream,
    "responses": answers.responses_stream,
}
Values = list[dict[str, Any]]


def values(route: str) -> Values:
    """The events of a provider's stream with a tool call, as far as the checkers demand it."""
    raw = b"".join(STREAMS[route](tools=True).chunks)
    found = [json.loads(event.data) for event in read_events(raw) if event.data != b"[DONE]"]
    if route == "chat":
        for value in found:
            for choice in value["choices"]:
                choice.setdefault("logprobs", None)
        found[1]["choices"][0]["delta"].pop("role", None)
    if route == "responses":
        found.insert(1, {**found[0], "type": "response.in_progress"})
        found = [{**value, "sequence_number": number} for number, value in enumerate(found)]
    return found


def stream(route: str, given: Values, done: bool = True) -> bytes:
    raw = b"".join(frame(value, "" if route == "chat" else value["type"]) for value in given)
    return raw + (b"data: [DONE]\n\n" if route == "chat" and done else b"")


def numbered(given: Values) -> Values:
    return [{**value, "sequence_number": number} for number, value in enumerate(given)]


@pytest.mark.parametrize("route", list(STREAMS))
def test_a_providers_stream_is_let_through(route: str) -> None:
    check_stream(route, stream(route, values(route)))


@pytest.mark.parametrize("route", list(STREAMS))
def test_no_event_may_be_missing_doubled_or_out_of_its_place(route: str) -> None:
    """Any single event left out, sent twice, or swapped with the next breaks the protocol, but for deltas of words."""
    whole = values(route)
    again = numbered if route == "responses" else list
    broken = 0
    variants = [whole[:at] + whole[at + 1 :] for at in range(len(whole))]
    variants += [[*whole[: at + 1], *whole[at:]] for at in range(len(whole))]
    variants += [[*whole[:at], whole[at + 1], whole[at], *whole[at + 2 :]] for at in range(len(whole) - 1)]
    for variant in variants:
        try:
            check_stream(route, stream(route, again(variant)))
        except ProtocolError:
            broken += 1
    words = {"chat": 1, "messages": 5, "responses": 0}[route]
    assert broken >= len(variants) - words, "only words and the usage may be missed, doubled or swapped unseen"


def test_the_end_may_only_be_missing_where_a_stream_may_break_off() -> None:
    for route in STREAMS:
        given = values(route)[:-1] if route != "chat" else values(route)
        with pytest.raises(ProtocolError, match="no end"):
            check_stream(route, stream(route, given, done=False))
        check_stream(route, stream(route, given, done=False), whole=False)


@pytest.mark.parametrize(
    ("route", "at", "path", "value"),
    [
        ("chat", 3, ("choices", 0, "delta", "tool_calls", 0, "function", "arguments"), "]"),
        ("chat", 1, ("choices", 0, "delta", "tool_calls"), []),
        ("chat", 1, ("choices", 0, "delta", "tool_calls", 0, "id"), ""),
        ("chat", 1, ("choices", 0, "delta", "tool_calls", 0, "index"), 1),
        ("chat", 2, ("id",), "another"),
        ("messages", 0, ("message", "content"), [1]),
        ("messages", 1, ("index",), 1),
        ("messages", 2, ("delta", "type"), "thinking_delta"),
        ("messages", 5, ("index",), 0),
        ("messages", 5, ("content_block", "id"), ""),
        ("messages", 6, ("delta", "partial_json"), "]"),
        ("responses", 2, ("output_index",), 1),
        ("responses", 3, ("item_id",), "another"),
        ("responses", 3, ("delta",), "x"),
        ("responses", 4, ("sequence_number",), 9),
        ("responses", 6, ("item", "arguments"), "{}"),
        ("responses", 7, ("response", "output"), []),
        ("responses", 7, ("response", "id"), "another"),
    ],
)
def test_a_wrong_value_is_seen(route: str, at: int, path: tuple[Any, ...], value: Any) -> None:
    given = values(route)
    held: Any = given[at]
    for key in path[:-1]:
        held = held[key]
    held[path[-1]] = value
    with pytest.raises(ProtocolError):
        check_stream(route, stream(route, given))


def test_nothing_may_follow_an_error() -> None:
    faults: dict[str, dict[str, Any]] = {
        "chat": {"error": {"message": "down"}},
        "messages": {"type": "error", "error": {"type": "api_error", "message": "down"}},
        "responses": {"type": "error", "message": "down", "code": "x"},
    }
    for route, after in itertools.product(STREAMS, (False, True)):
        raw = stream(route, [*values(route)[:3], faults[route]], done=False)
        if after:
            with pytest.raises(ProtocolError, match="after the end"):
                check_stream(route, raw + stream(route, values(route)[-1:]), whole=False)
        else:
            check_stream(route, raw, whole=False)
