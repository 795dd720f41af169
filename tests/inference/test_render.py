"""Dialects, outwards: what a stream assembles to is the plain answer, and each event sequence keeps its protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.inference.assembly import assemble
from reef.inference.dialects import DIALECTS
from reef.inference.dialects.answer import Head, Outcome, Piece, TokenLogprob, Usage
from reef.inference.dialects.prompt import Prompt, Setting, Tool
from reef.inference.protocol import check_stream

TOOLS = (Tool("f", "f", "", {}), Tool("free", "box__free", "", {}, namespace="box", custom=True))
PROMPT = Prompt(tools=TOOLS, include_usage=True, settings={"logprobs": Setting(1, "logprobs")})
HEAD = Head("c1", "tiny", 1700000000, PROMPT, 7)
TEXTS = st.text(alphabet='ab é海😀\n"\\<', min_size=1, max_size=4)
ARGUMENTS = st.sampled_from(["", "{}", '{"n": 42}', '{"s": "海"}'])
NAMES = st.sampled_from(["f", "g", "box__free"])


@st.composite
def call(draw: st.DrawFn) -> list[Piece]:
    """A tool call, whole or in bits."""
    text = draw(ARGUMENTS)
    cut = draw(st.integers(0, len(text)))
    begun = Piece("call", text[:cut], draw(NAMES))
    return [begun, Piece("arguments", text[cut:])] if cut < len(text) else [begun]


PIECES = st.lists(
    st.one_of(
        st.builds(lambda text: [Piece("text", text)], TEXTS),
        st.builds(lambda text: [Piece("refusal", text)], TEXTS),
        st.builds(lambda text: [Piece("reasoning", text)], TEXTS),
        st.builds(lambda text: [Piece("reasoning", text), Piece("reasoning", "", seal="reef.x.s")], TEXTS),
        st.just([Piece("reasoning", "", seal="reef.x.sealed")]),
        call(),
    ),
    max_size=8,
).map(lambda parts: [piece for part in parts for piece in part])
OUTCOMES = st.sampled_from(
    [
        Outcome("stop", Usage(7, 5)),
        Outcome("length", Usage(7, 5)),
        Outcome("stop", Usage(7, 5, 2, 1), "END"),
        Outcome("stop", Usage(7)),
        Outcome("filter", Usage(7, 9, reasoning_tokens=3)),
        Outcome("calls", Usage(7, 1)),
        Outcome("pause"),
        Outcome(None),
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
    check_stream(route, raw)
    read = assemble(route, "text/event-stream", raw)
    plain = DIALECTS[route].plain(HEAD, pieces, outcome, logprobs)
    assert read.complete and read.error is None and not read.flags and read.body is not None
    if not logprobs and route == "chat":  # an empty list in the object, null in every chunk
        plain["choices"][0]["logprobs"] = None
    assert same(route, read.body) == same(route, plain)
    whole = assemble(route, "application/json", json.dumps(plain).encode())
    assert (whole.finish_reason, whole.usage, whole.empty) == (read.finish_reason, read.usage, read.empty)


@pytest.mark.parametrize(
    ("outcome", "called", "reasons"),
    [
        (Outcome("stop"), False, ("stop", "end_turn", "completed")),
        (Outcome("stop"), True, ("tool_calls", "tool_use", "completed")),
        (Outcome("calls"), True, ("tool_calls", "tool_use", "completed")),
        (Outcome("length"), False, ("length", "max_tokens", "max_output_tokens")),
        (Outcome("length"), True, ("length", "max_tokens", "max_output_tokens")),
        (Outcome("stop", None, "END"), False, ("stop", "stop_sequence", "completed")),
        (Outcome("filter"), False, ("content_filter", "refusal", "content_filter")),
        (Outcome("pause"), False, (None, "pause_turn", "incomplete")),
        (Outcome(None), True, (None, None, "incomplete")),
    ],
)
def test_finish_reasons_are_each_protocols_own(
    outcome: Outcome, called: bool, reasons: tuple[str | None, str | None, str]
) -> None:
    pieces = [Piece("text", "a"), *([Piece("call", "{}", "f")] if called else [])]
    found = []
    for route in ("chat", "messages", "responses"):
        plain = DIALECTS[route].plain(HEAD, pieces, outcome, [])
        found.append(assemble(route, "application/json", json.dumps(plain).encode()).finish_reason)
    assert tuple(found) == reasons


def test_usage_chunk_only_when_asked_for() -> None:
    silent = Head("c1", "tiny", 0, Prompt(), 7)
    raw = streamed("chat", silent, [Piece("text", "a")], Outcome("stop", Usage(7, 1)), [])
    assert b'"usage"' not in raw and b'"choices":[]' not in raw
    assert b'"choices":[]' in streamed("chat", HEAD, [Piece("text", "a")], Outcome("stop", Usage(7, 1)), [])


def test_thinking_goes_only_to_who_asked_and_is_not_signed() -> None:
    quiet = Head("c1", "tiny", 0, Prompt(show_reasoning=False), 7)
    pieces = [Piece("reasoning", "hm"), Piece("text", "a")]
    assert b"thinking" not in streamed("messages", quiet, pieces, Outcome("stop", Usage(7, 1)), [])
    plain = DIALECTS["messages"].plain(HEAD, pieces, Outcome("stop", Usage(7, 1)), [])
    assert plain["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert DIALECTS["messages"].plain(quiet, pieces, Outcome("stop", Usage(7, 1)), [])["content"] == [
        {"type": "text", "text": "a"}
    ]


def test_log_probs_that_are_not_finite_show_a_floor() -> None:
    plain = DIALECTS["chat"].plain(
        HEAD,
        [Piece("text", "a")],
        Outcome("stop", Usage(7, 1)),
        [TokenLogprob("a", (97,), float("-inf")), TokenLogprob("b", (98,), float("nan"))],
    )
    assert [one["logprob"] for one in plain["choices"][0]["logprobs"]["content"]] == [-9999.0, -9999.0]
