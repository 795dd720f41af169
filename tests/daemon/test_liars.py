"""Model servers that do not keep to the protocol: the client gets what can be given, in time, with a receipt that can be read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.server
import json
import threading
from pathlib import Path

import pytest

from reef.inference.testing import Script, ScriptedProvider
from tests.contract.test_hops import counting
from tests.daemon.test_gateway import ANSWER, CHAT, JSON, SSE, STREAM
from tests.daemon.test_relay import NOISE, app_at, record, serving, stream
from tests.support import daemon, provider

RESPONSE = {"id": "r1", "object": "response", "status": "completed", "model": "m", "output": []}


def test_an_end_in_carriage_returns_is_read_at_once_where_it_is_translated(tmp_path: Path) -> None:
    """The last of them may be half of a line's end, but what stands before it is whole."""
    events = b"".join(STREAM).replace(b"\n", b"\r")
    settings = {"reef_upstream_api": "chat", "reef_idle_timeout_s": "3"}
    with (
        provider(Script([events], headers=SSE, pause_s=20)) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url, **settings) as one,
        one.client() as client,
        client.stream({**CHAT, "max_tokens": 9}, path="/v1/messages") as response,
    ):
        assert b"message_stop" in response.read()


@pytest.mark.parametrize(
    ("events", "then"),
    [
        (b"".join(STREAM), b": still here\n\n"),
        (b"".join(STREAM).removesuffix(b"\n"), b""),
        (b"".join(STREAM).replace(b"\n", b"\r"), b""),
    ],
    ids=["talks on", "no blank line", "carriage returns"],
)
async def test_a_server_that_does_not_let_go_after_its_end_is_left(tmp_path: Path, events: bytes, then: bytes) -> None:
    done = threading.Event()

    class Clinging(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(events)
            while not done.wait(0.2):
                self.wfile.write(then)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Clinging) as url:
        async with app_at(tmp_path, url, idle_timeout_s="60") as (_, client):
            try:
                response = await asyncio.wait_for(stream(client), 20)
            finally:
                done.set()
            assert response.content.startswith(events) and not response.content[len(events) :].replace(then, b"")
            assert (await record(client, response))["state"] == "complete"


@pytest.mark.parametrize("gap", [b"", b" "])
def test_the_end_of_events_without_names_is_held_back_too(tmp_path: Path, gap: bytes) -> None:
    """The record is complete before the client hears that the answer has ended."""
    begin = b'data: {"type":"response.created","response":{"id":"r1"}}\n\n'
    end = b'data: {"type":%b"response.completed","response":%b}\n\n' % (gap, json.dumps(RESPONSE).encode())
    with (
        provider(Script([begin, end], headers=SSE, pause_s=0.5)) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url) as one,
        one.client() as client,
        client.stream({"model": "m", "input": "hi"}, path="/v1/responses") as response,
    ):
        said = b""
        for part in response.iter_raw():
            said += part
            if b"response.completed" in said:
                assert client.record(response.headers["x-reef-agent-record-id"])["state"] == "complete"
    assert said == begin + end


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_header_that_no_answer_may_carry_is_left_out(tmp_path: Path, streamed: bool) -> None:
    class Odd(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("x-odd", "a\x01b")
            self.send_header("x-even", "kept")
            self.send_header("content-length", str(len(ANSWER)))
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Odd) as url, daemon(tmp_path, reef_upstream_url=url) as one, one.client() as client:
        answer = client.http.post("/v1/chat/completions", json={**CHAT, "stream": streamed})
        assert (answer.status_code, answer.content, answer.headers["x-even"]) == (200, ANSWER, "kept")
        assert "x-odd" not in answer.headers
        assert client.record(answer.headers["x-reef-agent-record-id"])["state"] == "complete"


async def test_an_answer_packed_into_very_many_pieces_is_read_like_any_other(tmp_path: Path) -> None:
    """It took a quarter of an hour when what was left was copied for each piece."""
    packed = gzip.compress(ANSWER) + gzip.compress(b"") * 700_000
    script = Script([packed], headers=[*JSON, ("content-encoding", "gzip")])
    async with ScriptedProvider(script) as upstream, app_at(tmp_path, upstream.url) as (_, client):
        answer = await client.post("/v1/chat/completions", json=CHAT, headers={"accept-encoding": "identity"})
        assert (await record(client, answer))["response"] == json.loads(ANSWER)


@pytest.mark.parametrize("kind", ["plain", "streamed", "streamed without events", "translated", "translated stream"])
async def test_an_answer_without_an_end_is_ended_by_its_size(tmp_path: Path, kind: str) -> None:
    class Endless(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json" if "events" in kind else SSE[0][1])
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while not done.is_set():
                    self.wfile.write(STREAM[0] * 100)

        def log_message(self, format: str, *args: object) -> None:
            pass

    done = threading.Event()
    path = "/v1/messages" if "translated" in kind else "/v1/chat/completions"
    settings = {"max_answer_mb": "0.5", "upstream_api": "chat"}
    with serving(Endless) as url:
        async with app_at(tmp_path, url, **settings) as (_, client):
            asked = {**CHAT, "max_tokens": 9, "stream": "stream" in kind}
            try:
                response = await asyncio.wait_for(client.post(path, json=asked), 20)
            finally:
                done.set()
            kept = await record(client, response)
            assert kept["state"] == ("failed" if kind == "translated" else "incomplete")
            assert kept["reason"]["code"] == "answer_too_large"
            if "stream" not in kind:
                assert response.status_code == 502 and "reef.max_answer_mb" in response.text
            elif kind == "streamed without events":
                assert len(response.content) == 2**19
            else:
                assert b"reef.max_answer_mb" in response.content.split(b"\n\n")[-2]


MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m1","model":"m","usage":{"input_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("speaks", ["chat", "messages"])
@pytest.mark.parametrize("then", [b"", b": still here\n\n"], ids=["no blank line", "talks on"])
async def test_the_end_of_a_translated_answer_is_its_end(
    tmp_path: Path, streamed: bool, speaks: str, then: bytes
) -> None:
    events = b"".join(STREAM) if speaks == "chat" else MESSAGE
    done = threading.Event()

    class Clinging(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(events if then else events.removesuffix(b"\n"))
            with contextlib.suppress(ConnectionError):
                while not done.wait(0.2):
                    self.wfile.write(then)

        def log_message(self, format: str, *args: object) -> None:
            pass

    path = "/v1/messages" if speaks == "chat" else "/v1/chat/completions"
    with serving(Clinging) as url:
        async with app_at(tmp_path, url, idle_timeout_s="60", upstream_api=speaks) as (_, client):
            try:
                asked = client.post(path, json={**CHAT, "max_tokens": 9, "stream": streamed})
                response = await asyncio.wait_for(asked, 20)
            finally:
                done.set()
            assert response.status_code == 200
            assert (await record(client, response))["state"] == "complete"


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_upstream_that_speaks_no_http_is_told_as_such(tmp_path: Path, streamed: bool) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test ESMTP\r\n")
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with app_at(tmp_path, url) as (_, client):
            answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": streamed})
            assert answer.status_code == 502 and "not HTTP" in answer.text and "cannot be reached" not in answer.text
            kept = await record(client, answer)
            assert (kept["state"], kept["reason"]["code"]) == ("failed", "upstream_error")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_large_answer_that_is_packed_is_unpacked_off_the_event_loop(
    tmp_path: Path, path: str, streamed: bool
) -> None:
    """It may unpack to very much, and other calls are answered meanwhile."""
    packed = gzip.compress(ANSWER.replace(b'"m-1"', b'"%b"' % NOISE.encode()))
    script = Script([packed], headers=[*JSON, ("content-encoding", "gzip")])
    with counting() as counter:
        async with (
            ScriptedProvider(script) as upstream,
            app_at(tmp_path, upstream.url, upstream_api="chat") as (_, client),
        ):
            counter.on = True
            answer = await client.post(path, json={**CHAT, "max_tokens": 9, "stream": streamed})
            counter.on = False
    assert answer.status_code == 200
    unpacking = [threads for code, threads in counter.entered.items() if code.co_name == "unpack"]
    assert unpacking and threading.get_ident() not in set().union(*unpacking)
