"""Calls in a dialect the provider does not speak, over real sockets: there, back, errors, and how routes are found out."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from reef.core.records_types import RecordState
from reef.errors import BadConfig, BadRequest, NotFound, ReefError, UpstreamError
from reef.inference.assembly import Assembled, assemble
from reef.inference.base import Answer, Call, Finish
from reef.inference.dialects import DIALECTS
from reef.inference.protocol import check_stream
from reef.inference.testing import Script, ScriptedProvider
from reef.inference.translation import PATHS, TranslatingBackend, dialects_of
from tests.clients import answers

PAIRS = list(itertools.permutations(DIALECTS, 2))
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "far-1",
        "messages": [USER],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
        "stream_options": {"include_usage": True},
    },
    "responses": {
        "model": "far-1",
        "input": "hi",
        "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}],
    },
    "messages": {
        "model": "far-1",
        "max_tokens": 50,
        "messages": [USER],
        "tools": [{"name": "look", "input_schema": SCHEMA}],
    },
}
ANSWERS = {
    ("chat", False): answers.chat_plain,
    ("chat", True): answers.chat_stream,
    ("messages", False): answers.messages_plain,
    ("messages", True): answers.messages_stream,
    ("responses", False): answers.responses_plain,
    ("responses", True): answers.responses_stream,
}
SSE = (("content-type", "text/event-stream"),)


def make_call(route: str, stream: bool = False, *headers: tuple[str, str], **more: Any) -> Call:
    body = {**BODIES[route], **({"stream": True} if stream else {}), **more}
    return Call(route, PATHS[route], "beta=true", json.dumps(body).encode(), body, headers, stream, "s", "c1")


@asynccontextmanager
async def upstream(
    target: str | None, *scripts: Script, only: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[tuple[TranslatingBackend, ScriptedProvider]]:
    """A provider of one dialect, known to be one, or (None) to be found out."""
    async with ScriptedProvider(*scripts, only=[PATHS[route] for route in only]) as provider:
        speaks = None if target is None else (target,)
        backend = TranslatingBackend(provider.url, speaks=speaks, **settings)
        try:
            yield backend, provider
        finally:
            await backend.aclose()


async def drain(answer: Answer) -> tuple[bytes, ReefError | None]:
    """All bytes of an answer, and what it broke off with."""
    sent, broken = b"", None
    try:
        async for chunk in answer.slices():
            assert chunk, "no empty slices"
            sent += chunk
    except ReefError as error:
        broken = error
    await answer.aclose()
    return sent, broken


async def ask(backend: TranslatingBackend, call: Call) -> tuple[Answer, bytes, Finish, Assembled]:
    answer = await backend.chat(call)
    sent, broken = await drain(answer)
    assert broken is None
    return answer, sent, answer.finish(sent), assemble(call.route, dict(answer.headers)["content-type"], sent)


def said(route: str, body: dict[str, Any] | None) -> list[Any]:
    """Texts, and calls as id, name and arguments, of an answer's object."""
    assert body is not None
    if route == "chat":
        message = body["choices"][0]["message"]
        calls = [
            (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in message.get("tool_calls") or ()
        ]
        return [*([message["content"]] if message["content"] else []), *calls]
    found: list[Any] = []
    for part in body["content" if route == "messages" else "output"]:
        if part["type"] == "text":
            found.append(part["text"])
        elif part["type"] == "message":
            found.append("".join(one["text"] for one in part["content"]))
        elif part["type"] == "tool_use":
            found.append((part["id"], part["name"], part["input"]))
        elif part["type"] == "function_call":
            found.append((part["call_id"], part["name"], json.loads(part["arguments"])))
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("tools", [False, True], ids=["text", "tools"])
@pytest.mark.parametrize(("route", "target"), PAIRS)
async def test_a_call_is_translated_there_and_back(route: str, target: str, tools: bool, stream: bool) -> None:
    script = ANSWERS[target, stream](tools=tools)
    async with upstream(target, script) as (backend, provider):
        answer, sent, finish, read = await ask(backend, make_call(route, stream))
    seen = json.loads(provider.seen[0].raw)
    assert len(provider.seen) == 1 and provider.seen[0].target == PATHS[target]
    assert seen["model"] == "far-1" and seen.get("stream", False) is stream and "look" in json.dumps(seen["tools"])
    assert DIALECTS[target].parse(seen).unread == ()
    if stream:
        check_stream(route, sent)
    expected: list[Any] = [answers.TEXT] if not tools or target == "messages" else []
    call_id = "toolu_1" if target == "messages" else "call_1"
    expected += [(call_id, "look", answers.ARGUMENTS)] if tools else []
    assert said(route, read.body) == expected and read.complete and read.model == "m-1"
    reasons = {
        "chat": ("stop", "tool_calls"),
        "messages": ("end_turn", "tool_use"),
        "responses": ("completed", "completed"),
    }
    assert read.finish_reason == finish.finish_reason == reasons[route][tools]
    assert finish.state is RecordState.COMPLETE and finish.reason is None
    assert finish.usage == {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
    assert (read.usage["input_tokens"], read.usage["output_tokens"]) == (9, 4)
    headers = dict(answer.headers)
    assert answer.status == 200 and headers["content-type"].startswith(
        "text/event-stream" if stream else "application/json"
    )
    if not stream:
        assert headers["request-id" if route == "messages" else "x-request-id"] == "req-1"


@pytest.mark.parametrize(("route", "target"), PAIRS)
async def test_no_cut_of_the_bytes_changes_the_answer(route: str, target: str) -> None:
    whole = b"".join(ANSWERS[target, True](tools=True).chunks)
    scripts = [
        Script([whole], headers=SSE),
        Script([whole[at : at + 1] for at in range(len(whole))], headers=SSE),
        Script([whole.replace(b"\n", b"\r\n")[at : at + 3] for at in range(0, len(whole) * 2, 3)], headers=SSE),
    ]
    found = set()
    async with upstream(target, *scripts) as (backend, _):
        for _script in scripts:
            _, sent, finish, _ = await ask(backend, make_call(route, True))
            assert finish.state is RecordState.COMPLETE
            found.add(sent)
    assert len({raw.replace(b" ", b"") for raw in map(_timeless, found)}) == 1


def _timeless(raw: bytes) -> bytes:
    """Without the second an answer was begun in."""
    return re.sub(rb'"created(_at)?":\d+', b"", raw)


REFUSALS = {
    "chat": {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded", "param": None}},
    "responses": {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded", "param": None}},
    "messages": {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}},
}
TYPES = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("status", list(TYPES))
@pytest.mark.parametrize(("route", "target"), PAIRS)
async def test_an_error_keeps_its_status_and_wait_and_speaks_the_clients_dialect(
    route: str, target: str, status: int, stream: bool
) -> None:
    kept = (("retry-after", "3"), ("x-ratelimit-remaining-requests", "0"), ("anthropic-ratelimit-tokens-limit", "9"))
    headers = (("content-type", "application/json"), *kept)
    script = Script([json.dumps(REFUSALS[target]).encode()], status=status, headers=headers)
    async with upstream(target, script) as (backend, provider):
        answer, sent, finish, _ = await ask(backend, make_call(route, stream))
    body = json.loads(sent)
    assert answer.status == status and set(kept) <= set(answer.headers) and len(provider.seen) == 1
    assert dict(answer.headers)["content-type"] == "application/json" and body["error"]["message"] == "slow down"
    if route == "messages":
        assert body["type"] == "error"
        assert body["error"]["type"] == TYPES[status]
    else:
        assert body["error"]["type"] in (TYPES[429], "requests") and "param" in body["error"]
    assert (finish.state, finish.reason) == (RecordState.FAILED, f"upstream_{status}")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"object": "error", "message": "no such model", "code": 404}', "no such model"),
        (b'{"error": "down"}', "down"),
        (b"", "the model's server answered 500"),
        (b"[1]", "the model's server answered 500"),
    ],
)
async def test_errors_of_any_shape_have_words(raw: bytes, message: str) -> None:
    async with upstream("chat", Script([raw], status=500)) as (backend, _):
        _, sent, _, _ = await ask(backend, make_call("messages"))
    error = json.loads(sent)["error"]
    assert (error["type"], error["message"]) == ("api_error", message)


async def test_an_overflow_of_the_context_is_recognised_on_both_sides() -> None:
    theirs = {"error": {"message": "maximum context length is 9", "type": "x", "code": "context_length_exceeded"}}
    async with upstream("chat", Script([json.dumps(theirs).encode()], status=400)) as (backend, _):
        _, sent, _, _ = await ask(backend, make_call("messages"))
    assert json.loads(sent)["error"]["message"].startswith("prompt is too long")
    theirs = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"},
    }
    async with upstream("messages", Script([json.dumps(theirs).encode()], status=400)) as (backend, _):
        _, sent, _, _ = await ask(backend, make_call("responses"))
    assert json.loads(sent)["error"]["code"] == "context_length_exceeded"


FAULTS = {
    "chat": b'data: {"error": {"message": "melted", "type": "overloaded_error"}}\n\n',
    "messages": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"melted"}}\n\n',
    "responses": b'event: error\ndata: {"type":"error","code":"overloaded_error","message":"melted"}\n\n',
}


@pytest.mark.parametrize("before", [0, 4], ids=["at once", "later"])
@pytest.mark.parametrize(("route", "target"), PAIRS)
async def test_an_error_event_is_one_in_the_clients_dialect(route: str, target: str, before: int) -> None:
    chunks = [*ANSWERS[target, True](tools=False).chunks[: before * 2], FAULTS[target]]
    async with upstream(target, Script(chunks, headers=SSE), Script([b"".join(chunks)], headers=SSE)) as (backend, _):
        _, sent, finish, read = await ask(backend, make_call(route, True))
        _, at_once, _, _ = await ask(backend, make_call(route, True))
    check_stream(route, sent, whole=False)
    assert _timeless(sent) == _timeless(at_once), "what came in the same read as the error is not lost"
    assert read.error == "melted" and not read.complete
    assert (b"na" in sent) is (before > 0)
    assert (finish.state, finish.reason) == (RecordState.FAILED, "upstream_error_event")


@pytest.mark.parametrize(("route", "target"), PAIRS)
async def test_a_provider_that_dies_in_mid_stream_makes_no_end(route: str, target: str) -> None:
    chunks = ANSWERS[target, True](tools=True).chunks
    for cut, reason in ((True, "upstream_broke_off"), (False, "no_end_mark")):
        script = Script(chunks[:8], headers=SSE, cut=cut, pause_s=0.001)
        async with upstream(target, script) as (backend, _):
            answer = await backend.chat(make_call(route, True))
            sent, broken = await drain(answer)
            finish = answer.finish(sent)
        assert isinstance(broken, UpstreamError) is cut and sent
        check_stream(route, sent, whole=False)
        assert not assemble(route, "text/event-stream", sent).complete
        assert (finish.state, finish.reason) == (RecordState.INCOMPLETE, reason)


@pytest.mark.parametrize(("route", "target"), PAIRS)
async def test_an_empty_stream_stays_empty(route: str, target: str) -> None:
    async with upstream(target, Script([], headers=SSE)) as (backend, _):
        _, sent, finish, _ = await ask(backend, make_call(route, True))
    assert sent == b"" and (finish.state, finish.reason) == (RecordState.INCOMPLETE, "no_end_mark")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"<html>", "event_not_json"),
        (b"[1, 2]", "odd_shape"),
        (b'{"choices": []}', "no_end_mark"),
        (b'{"choices": 5}', "odd_shape"),
        (b'{"choices": [{"message": {"tool_calls": 7}}]}', "odd_shape"),
        (b'{"error": {"message": "no"}}', "upstream_error_event"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_an_error(raw: bytes, code: str, stream: bool) -> None:
    async with upstream("chat", Script([raw])) as (backend, _):
        if not stream:
            with pytest.raises(UpstreamError) as told:
                await backend.chat(make_call("messages"))
            assert told.value.code == code
            return
        answer = await backend.chat(make_call("messages", True))
        sent, broken = await drain(answer)
        assert broken is None if code == "upstream_error_event" else broken is not None and broken.code == code
        finish = answer.finish(sent)
    assert finish.state is (RecordState.FAILED if code == "upstream_error_event" else RecordState.INCOMPLETE)
    assert finish.reason == code


async def test_an_event_that_is_no_json_ends_the_answer_without_an_end() -> None:
    chunks = [*answers.chat_stream(tools=False).chunks[:4], b"data: {oops\n\n"]
    async with upstream("chat", Script(chunks, headers=SSE)) as (backend, _):
        answer = await backend.chat(make_call("messages", True))
        sent, broken = await drain(answer)
    assert broken is not None and "cannot be read" in broken.message
    check_stream("messages", sent, whole=False)
    assert answer.finish(sent).reason == "event_not_json" and "naï".encode() in sent


@pytest.mark.parametrize("word", [None, "eos"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_finish_reason_is_never_made_up(word: str | None, stream: bool) -> None:
    delta = {"role": "assistant", "content": ""}
    key = "delta" if stream else "message"
    body = {"model": "m-1", "choices": [{"index": 0, key: delta, "finish_reason": word}]}
    raw = json.dumps(body).encode()
    script = Script([b"data: " + raw + b"\n\ndata: [DONE]\n\n"], headers=SSE) if stream else Script([raw])
    async with upstream("chat", script) as (backend, _):
        _, sent, finish, read = await ask(backend, make_call("messages", stream))
    assert read.body is not None and read.body["stop_reason"] is None
    assert (finish.state, finish.reason) == (RecordState.INCOMPLETE, "no_finish_reason")
    if stream:
        check_stream("messages", sent)


async def test_a_part_that_has_no_form_elsewhere_marks_the_record() -> None:
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "text", "text": "found"},
    ]
    body = {
        "type": "message",
        "model": "m-1",
        "content": blocks,
        "stop_reason": "end_turn",
        "usage": {"output_tokens": 1},
    }
    async with upstream("messages", Script([json.dumps(body).encode()])) as (backend, _):
        _, _, finish, read = await ask(backend, make_call("chat"))
    assert said("chat", read.body) == ["found"] and finish.state is RecordState.INCOMPLETE
    assert finish.reason is not None and "server_tool_use" in finish.reason


async def test_tools_called_beside_stop_are_what_the_client_must_know() -> None:
    calls = [{"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}]
    chunk = {"model": "m-1", "choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": "stop"}]}
    raw = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    async with upstream("chat", Script([raw], headers=SSE)) as (backend, _):
        _, sent, finish, read = await ask(backend, make_call("messages", True))
    assert read.finish_reason == "tool_use" and finish.state is RecordState.COMPLETE
    check_stream("messages", sent)


async def test_a_stream_that_was_not_streamed_and_a_plain_answer_that_was() -> None:
    raw = b"".join(answers.chat_stream(tools=True).chunks)
    packed = Script([gzip.compress(raw)], headers=(*SSE, ("content-encoding", "gzip")))
    scripts = [answers.chat_plain(tools=True), Script([raw], headers=SSE), packed]
    async with upstream("chat", *scripts) as (backend, provider):
        for stream in (True, False, True):
            _, sent, finish, read = await ask(backend, make_call("messages", stream))
            assert said("messages", read.body) == [("call_1", "look", answers.ARGUMENTS)]
            assert finish.state is RecordState.COMPLETE
            if stream:
                check_stream("messages", sent)
    assert {dict(seen.headers)["accept-encoding"] for seen in provider.seen} == {"identity"}


async def test_thinking_is_shown_to_who_asked_and_seals_come_back_to_their_maker() -> None:
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "SIG"}, {"type": "text", "text": "a"}]
    body = {
        "type": "message",
        "model": "m-1",
        "content": blocks,
        "stop_reason": "end_turn",
        "usage": {"output_tokens": 1},
    }
    async with upstream("messages", Script([json.dumps(body).encode()])) as (backend, provider):
        _, _, _, first = await ask(backend, make_call("responses"))
        assert first.body is not None
        again = [{"role": "user", "content": "hi"}, *first.body["output"], {"role": "user", "content": "and?"}]
        await ask(backend, make_call("responses", input=again))
    assert json.loads(provider.seen[1].raw)["messages"][1]["content"] == blocks
    chunk = {
        "model": "m-1",
        "choices": [{"index": 0, "message": {"reasoning_content": "hm", "content": "a"}, "finish_reason": "stop"}],
    }
    async with upstream("chat", Script([json.dumps(chunk).encode()])) as (backend, _):
        _, _, _, quiet = await ask(backend, make_call("messages"))
        _, _, _, shown = await ask(backend, make_call("messages", thinking={"type": "adaptive"}))
    assert quiet.body is not None and shown.body is not None
    assert [block["type"] for block in quiet.body["content"]] == ["text"]
    assert shown.body["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}


async def test_thoughts_go_back_under_the_name_their_provider_gave_them() -> None:
    for name in ("reasoning", "reasoning_content"):
        message = {"role": "assistant", name: "hm", "content": "a"}
        body = {"model": "m-1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        async with upstream("chat", Script([json.dumps(body).encode()])) as (backend, provider):
            _, _, _, read = await ask(backend, make_call("messages", thinking={"type": "adaptive"}))
            assert read.body is not None
            again = [USER, {"role": "assistant", "content": read.body["content"]}, USER]
            await ask(backend, make_call("messages", messages=again))
        assert json.loads(provider.seen[1].raw)["messages"][1] == message


REFUSED_EFFORT = Script(
    [b'{"error": {"message": "Unrecognized request argument supplied: reasoning_effort"}}'], status=400
)


@pytest.mark.parametrize("target", ["chat", "responses"])
async def test_a_model_that_takes_no_effort_is_asked_without_from_then_on(target: str) -> None:
    scripts = [REFUSED_EFFORT, *([ANSWERS[target, False](tools=False)] * 2), REFUSED_EFFORT]
    async with upstream(target, *scripts) as (backend, provider):
        for _ in range(2):
            _, _, finish, _ = await ask(backend, make_call("messages", output_config={"effort": "high"}))
            assert finish.state is RecordState.COMPLETE
        assert [b"effort" in seen.raw for seen in provider.seen] == [True, False, False]
        answer, _, _, _ = await ask(backend, make_call("messages", output_config={"effort": "high"}))
        assert answer.status == 400 and len(provider.seen) == 4, "what is refused without it stays refused"
    other = Script([b'{"error": {"message": "no such tool"}}'], status=400)
    async with upstream(target, other) as (backend, provider):
        answer, _, _, _ = await ask(backend, make_call("messages", output_config={"effort": "high"}))
        assert answer.status == 400 and len(provider.seen) == 1
    async with upstream(target, REFUSED_EFFORT) as (backend, provider):
        answer, _, _, _ = await ask(backend, make_call("messages"))
        assert answer.status == 400 and len(provider.seen) == 1, "it was not sent"


async def test_tools_come_back_under_the_names_the_client_gave_them() -> None:
    tools = [
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn", "parameters": {}}]},
        {"type": "custom", "name": "patch"},
        {"type": "web_search"},
    ]
    calls = [
        {"id": "a", "function": {"name": "agents__spawn", "arguments": '{"n": 1}'}},
        {"id": "b", "function": {"name": "patch", "arguments": '{"input": "*** Begin\\n海"}'}},
    ]
    choice = {"index": 0, "message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
    plain = json.dumps({"model": "m-1", "choices": [choice]}).encode()
    for stream in (False, True):
        async with upstream("chat", Script([plain])) as (backend, _):
            _, sent, _, read = await ask(backend, make_call("responses", stream, tools=tools))
        if stream:
            check_stream("responses", sent)
        assert read.body is not None
        first, second = read.body["output"]
        assert (first["type"], first["name"], first["namespace"], first["call_id"]) == (
            "function_call",
            "spawn",
            "agents",
            "a",
        )
        assert (second["type"], second["name"], second["input"]) == ("custom_tool_call", "patch", "*** Begin\n海")


async def test_log_probs_between_openais_dialects() -> None:
    probs = {
        "content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": None}]}]
    }
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "logprobs": probs}
    script = Script([json.dumps({"model": "m-1", "choices": [choice]}).encode()])
    for stream in (False, True):
        async with upstream("chat", script) as (backend, provider):
            more = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
            _, _, _, read = await ask(backend, make_call("responses", stream, **more))
        assert json.loads(provider.seen[0].raw)["top_logprobs"] == 1 and read.body is not None
        shown = read.body["output"][0]["content"][0]["logprobs"]
        assert [(one["token"], one["logprob"], one["top_logprobs"][0]["logprob"]) for one in shown] == [
            ("a", -0.5, -9999.0)
        ]


@pytest.mark.parametrize(
    ("route", "target", "given", "sent"),
    [
        (
            "messages",
            "chat",
            (("x-api-key", "K"), ("anthropic-version", "1"), ("anthropic-beta", "b")),
            {"authorization": "Bearer K"},
        ),
        ("messages", "responses", (("authorization", "Bearer K"),), {"authorization": "Bearer K"}),
        (
            "chat",
            "messages",
            (("authorization", "Bearer K"), ("openai-organization", "o")),
            {"x-api-key": "K", "anthropic-version": "2023-06-01"},
        ),
    ],
)
async def test_credentials_stand_where_the_provider_looks(
    route: str, target: str, given: tuple[tuple[str, str], ...], sent: dict[str, str]
) -> None:
    names = {"authorization", "x-api-key", "anthropic-version", "anthropic-beta", "openai-organization"}
    async with upstream(target, ANSWERS[target, False](tools=False)) as (backend, provider):
        await ask(backend, make_call(route, False, *given, ("x-custom", "1")))
    seen = dict(provider.seen[0].headers)
    assert {name: value for name, value in seen.items() if name in names} == sent and seen["x-custom"] == "1"
    async with upstream(target, ANSWERS[target, False](tools=False), api_key="OWN") as (backend, provider):
        await ask(backend, make_call(route, False, *given))
    seen = dict(provider.seen[0].headers)
    assert "OWN" in seen["x-api-key" if target == "messages" else "authorization"] and "K" not in seen.values()


async def test_a_dialect_the_provider_speaks_passes_untouched() -> None:
    script = answers.chat_plain(tools=True)
    async with upstream("chat", script) as (backend, provider):
        raw = b'{"model": "m",  "messages": [], "unheard_of": 1.0}'
        call = Call("chat", PATHS["chat"], "x=1", raw, json.loads(raw), (), False, "s", "c1")
        answer = await backend.chat(call)
        sent, _ = await drain(answer)
    assert (provider.seen[0].raw, provider.seen[0].target) == (raw, f"{PATHS['chat']}?x=1")
    assert sent == b"".join(script.chunks)


async def test_what_cannot_be_said_is_refused_before_the_provider_is_asked() -> None:
    async with upstream("chat", Script()) as (backend, provider):
        with pytest.raises(BadRequest) as told:
            await backend.chat(make_call("messages", container="c"))
    assert told.value.field == "container" and not provider.seen


async def test_the_first_dialect_that_can_say_it_is_asked() -> None:
    url = {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}}
    async with ScriptedProvider(answers.responses_plain(tools=False)) as provider:
        backend = TranslatingBackend(provider.url, speaks=("chat", "responses"))
        _, _, finish, _ = await ask(backend, make_call("messages", messages=[{"role": "user", "content": [url]}]))
        await backend.aclose()
    assert provider.seen[0].target == PATHS["responses"] and finish.state is RecordState.COMPLETE


# -- which dialects a provider speaks


def test_dialects_by_configuration_and_by_name() -> None:
    assert dialects_of("auto", "https://api.anthropic.com") == ("messages",)
    assert dialects_of("auto", "https://api.openai.com/v1") == ("chat", "responses")
    assert dialects_of("auto", "http://127.0.0.1:11434/v1") is None
    assert dialects_of("auto", "https://notanthropic.com") is None
    assert dialects_of("chat, messages", "https://api.openai.com") == ("chat", "messages")
    for wrong in ("", "chats", "chat,,x"):
        with pytest.raises(BadConfig) as told:
            dialects_of(wrong, "http://x.test")
        assert told.value.field == "reef.upstream_api"


@pytest.mark.parametrize(("route", "target"), PAIRS)
async def test_a_missing_route_is_found_out_once(route: str, target: str) -> None:
    async with upstream(None, ANSWERS[target, True](tools=True), only=(target,)) as (backend, provider):
        for _ in range(2):
            _, sent, finish, _ = await ask(backend, make_call(route, True))
            assert finish.state is RecordState.COMPLETE
            check_stream(route, sent)
        assert route not in backend.speaks and target in backend.speaks
        again = make_call(target, True)
        _, passed, _, _ = await ask(backend, again)
    assert passed == b"".join(ANSWERS[target, True](tools=True).chunks) and provider.seen[-1].raw == again.raw
    asked = [(one.target.split("?")[0], one.raw == b"{}") for one in provider.refused]
    assert asked[:2] == [(PATHS[route], False), (PATHS[route], True)] and len(asked) <= 4, "asked again, it was known"
    assert [seen.target.split("?")[0] for seen in provider.seen] == [PATHS[target]] * 3


@pytest.mark.parametrize(
    "raw",
    [b'{"error": {"message": "The model `far-1` does not exist", "code": "model_not_found"}}', b"404 not found"],
    ids=["named", "not named"],
)
async def test_a_model_that_is_not_found_is_no_missing_route(raw: bytes) -> None:
    scripts = [Script([raw], status=404), Script([b'{"error": "bad"}'], status=400), Script([raw], status=404)]
    async with upstream(None, *scripts) as (backend, provider):
        for count in (2, 3):
            answer, sent, finish, _ = await ask(backend, make_call("messages"))
            assert (answer.status, sent, finish.reason) == (404, raw, "upstream_404")
            assert len(provider.seen) == count, "the route is known to be there from then on"
        assert backend.speaks == tuple(PATHS)


async def test_a_server_that_does_not_find_the_model_in_an_empty_call_either() -> None:
    said = b'{"error": {"message": "model far-1 not found"}}'
    scripts = [Script([said], status=404), Script([b'{"error": {"message": "model not found"}}'], status=404)]
    async with upstream(None, *scripts) as (backend, provider):
        answer, sent, _, _ = await ask(backend, make_call("messages"))
        assert (answer.status, sent) == (404, said) and backend.speaks == tuple(PATHS)
        assert len(provider.seen) == 2, "no other route is tried"


async def test_where_nothing_is_there_the_404_stays_and_nothing_is_learned() -> None:
    async with upstream(None, Script([b"nothing here"], status=404)) as (backend, _):
        for _ in range(2):
            answer, sent, _, _ = await ask(backend, make_call("messages"))
            assert (answer.status, sent) == (404, b"nothing here")
        assert backend.speaks == tuple(PATHS)


async def test_a_known_dialect_is_never_probed() -> None:
    async with upstream("chat", Script([b"nothing here"], status=404)) as (backend, provider):
        answer, _, _, _ = await ask(backend, make_call("messages"))
        assert answer.status == 404 and len(provider.seen) == 1
        answer, _, _, _ = await ask(backend, make_call("chat"))
        assert answer.status == 404 and len(provider.seen) == 2


async def test_tokens_are_not_counted_by_guessing_and_models_are_listed() -> None:
    async with upstream("chat", Script([b'{"data": []}'])) as (backend, provider):
        call = Call("messages", "/v1/messages/count_tokens", "", b"{}", {}, (), False, "s", "c1")
        with pytest.raises(NotFound) as told:
            await backend.count_tokens(call)
        assert told.value.code == "no_token_count" and not provider.seen
        assert await backend.models() == {"data": []}
    async with upstream(None, Script([b'{"error": {"message": "no"}}'], status=404)) as (backend, provider):
        with pytest.raises(UpstreamError) as refused:
            await backend.count_tokens(call)
        assert refused.value.status == 404 and backend.speaks == tuple(PATHS) and len(provider.seen) == 1


async def test_the_newer_name_of_the_limit_is_for_openai_alone() -> None:
    backend = TranslatingBackend("https://api.openai.com/v1", speaks=("chat",))
    prompt = DIALECTS["messages"].parse(BODIES["messages"])
    assert backend._asked(make_call("messages"), prompt, "chat").body["max_completion_tokens"] == 50
    other = TranslatingBackend("http://127.0.0.1:1", speaks=("chat",))
    assert other._asked(make_call("messages"), prompt, "chat").body["max_tokens"] == 50


async def test_a_redirect_is_an_error_that_says_where_to() -> None:
    script = Script([b""], status=307, headers=[("location", "http://127.0.0.1:9/else")])
    async with upstream("chat", script) as (backend, _):
        with pytest.raises(UpstreamError, match=r"127\.0\.0\.1:9/else"):
            await backend.chat(make_call("messages"))


async def test_a_reader_that_leaves_cancels_the_upstream() -> None:
    event = b'data: {"model": "m-1", "choices":[{"index":0,"delta":{"content":"slow"}}]}\n\n'
    async with upstream("chat", Script([event] * 1000, headers=SSE, pause_s=0.01)) as (backend, provider):
        answer = await backend.chat(make_call("messages", True))
        sent = await anext(answer.slices()) + await anext(answer.slices())
        await answer.aclose()
        finish = answer.finish(sent, "client_gone")
    assert provider.gone == 1 and len(provider.seen) == 1
    assert (finish.state, finish.reason) == (RecordState.ABORTED, "client_gone")


@pytest.mark.parametrize("first", ["untouched", "translated"])
async def test_a_probe_that_fails_leaves_no_answer_open(first: str) -> None:
    refusing = Script([b"x"] * 1000, status=404, pause_s=0.05)
    before = () if first == "untouched" else (Script(status=404), Script(status=404))  # so that messages is translated
    broken = Script(status=999)
    async with upstream(None, *before, refusing, broken) as (backend, provider):
        with pytest.raises(UpstreamError, match="no final status"):
            await backend.chat(make_call("messages"))
        async with asyncio.timeout(20):
            while not provider.gone:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
