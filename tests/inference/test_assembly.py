"""Assembly: the plain object of a stream, however its pieces were cut, and what is said of answers that are not right."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import BadRequest, Unsupported
from reef.inference.assembly import Assembled, assemble, unpack
from reef.inference.sse import EventCutter, read_events


def chat(*deltas: dict[str, Any], finish: str | None = "stop", done: bool = True, **extra: Any) -> bytes:
    chunks: list[dict[str, Any]] = [
        {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [{"index": 0, "delta": delta}], **extra}
        for delta in deltas
    ]
    if finish:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    lines = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return b"".join([*lines, b"data: [DONE]\n\n" if done else b""])


def read_chat(raw: bytes) -> Assembled:
    return assemble("chat", "text/event-stream", raw)


def call(index: int | None, arguments: str, name: str | None = None, call_id: str | None = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if name is not None:
        piece["function"]["name"] = name
        piece |= {"id": call_id, "type": "function"}
    return {"tool_calls": [piece]}


def cut(text: str, edges: list[int]) -> list[str]:
    at = [0, *sorted(edge for edge in edges if edge < len(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(at)]


ARGUMENTS = ('{"k": 1}', '{"k": "naïve 海 \\" }"}')


@given(edges=st.lists(st.integers(0, 40), max_size=10), text=st.text(max_size=20))
def test_chat_does_not_depend_on_the_cut(edges: list[int], text: str) -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in cut(text, edges)]
    deltas += [{"reasoning_content": piece} for piece in cut("thought", edges)]
    deltas += [call(0, "", "look", "a"), call(1, "", "look", "b")]
    pieces = [cut(ARGUMENTS[0], edges), cut(ARGUMENTS[1], edges)]
    for turn in range(max(map(len, pieces))):
        deltas += [call(index, parts[turn]) for index, parts in enumerate(pieces) if turn < len(parts)]
    read = read_chat(chat(*deltas, finish="tool_calls"))
    at_once = read_chat(
        chat(
            {"role": "assistant", "content": text, "reasoning_content": "thought"},
            {"tool_calls": [call(n, ARGUMENTS[n], "look", "ab"[n])["tool_calls"][0] for n in (0, 1)]},
            finish="tool_calls",
        )
    )
    assert read == at_once and read.complete and not read.flags
    message = read.body["choices"][0]["message"]  # type: ignore[index]
    assert [one["function"]["arguments"] for one in message["tool_calls"]] == list(ARGUMENTS)


@given(st.lists(st.integers(0, 400), max_size=30), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_line_ends_and_cuts_do_not_matter_to_events(edges: list[int], line_end: bytes, ended: bool) -> None:
    raw = b"event: one\ndata: a\ndata: b\n\n: note\n\nid: 7\nevent: two\ndata: {\ndata: }\n\ndata: last"
    raw = (raw + (b"\n\n" if ended else b"")).replace(b"\n", line_end)
    cutter = EventCutter()
    slices = [raw[start:end] for start, end in zip([0, *sorted(edges)], [*sorted(edges), len(raw)], strict=True)]
    found = [event for piece in slices for event in cutter.feed(piece)]
    assert [*found, *cutter.close()] == [("one", b"a\nb"), ("two", b"{\n}"), ("", b"last")]


@given(st.lists(st.integers(0, 400), max_size=30))
def test_network_cuts_do_not_matter_to_a_running_stream(edges: list[int]) -> None:
    raw = chat({"content": "naïve 海 😀"}, call(0, "{}", "f", "a"))
    cutter, found = EventCutter(), []
    for start, end in zip([0, *sorted(edges)], [*sorted(edges), len(raw)], strict=True):
        found += cutter.feed(raw[start:end])
    assert found == list(read_events(raw))


def test_messages_blocks_by_index_and_input_parsed_once() -> None:
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 3}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "h"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "m"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "S"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        },
        *(
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": piece}}
            for piece in '{"n": 42}'
        ),
        {"type": "ping"},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    raw = b"".join(f"event: {event['type']}\r\ndata: {json.dumps(event)}\r\n\r\n".encode() for event in events)
    read = assemble("messages", "text/event-stream; charset=utf-8", raw)
    assert read.complete and read.finish_reason == "tool_use" and read.usage == {"input_tokens": 3, "output_tokens": 9}
    assert read.body is not None and read.body["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "S"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"n": 42}},
    ]
    assert not assemble("messages", "text/event-stream", raw[: raw.index(b"event: message_stop")]).complete


def test_messages_input_given_in_the_opening_event_is_kept() -> None:
    start = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "name": "f", "input": {"a": "b"}},
    }
    events = [{"type": "message_start", "message": {}}, start, {"type": "message_stop"}]
    raw = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    read = assemble("messages", "text/event-stream", raw)
    assert read.body is not None and read.body["content"][0]["input"] == {"a": "b"}


def test_responses_take_the_closing_object_and_a_cut_keeps_what_came() -> None:
    item = {"type": "function_call", "name": "f", "call_id": "c", "arguments": ""}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"n":'},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": " 1}"},
        {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"n": 1}'},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}},
    ]
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    for upto in (4, 5):
        read = assemble("responses", "text/event-stream", b"".join(lines[:upto]))
        assert not read.complete and read.body is not None and read.body["output"][0]["arguments"] == '{"n": 1}'
    read = assemble("responses", "text/event-stream", b"".join(lines))
    assert read.complete and read.finish_reason == "completed" and not read.empty
    assert read.body is not None and read.body["output"][0]["arguments"] == '{"n": 1}'


def test_responses_text_of_a_cut_stream() -> None:
    part = {"type": "output_text", "text": ""}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}},
        {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": part},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "ha"},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "lf"},
    ]
    read = assemble("responses", "text/event-stream", b"".join(f"data: {json.dumps(e)}\n\n".encode() for e in events))
    assert read.body is not None and read.body["output"][0]["content"][0]["text"] == "half" and not read.complete


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ("{}", ()),
        ("", ()),
        ('{"n": 42}', ()),
        ('{"n": 42}{"n": 42}', ("arguments_repeated",)),
        ('{"n": 42', ("arguments_not_json",)),
        ('{"n": 1}{"n": 2}', ("arguments_not_json",)),
    ],
)
def test_odd_arguments_are_flagged_and_never_repaired(arguments: str, flags: tuple[str, ...]) -> None:
    read = read_chat(chat(call(0, arguments, "f", "a"), finish="tool_calls"))
    assert read.flags == flags and read.complete
    assert (
        read.body is not None
        and read.body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    )


def test_two_calls_in_one_delta_and_arguments_only_at_the_end() -> None:
    both = {"tool_calls": [call(n, f'{{"k":{n + 1}}}', "look", str(n))["tool_calls"][0] for n in (0, 1)]}
    late = [call(0, "", "look", "a"), call(0, '{"k":1}')]
    for deltas, expected in (([both], ['{"k":1}', '{"k":2}']), (late, ['{"k":1}'])):
        body = read_chat(chat(*deltas)).body
        assert body is not None
        calls = body["choices"][0]["message"]["tool_calls"]
        assert [one["function"]["arguments"] for one in calls] == expected


def test_calls_without_an_index_or_with_a_used_one() -> None:
    read = read_chat(chat(call(None, '{"k":', "f", "a"), call(None, "1}"), call(None, "{}", "g", "b")))
    assert read.body is not None and not read.flags
    calls = read.body["choices"][0]["message"]["tool_calls"]
    assert [(one["id"], one["function"]["arguments"]) for one in calls] == [("a", '{"k":1}'), ("b", "{}")]
    read = read_chat(chat(call(0, '{"k":1}', "f", "a"), call(0, "{}", "g", "b")))
    assert read.body is not None and read.flags == ("call_index_reused",)
    assert len(read.body["choices"][0]["message"]["tool_calls"]) == 2


def test_an_empty_call_list_is_no_call_and_halves_of_a_pair_meet() -> None:
    raw = chat({"content": "ok \ud83d", "tool_calls": []}, {"content": "\ude00", "tool_calls": []})
    assert read_chat(raw).body["choices"][0]["message"] == {"content": "ok 😀"}  # type: ignore[index]


def test_chunks_that_hold_nothing_but_their_choice_are_read() -> None:
    raw = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    read = assemble("chat", "text/event-stream", raw)
    assert read.complete and read.body == {
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]
    }


def test_a_finish_reason_is_never_made_up() -> None:
    assert read_chat(chat({"content": "a"}, finish=None, done=False)).finish_reason is None
    assert not read_chat(chat({"content": "a"}, finish=None, done=False)).complete
    assert read_chat(chat({"content": "a"}, done=False)).complete
    done = read_chat(chat({"content": "a"}, finish=None))
    assert done.complete and done.finish_reason is None
    assert read_chat(chat(call(0, "{}", "f", "a"), finish="stop")).finish_reason == "stop"


def test_empty_answers_are_seen() -> None:
    assert read_chat(b"") == Assembled(None, False)
    assert read_chat(b"data: [DONE]\n\n").empty
    assert read_chat(chat({"role": "assistant", "content": ""})).empty
    plain = {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}
    assert assemble("chat", "application/json", json.dumps(plain).encode()).empty
    assert assemble("messages", "application/json", b'{"content": [], "stop_reason": "end_turn"}').empty
    assert assemble("responses", "application/json", b'{"status": "completed", "output": []}').empty


@pytest.mark.parametrize(
    ("route", "event"),
    [
        ("chat", {"error": {"message": "boom", "code": 500}}),
        ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}}),
        ("responses", {"type": "error", "message": "boom"}),
        ("responses", {"type": "response.failed", "response": {"status": "failed", "error": {"message": "boom"}}}),
    ],
)
def test_error_events_are_errors(route: str, event: dict[str, Any]) -> None:
    read = assemble(route, "text/event-stream", f"event: x\ndata: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
    assert read.error == "boom" and not read.complete


def test_an_event_that_is_not_json_leaves_the_answer_incomplete() -> None:
    raw = chat({"content": "a"}).replace(b"data: [DONE]", b"data: {oops\n\n: comment\n\ndata: [DONE]")
    read = read_chat(raw)
    assert read.flags == ("event_not_json",) and not read.complete


def test_plain_bodies() -> None:
    assert assemble("chat", "application/json", b"<html>") == Assembled(None, False, flags=("not_json",))
    read = assemble("chat", "application/json", b'{"error": {"message": "no such model"}}')
    assert read.error == "no such model" and not read.complete
    assert not assemble("responses", "application/json", b'{"status": "in_progress", "output": []}').complete
    sniffed = assemble("chat", "application/octet-stream", chat({"content": "a"}))
    assert sniffed.complete and sniffed.body is not None


def test_unknown_fields_survive() -> None:
    raw = chat({"content": "a", "odd": {"x": "1"}}, {"odd": {"x": "2"}}, citations=["u"], provider="p")
    body = read_chat(raw).body
    assert body is not None and body["citations"] == ["u"] and body["provider"] == "p"
    assert body["choices"][0]["message"]["odd"] == {"x": "12"} and body["object"] == "chat.completion"


def test_unpack() -> None:
    raw = chat({"content": "naïve"}) * 50
    packed = {
        "gzip": gzip.compress(raw),
        "deflate": zlib.compress(raw),
        "zstd": zstandard.ZstdCompressor().compress(raw),
    }
    for coding, data in packed.items():
        assert unpack(data, coding) == raw
        assert raw.startswith(unpack(data[: len(data) // 2], coding))
        with pytest.raises(BadRequest):
            unpack(b"junk that is not packed", coding)
    assert unpack(gzip.compress(raw) + gzip.compress(raw), "gzip") == raw * 2
    assert unpack(gzip.compress(packed["zstd"]), "zstd, gzip") == raw
    assert unpack(zlib.compress(raw)[2:-4], "deflate") == raw
    assert unpack(raw, "identity") == raw
    with pytest.raises(Unsupported, match="br"):
        unpack(raw, "br")


DEEP = b"[" * 10_000 + b"]" * 10_000
ODD_EVENTS = [
    b'{"choices": [null]}',
    b'{"choices": 5}',
    b'{"choices": [{"index": "a", "delta": 5}]}',
    b'{"choices": [{"index": 0, "delta": {"tool_calls": [1]}}]}',
    b'{"choices": [{"index": 0, "delta": {}}, {"index": "b", "delta": {}}]}',
    b'{"type": "message_start", "message": 5}',
    b'{"type": "response.output_item.added", "output_index": [], "item": 5}',
    DEEP,
]


@pytest.mark.parametrize("event", ODD_EVENTS)
@pytest.mark.parametrize("route", ["chat", "messages", "responses"])
def test_pieces_of_another_shape_are_a_fact_about_the_answer_not_an_error(route: str, event: bytes) -> None:
    read = assemble(route, "text/event-stream", b"data: " + event + b"\n\n" + chat({"content": "hi"}))
    assert not read.complete or route == "chat"


@pytest.mark.parametrize(
    "body", [DEEP, b'{"choices": ' + DEEP + b"}", b'{"choices": [{"message": {"tool_calls": 5}}]}']
)
def test_bodies_of_another_shape_are_a_fact_about_the_answer_not_an_error(body: bytes) -> None:
    read = assemble("chat", "application/json", body)
    assert not read.complete and read.flags == ("odd_shape",)


def test_what_is_kept_beside_an_answer_can_be_written() -> None:
    raw = rb'{"model": "m\ud800", "choices": [{"message": {"content": "x"}, "finish_reason": "\udfff"}], "usage": '
    read = assemble("chat", "application/json", raw + b'{"prompt_tokens": %d, "completion_tokens": 2}}' % 10**30)
    assert (read.model, read.finish_reason, read.usage) == ("m?", "?", {"output_tokens": 2}) and read.complete
    odd = assemble("chat", "application/json", b'{"choices": [{"message": {"content": "x"}, "finish_reason": {}}]}')
    assert odd.finish_reason is None


_WORDS = st.sampled_from(["", "a", 'b"', "\\", "\ud83d", "海", '", "content": "x', '"}, {"'])
_CHUNKS = st.builds(
    lambda key, text, choice, more, extra: {
        **extra,
        "choices": [{"index": 0, "delta": {key: text}, **choice}, *more],
    },
    key=st.sampled_from(["content", "content", "reasoning", "odd"]),
    text=_WORDS | st.none(),
    choice=st.sampled_from([{}, {}, {"finish_reason": None}, {"odd": "x"}]),
    more=st.sampled_from([[], [], [{"index": 1, "delta": call(0, "{}")}]]),
    extra=st.sampled_from([{"id": "x"}, {"note": {"text": "a"}}, {"note": {"text": "b"}}]),
)
_BLOCKS = st.builds(
    lambda kind, text, index, extra: {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": f"{kind}_delta", kind: text},
        **extra,
    },
    kind=st.sampled_from(["text", "thinking", "partial_json"]),
    text=_WORDS,
    index=st.integers(0, 1),
    extra=st.sampled_from([{}, {"content": "x"}]),
)


@pytest.mark.parametrize("route", ["chat", "messages"])
@given(data=st.data())
def test_an_event_that_resembles_the_one_before_is_read_as_any_other(route: str, data: st.DataObject) -> None:
    pool = data.draw(st.lists(_CHUNKS if route == "chat" else _BLOCKS, min_size=1, max_size=3))
    events = [event for event in pool for _ in range(data.draw(st.integers(1, 4)))]
    if route == "messages":
        events = [{"type": "message_start", "message": {"content": []}}, *events, {"type": "message_stop"}]
    lines = [
        b"data: " + json.dumps(event, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass") + b"\n\n"
        for event in events
    ]
    lines = [f"data: {json.dumps(event, ensure_ascii=data.draw(st.booleans()))}\n\n" for event in events]
    check_resembling(route, [line.encode("utf-8", "surrogatepass") for line in lines])


def check_resembling(route: str, lines: list[bytes]) -> None:
    apart = [b": %d\n%b" % pair for pair in enumerate(lines)]  # a comment in each: no two resemble each other
    read, expected = (assemble(route, "text/event-stream", b"".join(one)) for one in (lines, apart))
    assert read == expected


@pytest.mark.parametrize(
    "event",
    [
        {"index": 0, "delta": {"content": ""}},
        {"index": 0, "delta": {"content": "a"}, "odd": "x"},
        {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"},
        {"index": 0, "delta": {"content": None}},
        {"index": 0, "delta": {"odd": "a"}},
    ],
)
@pytest.mark.parametrize(
    "more", [[], [{"index": 1, "delta": call(0, "{}")}], [{"index": 1, "delta": {"content": "a"}}]]
)
@pytest.mark.parametrize("note", ["", '"text": "%s", ', '"content": "%s", '])
def test_events_that_differ_in_more_than_their_text(event: dict[str, Any], more: list[Any], note: str) -> None:
    first = b'data: {"choices": [{"index": 0, "delta": {"content": "a", "odd": "b"}}]}\n\n'
    like = f"data: {{{note}{json.dumps({'choices': [event, *more]})[1:]}\n\n"
    lines = [(like % word if note else like).encode() for word in ("a", "a", "b", "b")]
    check_resembling("chat", [first, first, *lines])
    check_resembling("chat", [first, first, *lines, lines[-1].replace(b': ""', b': "')])  # JSON that is none
