"""Dialects, answers inwards: the pieces of a provider's answer, however it was cut and whichever event a text came in."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import UpstreamError
from reef.inference.dialects import DIALECTS
from reef.inference.dialects.answer import AnswerReader, Head, Outcome, Piece, Usage, gather
from reef.inference.dialects.prompt import Prompt, Setting
from reef.inference.faults import ModelFault
from reef.inference.sse import EventCutter, dump
from tests.inference.test_render import OUTCOMES, PIECES

HEAD = Head("c1", "far", 1700000000, Prompt(include_usage=True, settings={"logprobs": Setting(1, "logprobs")}), 7)


def read(route: str, raw: bytes, cuts: list[int] | None = None) -> tuple[list[Piece], AnswerReader]:
    """All pieces of a stream whose bytes come in the given slices."""
    reader, cutter = DIALECTS[route].reader(), EventCutter()
    edges = [0, *sorted(cut for cut in cuts or () if cut < len(raw)), len(raw)]
    events = [event for start, end in itertools.pairwise(edges) for event in cutter.feed(raw[start:end])]
    pieces = [piece for event in [*events, *cutter.close()] for piece in reader.read(event)]
    return [*pieces, *reader.close()], reader


def events(*values: Any, named: bool = True, done: bool = False) -> bytes:
    """A stream of those values; ``named`` ones have their type as name."""
    frames = [(f"event: {v['type']}\n" if named else "").encode() + b"data: " + json.dumps(v).encode() for v in values]
    return b"".join(frame + b"\n\n" for frame in frames) + (b"data: [DONE]\n\n" if done else b"")


def chat(*deltas: dict[str, Any], finish: str | None = "stop", done: bool = True, **extra: Any) -> bytes:
    chunks: list[Any] = [{"model": "far", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    if finish:
        chunks.append({"model": "far", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], **extra})
    return events(*chunks, named=False, done=done)


Told = list[tuple[str, str, str, bool]]


def told(pieces: list[Piece]) -> Told:
    """Kind, text (arguments as parsed), name and whether it is sealed."""
    return [
        (p.kind, json.dumps(json.loads(p.text or "{}")) if p.kind == "call" else p.text, p.name, bool(p.seal))
        for p in gather(pieces)
    ]


def carried(route: str, pieces: list[Piece]) -> Told:
    """What of an answer the dialect can carry: chat has no order between kinds and reads no seals, messages no refusals."""
    if route == "messages":
        return told([replace(piece, kind="text") if piece.kind == "refusal" else piece for piece in gather(pieces)])
    if route == "responses":
        return told(pieces)
    parts = told([replace(piece, seal="") for piece in gather(pieces)])
    joined = [
        (kind, "".join(p[1] for p in parts if p[0] == kind), "", False) for kind in ("reasoning", "text", "refusal")
    ]
    return [part for part in joined if part[1]] + [part for part in parts if part[0] == "call"]


@pytest.mark.parametrize("route", list(DIALECTS))
@given(pieces=PIECES, outcome=OUTCOMES, cuts=st.lists(st.integers(0, 6000), max_size=40), crlf=st.booleans())
def test_what_is_written_is_read_in_any_cut(
    route: str, pieces: list[Piece], outcome: Outcome, cuts: list[int], crlf: bool
) -> None:
    encoder = DIALECTS[route].stream(HEAD)
    raw = encoder.begin() + b"".join(encoder.add([piece]) for piece in pieces) + encoder.end(outcome)
    raw = raw.replace(b"\n", b"\r\n") if crlf else raw
    whole, first = read(route, raw)
    cut, second = read(route, raw, cuts)
    assert cut == whole and first.outcome() == second.outcome() and first.model == "far" and first.ended
    plain = DIALECTS[route].reader()
    assert told(plain.whole(DIALECTS[route].plain(HEAD, pieces, outcome, ()))) == carried(route, pieces)
    assert carried(route, whole) == carried(route, pieces)
    assert plain.ended and plain.outcome() == first.outcome()


def call(
    index: int | None, arguments: Any = None, name: str | None = None, call_id: str | None = None
) -> dict[str, Any]:
    """One tool call's delta; what is None is not sent."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {"index": index, "id": call_id, "function": function}
    return {key: value for key, value in given.items() if value not in (None, {})}


def calls(*given: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(given)}


TWO = [("call", '{"k": 1}', "look", False), ("call", '{"k": 2}', "look", False)]


@pytest.mark.parametrize(
    "deltas",
    [
        [calls(call(0, '{"k": 1}', "look", "a"), call(1, '{"k": 2}', "look", "b"))],
        [
            calls(call(0, "", "look", "a")),
            calls(call(0, '{"k"'), call(1, '{"k": 2}', "look", "b")),
            calls(call(0, ": 1}")),
        ],
        [
            calls(call(0, None, "look", "a")),
            calls(call(1, None, "look", "b")),
            calls(call(1, '{"k": 2}')),
            calls(call(0, '{"k": 1}')),
        ],
        [calls(call(0, '{"k": 1}', None, "a")), calls(call(0, None, "look")), calls(call(1, '{"k": 2}', "look", "b"))],
        [calls(call(0, '{"k": 1}', "look", "a")), calls(call(0, '{"k": 2}', "look", "b"))],
        [calls(call(None, '{"k": 1}', "look", "a")), calls(call(None, '{"k": 2}', "look", "b"))],
        [calls(call(None, '{"k"', "look", "a")), calls(call(None, ": 1}")), calls(call(None, '{"k": 2}', "look", "b"))],
        [calls(call(0, {"k": 1}, "look", "a"), call(1, {"k": 2}, "look", "b"))],
    ],
    ids=[
        "in one delta",
        "interleaved",
        "last first",
        "name late",
        "index reused",
        "no index",
        "no index in bits",
        "object",
    ],
)
def test_parallel_calls_come_out_one_after_the_other(deltas: list[dict[str, Any]]) -> None:
    pieces, reader = read("chat", chat(*deltas, finish="tool_calls"))
    assert told(pieces) == TWO and [piece.call_id for piece in gather(pieces)] == ["a", "b"]
    assert reader.outcome().finish == "calls"


def test_calls_of_one_id_are_two_calls_and_the_second_gets_its_own() -> None:
    pieces, _ = read("chat", chat(calls(call(0, '{"k": 1}', "look", "a"), call(1, '{"k": 2}', "look", "a"))))
    assert told(pieces) == TWO and [piece.call_id for piece in gather(pieces)] == ["a", ""]
    late = [calls(call(0, None, None, None) | {"index": 0}), calls(call(0, '{"k": 1}', "look", "a"))]
    assert gather(read("chat", chat(*late))[0]) == [Piece("call", '{"k": 1}', "look", "a")]


def test_calls_letter_by_letter_are_the_same_calls() -> None:
    first, second = ('{"k": 1}', '{"k": 2}')
    bits = [calls(call(0, "", "look", "a")), *(calls(call(0, letter)) for letter in first)]
    bits += [calls(call(1, "", "look", "b")), *(calls(call(1, letter)) for letter in second)]
    assert told(read("chat", chat(*bits))[0]) == TWO
    passed = DIALECTS["chat"].reader()
    cutter = EventCutter()
    seen = [passed.read(event) for event in cutter.feed(chat(*bits))]
    assert [len(pieces) for pieces in seen[: len(first)]] == [1] * len(first), "they pass as they come"


def test_an_empty_list_is_no_call_and_arguments_are_verbatim() -> None:
    deltas = [{"content": "ok", "tool_calls": []}, {"content": "!", "tool_calls": None}]
    assert told(read("chat", chat(*deltas))[0]) == [("text", "ok!", "", False)]
    for arguments in ("{}", "", '{"n": 42, "f": 1.0, "s": "a\\u00e9"}', '{"n": 1}{"n": 1}', "not json"):
        pieces, _ = read("chat", chat(calls(call(0, arguments, "look", "a"))))
        assert gather(pieces) == [Piece("call", arguments, "look", "a")]


def test_a_call_that_goes_on_after_it_was_finished_is_an_error() -> None:
    deltas = [
        calls(call(0, '{"k": 1}', "look", "a")),
        calls(call(1, '{"k": 2}', "look", "b")),
        calls(call(0, '{"k": 1}')),
    ]
    with pytest.raises(UpstreamError, match="finished"):
        read("chat", chat(*deltas))


def test_reasoning_under_its_several_names_and_content_in_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "m"}]}, {"type": "text", "text": "o"}]
    deltas = [{"role": "assistant", "reasoning_content": "h"}, {"reasoning": "m"}, {"content": parts}, {"content": "k"}]
    assert [(kind, text) for kind, text, _, _ in told(read("chat", chat(*deltas))[0])] == [
        ("reasoning", "hmm"),
        ("text", "ok"),
    ]
    assert told(read("chat", chat({"refusal": "no"}))[0]) == [("refusal", "no", "", False)]


def test_halves_of_a_surrogate_pair_stay_halves() -> None:
    pieces, _ = read("chat", chat({"content": "\ud83d"}, {"content": "\ude00"}))
    assert json.loads(dump("".join(piece.text for piece in pieces))) == "😀"


@pytest.mark.parametrize(
    ("raw", "finish", "ended"),
    [
        (chat({"content": "a"}), "stop", True),
        (chat({"content": "a"}, finish="length", done=False), "length", True),
        (chat({"content": "a"}, finish="content_filter"), "filter", True),
        (chat({"content": "a"}, finish="eos"), None, True),
        (chat({"content": "a"}, finish=None), None, True),
        (chat({"content": "a"}, finish=None, done=False), None, False),
        (b"", None, False),
        (b": ping\n\n", None, False),
    ],
)
def test_an_end_is_what_the_protocol_says_and_an_unknown_reason_is_none(
    raw: bytes, finish: str | None, ended: bool
) -> None:
    _, reader = read("chat", raw)
    assert (reader.outcome().finish, reader.ended) == (finish, ended)


def test_usage_of_all_dialects_counts_alike() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert read("chat", chat({"content": "a"}, usage=usage))[1].outcome().usage == Usage(10, 5, 4, 0, 2)
    assert read("chat", chat({"content": "a"}, usage={"prompt_tokens": "x"}))[1].outcome().usage == Usage()
    assert read("chat", chat({"content": "a"}))[1].outcome().usage is None
    counted = {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3, "output_tokens": 1}
    start = {"type": "message_start", "message": {"model": "far", "usage": counted}}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}
    assert read("messages", events(start, delta, {"type": "message_stop"}))[1].outcome().usage == Usage(10, 5, 4, 3, 0)


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def messages(*blocks: list[dict[str, Any]], reason: str | None = "end_turn") -> bytes:
    start = {"type": "message_start", "message": {"model": "far", "usage": {"input_tokens": 3, "output_tokens": 0}}}
    delta = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}
    inner = [event for one in blocks for event in one]
    return events(start, {"type": "ping"}, *inner, delta, {"type": "message_stop"})


def test_messages_take_a_tools_input_from_wherever_it_comes() -> None:
    tool = {"type": "tool_use", "id": "t", "name": "look"}
    bits = [{"type": "input_json_delta", "partial_json": text} for text in ("", '{"k"', ": 1}")]
    for start, deltas, arguments in (
        ({**tool, "input": {}}, bits, '{"k": 1}'),
        ({**tool, "input": {"k": 1}}, [], '{"k":1}'),
        ({**tool, "input": {"k": 1}}, bits, '{"k": 1}'),
        ({**tool, "input": {}}, [], "{}"),
    ):
        pieces, _ = read("messages", messages(block(0, start, *deltas), reason="tool_use"))
        assert gather(pieces) == [Piece("call", arguments, "look", "t")]


def test_messages_seals_are_carried_and_unknown_blocks_are_told() -> None:
    thinking = block(
        0,
        {"type": "thinking", "thinking": ""},
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "SIG"},
    )
    sealed = block(1, {"type": "redacted_thinking", "data": "RED"})
    pieces, reader = read("messages", messages(thinking, sealed, block(2, {"type": "text", "text": "a"})))
    assert [(piece.kind, piece.text, piece.seal) for piece in gather(pieces)] == [
        ("reasoning", "hm", "reef.messages.SIG"),
        ("reasoning", "", "reef.messages.RED"),
        ("text", "a", ""),
    ]
    assert reader.untold == ""
    _, reader = read("messages", messages(block(0, {"type": "web_search_tool_result", "content": []})))
    assert reader.untold == "block_web_search_tool_result"


def response(status: str = "completed", *output: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "r", "model": "far", "status": status, "output": list(output), **more}


SAID = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "naïve"}]}
CALLED = {"type": "function_call", "id": "f", "call_id": "a", "name": "look", "arguments": '{"k": 1}'}
THOUGHT = {
    "type": "reasoning",
    "id": "t",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "ENC",
}


@pytest.mark.parametrize(
    "given",
    [
        [],
        [
            {"type": "response.output_item.done", "output_index": at, "item": item}
            for at, item in enumerate((THOUGHT, SAID, CALLED))
        ],
        [
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "h"},
            {"type": "response.output_item.done", "output_index": 0, "item": THOUGHT | {"summary": []}},
            {"type": "response.output_item.added", "output_index": 1, "item": SAID | {"content": []}},
            {"type": "response.output_item.added", "output_index": 2, "item": CALLED | {"arguments": ""}},
            {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"k"'},
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "na"},
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "ïve"},
            {"type": "response.function_call_arguments.done", "output_index": 2, "arguments": '{"k": 1}'},
            {"type": "response.output_item.done", "output_index": 1, "item": SAID},
        ],
    ],
    ids=["only the end", "items whole", "interleaved"],
)
def test_responses_take_texts_from_whichever_event_has_them(given: list[dict[str, Any]]) -> None:
    if given and given[0]["type"].endswith("delta"):
        given = [given[0] | {"delta": "hm"}, *given[1:]]
    last = {"type": "response.completed", "response": response("completed", THOUGHT, SAID, CALLED)}
    pieces, reader = read(
        "responses", events({"type": "response.created", "response": response("in_progress")}, *given, last)
    )
    assert [(p.kind, p.text, p.seal, p.call_id) for p in gather(pieces)] == [
        ("reasoning", "hm", "reef.responses.ENC", ""),
        ("text", "naïve", "", ""),
        ("call", '{"k": 1}', "", "a"),
    ]
    assert reader.ended and reader.model == "far" and reader.outcome().finish == "stop"


def test_responses_ends() -> None:
    for status, details, finish in (
        ("incomplete", {"reason": "max_output_tokens"}, "length"),
        ("incomplete", {"reason": "content_filter"}, "filter"),
        ("incomplete", None, None),
        ("cancelled", None, None),
    ):
        reader = DIALECTS["responses"].reader()
        reader.whole(response(status, SAID, incomplete_details=details))
        assert reader.outcome().finish == finish


@pytest.mark.parametrize(
    ("route", "raw", "kind", "code"),
    [
        (
            "chat",
            events({"error": {"message": "down", "type": "server_error", "code": 500}}, named=False),
            "server_error",
            "500",
        ),
        ("chat", events({"error": "down"}, named=False), "", None),
        (
            "messages",
            events({"type": "error", "error": {"type": "overloaded_error", "message": "down"}}),
            "overloaded_error",
            None,
        ),
        ("responses", events({"type": "error", "code": "server_error", "message": "down"}), "", "server_error"),
        (
            "responses",
            events(
                {
                    "type": "response.failed",
                    "response": response("failed", error={"code": "server_error", "message": "down"}),
                }
            ),
            "server_error",
            "server_error",
        ),
    ],
)
def test_error_events_are_faults(route: str, raw: bytes, kind: str, code: str | None) -> None:
    with pytest.raises(ModelFault, match="down") as told_of:
        read(route, raw)
    assert (told_of.value.fault.message, told_of.value.fault.kind, told_of.value.fault.code) == ("down", kind, code)
