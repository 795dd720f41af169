"""Dialects, outwards: what a stream assembles to is the plain answer, and each event sequence keeps its protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.inference.assembly import assemble
from reef.inference.dialects import DIALECTS
from reef.inference.dialects.values import Head, Outcome, Piece, Prompt, TokenLogprob
from reef.inference.sse import read_events

PROMPT = Prompt((), tools=({"type": "function"},), include_usage=True, top_logprobs=1)
HEAD = Head("c1", "tiny", 1700000000, 7, PROMPT)
TEXTS = st.text(alphabet='ab é海😀\n"\\<', min_size=1, max_size=4)
PIECES = st.lists(
    st.one_of(
        st.builds(Piece, st.just("text"), TEXTS),
        st.builds(Piece, st.just("reasoning"), TEXTS),
        st.builds(
            Piece, st.just("call"), st.sampled_from(["{}", '{"n": 42}', '{"s": "海"}']), st.sampled_from(["f", "g"])
        ),
    ),
    max_size=8,
)
OUTCOMES = st.sampled_from(
    [
        Outcome("stop", 5),
        Outcome("length", 5),
        Outcome("stop", 5, 2, "END"),
        Outcome("stop", 0),
        Outcome("stop", 9, 0, None, 3),
    ]
)
LOGPROB = TokenLogprob("é", (195, 169), -0.5, (TokenLogprob("e", (101,), -1.0),))


def streamed(route: str, head: Head, pieces: list[Piece], outcome: Outcome, logprobs: list[TokenLogprob]) -> bytes:
    encoder = DIALECTS[route].stream(head)
    parts = [encoder.begin()]
    for index, piece in enumerate(pieces):
        parts.append(encoder.add([piece], logprobs[index : index + 1]))
    parts.append(encoder.add([], logprobs[len(pieces) :]))
    return b"".join([*parts, encoder.end(outcome)])


def same(route: str, body: dict[str, Any]) -> Any:
    """A body without what only differs by form: in a chat stream the role comes before it is known if text follows."""
    if route == "chat":
        message = body["choices"][0]["message"]
        message["content"] = message["content"] or None
    return json.loads(json.dumps(body))


@pytest.mark.parametrize("route", list(DIALECTS))
@given(pieces=PIECES, outcome=OUTCOMES, logprobs=st.lists(st.just(LOGPROB), max_size=10))
def test_a_stream_assembles_to_the_plain_answer(
    route: str, pieces: list[Piece], outcome: Outcome, logprobs: list[TokenLogprob]
) -> None:
    raw = streamed(route, HEAD, pieces, outcome, logprobs)
    read = assemble(route, "text/event-stream", raw)
    plain = DIALECTS[route].plain(HEAD, pieces, outcome, logprobs)
    assert read.complete and read.error is None and not read.flags and read.body is not None
    if not logprobs and route == "chat":  # an empty list in the object, null in every chunk
        plain["choices"][0]["logprobs"] = None
    assert same(route, read.body) == same(route, plain)
    whole = assemble(route, "application/json", json.dumps(plain).encode())
    assert (whole.finish_reason, whole.usage, whole.empty) == (read.finish_reason, read.usage, read.empty)


@given(pieces=PIECES, outcome=OUTCOMES)
def test_messages_events_open_fill_and_close_blocks_in_order(pieces: list[Piece], outcome: Outcome) -> None:
    state, index, deltas = (
        "new",
        -1,
        {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"},
    )
    kind = ""
    for name, data in read_events(streamed("messages", HEAD, pieces, outcome, [])):
        event = json.loads(data)
        assert name == event["type"]
        if name == "message_start":
            assert state == "new"
            state = "between"
        elif name == "content_block_start":
            assert state == "between" and event["index"] == index + 1
            state, index, kind = "open", event["index"], event["content_block"]["type"]
        elif name == "content_block_delta":
            assert state == "open" and event["index"] == index and event["delta"]["type"] == deltas[kind]
        elif name == "content_block_stop":
            assert state == "open" and event["index"] == index
            state = "between"
        elif name == "message_delta":
            assert state == "between" and event["delta"]["stop_reason"]
            state = "told"
        else:
            assert (name, state) == ("message_stop", "told")
            state = "ended"
    assert state == "ended"


@given(pieces=PIECES, outcome=OUTCOMES)
def test_responses_events_are_numbered_and_items_are_done_before_the_next(
    pieces: list[Piece], outcome: Outcome
) -> None:
    open_item: int | None = None
    items = 0
    for number, (name, data) in enumerate(read_events(streamed("responses", HEAD, pieces, outcome, []))):
        event = json.loads(data)
        assert name == event["type"] and event["sequence_number"] == number
        if name == "response.output_item.added":
            assert open_item is None and event["output_index"] == items
            open_item = event["output_index"]
        elif name == "response.output_item.done":
            assert event["output_index"] == open_item
            open_item, items = None, items + 1
        elif "output_index" in event:
            assert event["output_index"] == open_item
    assert open_item is None and name == ("response.incomplete" if outcome.finish == "length" else "response.completed")
    assert len(event["response"]["output"]) == items


@pytest.mark.parametrize(
    ("outcome", "called", "reasons"),
    [
        (Outcome("stop", 1), False, ("stop", "end_turn", "completed")),
        (Outcome("stop", 1), True, ("tool_calls", "tool_use", "completed")),
        (Outcome("length", 1), False, ("length", "max_tokens", "max_output_tokens")),
        (Outcome("length", 1), True, ("length", "max_tokens", "max_output_tokens")),
        (Outcome("stop", 1, 0, "END"), False, ("stop", "stop_sequence", "completed")),
    ],
)
def test_finish_reasons_are_each_protocols_own(outcome: Outcome, called: bool, reasons: tuple[str, str, str]) -> None:
    pieces = [Piece("text", "a"), *([Piece("call", "{}", "f")] if called else [])]
    found = []
    for route in ("chat", "messages", "responses"):
        plain = DIALECTS[route].plain(HEAD, pieces, outcome, [])
        found.append(assemble(route, "application/json", json.dumps(plain).encode()).finish_reason)
    assert tuple(found) == reasons


def test_usage_chunk_only_when_asked_for() -> None:
    silent = Head("c1", "tiny", 0, 7, Prompt(()))
    raw = streamed("chat", silent, [Piece("text", "a")], Outcome("stop", 1), [])
    assert b'"usage"' not in raw and b'"choices":[]' not in raw
    assert b'"choices":[]' in streamed("chat", HEAD, [Piece("text", "a")], Outcome("stop", 1), [])


def test_thinking_goes_only_to_who_asked_and_is_not_signed() -> None:
    quiet = Head("c1", "tiny", 0, 7, Prompt((), show_reasoning=False))
    pieces = [Piece("reasoning", "hm"), Piece("text", "a")]
    assert b"thinking" not in streamed("messages", quiet, pieces, Outcome("stop", 1), [])
    plain = DIALECTS["messages"].plain(HEAD, pieces, Outcome("stop", 1), [])
    assert plain["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert DIALECTS["messages"].plain(quiet, pieces, Outcome("stop", 1), [])["content"] == [
        {"type": "text", "text": "a"}
    ]


def test_log_probs_that_are_not_finite_show_a_floor() -> None:
    plain = DIALECTS["chat"].plain(
        HEAD,
        [Piece("text", "a")],
        Outcome("stop", 1),
        [TokenLogprob("a", (97,), float("-inf")), TokenLogprob("b", (98,), float("nan"))],
    )
    assert [one["logprob"] for one in plain["choices"][0]["logprobs"]["content"]] == [-9999.0, -9999.0]
