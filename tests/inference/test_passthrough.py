"""Pass-through against a scripted provider over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest
import zstandard

from reef.core.records_types import RecordState
from reef.errors import UpstreamError, UpstreamTimeout
from reef.inference.base import ROUTES, Call, Finish
from reef.inference.passthrough import PassthroughBackend, proxy_for
from reef.inference.testing import Script, ScriptedProvider

ANSWER = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "model": "far",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "naïve 海"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        "odd": {"kept": [1, None]},
    },
    ensure_ascii=False,
).encode()


def make_call(
    raw: bytes = b'{"model": "m",  "messages": []}',
    path: str = "/v1/chat/completions",
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),),
    query: str = "",
    stream: bool = False,
) -> Call:
    return Call(ROUTES.get(path, "messages"), path, query, raw, json.loads(raw), headers, stream, "s", "call1")


async def relay(backend: PassthroughBackend, call: Call) -> tuple[int, dict[str, str], bytes, Finish]:
    answer = await backend.chat(call)
    sent = b""
    try:
        async for chunk in answer.slices():
            sent += chunk
    except UpstreamError:
        pass
    finally:
        await answer.aclose()
    return answer.status, dict(answer.headers), sent, answer.finish(sent)


async def test_request_and_answer_bytes_pass_untouched() -> None:
    script = Script([ANSWER], headers=[("Content-Type", "application/json"), ("X-RateLimit-Left", "7")])
    headers = (
        ("authorization", "Bearer mine"),
        ("content-type", "application/json"),
        ("x-custom", "1"),
        ("x-reef-scenario", "s"),
        ("cookie", "a=b"),
        ("connection", "keep-alive"),
    )
    async with ScriptedProvider(script) as provider:
        backend = PassthroughBackend(provider.url + "/v1")
        raw = b'{"model": "m",\n "messages": [], "n": 1.0}'
        status, returned, sent, finish = await relay(backend, make_call(raw, headers=headers, query="beta=true&x=%2F"))
        await backend.aclose()
    seen = provider.seen[0]
    names = dict(seen.headers)
    assert (seen.method, seen.target, seen.raw) == ("POST", "/v1/chat/completions?beta=true&x=%2F", raw)
    assert names["authorization"] == "Bearer mine" and names["x-custom"] == "1"
    assert not {"x-reef-scenario", "cookie", "user-agent", "accept"} & names.keys()
    assert (status, sent) == (200, ANSWER) and returned["x-ratelimit-left"] == "7"
    assert finish.state is RecordState.COMPLETE and finish.reason is None
    assert (finish.finish_reason, finish.model) == ("stop", "far")
    assert finish.usage == {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", {"authorization": "Bearer K"}),
        ("/v1/responses", {"authorization": "Bearer K"}),
        ("/v1/messages", {"x-api-key": "K", "anthropic-version": "2023-06-01"}),
    ],
)
async def test_a_configured_key_replaces_the_clients(path: str, expected: dict[str, str]) -> None:
    async with ScriptedProvider(Script([ANSWER])) as provider:
        backend = PassthroughBackend(provider.url, api_key="K")
        await relay(backend, make_call(path=path, headers=(("authorization", "Bearer reef"), ("x-api-key", "reef"))))
        await backend.aclose()
    seen = dict(provider.seen[0].headers)
    shown = {name: value for name, value in seen.items() if name in ("authorization", "x-api-key", "anthropic-version")}
    assert shown == expected


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_compressed_answers_pass_as_they_are_and_are_read(coding: str) -> None:
    packed = {
        "gzip": gzip.compress(ANSWER),
        "deflate": zlib.compress(ANSWER),
        "zstd": zstandard.ZstdCompressor().compress(ANSWER),
    }[coding]
    script = Script([packed], headers=[("content-type", "application/json"), ("content-encoding", coding)])
    async with ScriptedProvider(script) as provider:
        backend = PassthroughBackend(provider.url)
        call = make_call(headers=(("accept-encoding", f"br, {coding}"),))
        _, returned, sent, finish = await relay(backend, call)
        await backend.aclose()
    assert dict(provider.seen[0].headers)["accept-encoding"] == coding
    assert sent == packed and returned["content-encoding"] == coding
    assert finish.finish_reason == "stop" and finish.state is RecordState.COMPLETE


async def test_a_stream_cut_without_its_end_mark_is_incomplete() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
    script = Script([event, event], headers=[("content-type", "text/event-stream")], cut=True)
    async with ScriptedProvider(script) as provider:
        backend = PassthroughBackend(provider.url)
        _, _, sent, finish = await relay(backend, make_call(stream=True))
        await backend.aclose()
    assert sent == event * 2
    assert finish.state is RecordState.INCOMPLETE and finish.reason == "upstream_broke_off"


async def test_a_reader_that_leaves_cancels_the_upstream() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"slow"}}]}\n\n'
    script = Script([event] * 1000, headers=[("content-type", "text/event-stream")], pause_s=0.01)
    async with ScriptedProvider(script) as provider:
        backend = PassthroughBackend(provider.url)
        answer = await backend.chat(make_call(stream=True))
        sent = b""
        async for chunk in answer.slices():
            sent += chunk
            break
        await answer.aclose()
        finish = answer.finish(sent, "client_gone")
        await backend.aclose()
    assert provider.gone == 1 and len(provider.seen) == 1
    assert finish.state is RecordState.ABORTED and finish.reason == "client_gone"


async def test_an_error_keeps_status_headers_and_body() -> None:
    body = b'{"error": {"message": "slow down"}}'
    script = Script([body], status=429, headers=[("content-type", "application/json"), ("retry-after", "3")])
    async with ScriptedProvider(script) as provider:
        backend = PassthroughBackend(provider.url)
        status, returned, sent, finish = await relay(backend, make_call())
        with pytest.raises(UpstreamError) as refused:
            await backend.models()
        await backend.aclose()
    assert (status, sent, returned["retry-after"]) == (429, body, "3") and len(provider.seen) == 2
    assert finish.state is RecordState.FAILED and finish.reason == "upstream_429"
    assert refused.value.status == 429 and "slow down" in refused.value.message


async def test_no_server_and_a_silent_server_are_errors_before_any_byte() -> None:
    async with ScriptedProvider(Script([ANSWER])) as provider:
        url = provider.url
    backend = PassthroughBackend(url)
    with pytest.raises(UpstreamError, match="cannot be reached"):
        await backend.chat(make_call())
    await backend.aclose()
    slow = Script([b"{", b"}"], pause_s=30)
    async with ScriptedProvider(slow) as provider:
        backend = PassthroughBackend(provider.url, idle_timeout_s=0.05)
        answer = await backend.chat(make_call())
        with pytest.raises(UpstreamTimeout):
            async for _ in answer.slices():
                pass
        await answer.aclose()
        assert answer.finish(b"{").reason == "upstream_timeout"
        await backend.aclose()


async def test_redirects_are_passed_on_not_followed() -> None:
    script = Script([b""], status=307, headers=[("location", "http://127.0.0.1:9/else")])
    async with ScriptedProvider(script) as provider:
        backend = PassthroughBackend(provider.url)
        status, returned, _, finish = await relay(backend, make_call())
        await backend.aclose()
    assert status == 307 and returned["location"].endswith("/else") and finish.state is RecordState.FAILED


async def test_a_configured_model_changes_only_that_value() -> None:
    async with ScriptedProvider(Script([ANSWER])) as provider:
        backend = PassthroughBackend(provider.url, model="big")
        await relay(backend, make_call(b'{"messages": [{"model": "x"}],\n  "model" : "m", "n": 1.0}'))
        await relay(backend, make_call(b'{"messages": []}'))
        await backend.aclose()
    assert provider.seen[0].raw == b'{"messages": [{"model": "x"}],\n  "model" : "big", "n": 1.0}'
    assert json.loads(provider.seen[1].raw) == {"model": "big", "messages": []}


async def test_models_and_count_tokens_are_relayed() -> None:
    scripts = Script([b'{"data": []}']), Script([b'{"input_tokens": 5}'])
    async with ScriptedProvider(*scripts) as provider:
        backend = PassthroughBackend(provider.url + "/v1/")
        assert await backend.models((("authorization", "Bearer me"), ("x-other", "1"))) == {"data": []}
        counted = await backend.count_tokens(make_call(path="/v1/messages/count_tokens", query="beta=true"))
        await backend.aclose()
    assert counted == {"input_tokens": 5}
    assert [(one.method, one.target) for one in provider.seen] == [
        ("GET", "/v1/models"),
        ("POST", "/v1/messages/count_tokens?beta=true"),
    ]
    assert dict(provider.seen[0].headers)["authorization"] == "Bearer me"


async def test_proxies_are_for_far_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "inside.test")
    assert proxy_for("http://127.0.0.1:11434/v1") is None
    assert proxy_for("http://localhost:11434/v1") is None
    assert proxy_for("http://inside.test/v1") is None
    assert proxy_for("http://models.test/v1") == "http://127.0.0.1:9"


@pytest.mark.parametrize("status", [600, 999])
async def test_what_is_no_http_status_is_an_error(status: int) -> None:
    async with ScriptedProvider(Script([ANSWER], status=status)) as server:
        backend = PassthroughBackend(server.url)
        with pytest.raises(UpstreamError, match=str(status)):
            await backend.chat(make_call())
        await backend.aclose()


async def test_header_text_beyond_ascii_passes_as_it_came() -> None:
    sent = "café 海".encode().decode("latin-1")  # as a server reads it from the wire
    async with ScriptedProvider(Script([ANSWER])) as server:
        backend = PassthroughBackend(server.url)
        await relay(backend, make_call(headers=(("x-title", sent),)))
        assert dict(server.seen[0].headers)["x-title"] == "café 海"
        await backend.aclose()


async def test_a_side_request_that_is_given_up_leaves_no_answer_open() -> None:
    async with ScriptedProvider(Script([b" "] * 1000, pause_s=0.05)) as provider:
        backend = PassthroughBackend(provider.url)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.models(), 0.5)
        async with asyncio.timeout(20):
            while not provider.gone:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await backend.aclose()
