"""The gateway in front of a scripted provider, as a real process: what goes through, what is kept, who is let in."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from reef.client import RemoteError
from reef.inference.testing import Script, ScriptedProvider
from tests.support import Daemon, daemon, eventually, provider

JSON = (("content-type", "application/json"), ("x-request-id", "req-1"), ("x-ratelimit-remaining", "7"))
SSE = (("content-type", "text/event-stream"),)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = json.dumps(
    {
        "id": "c1",
        "model": "m-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "naïve 海"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "new_field": {"kept": True},
    }
).encode()


def chunk(**delta: Any) -> bytes:
    finish = delta.pop("finish", None)
    event = {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


STREAM = [
    chunk(role="assistant"),
    chunk(content="naïve "),
    chunk(content="海"),
    chunk(finish="stop"),
    b"data: [DONE]\n\n",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, ScriptedProvider]]:
    home = tmp_path_factory.mktemp("gateway")
    with provider(Script()) as upstream, daemon(home, reef_upstream_url=upstream.url, reef_keepalive_s="0.3") as one:
        yield one, upstream


def play(upstream: ScriptedProvider, script: Script) -> None:
    upstream.scripts[:] = [script]
    upstream.seen.clear()
    upstream.gone = 0


def post(one: Daemon, path: str = "/v1/chat/completions", body: Any = CHAT, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with one.client() as client:
        extra = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return client.http.post(path, content=content, headers=extra)


def record_of(one: Daemon, response: httpx.Response) -> dict[str, Any]:
    with one.client() as client:
        return client.record(response.headers["x-reef-agent-record-id"])


def test_bytes_status_and_headers_go_through_and_are_recorded(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([ANSWER], headers=JSON))
    body = b'{ "model" : "m",\n "messages":[{"role":"user","content":"caf\xc3\xa9"}], "beta_field":[1,2] }'
    response = post(one, body=body, anthropic_beta="x-1", authorization="Bearer sk-provider")
    assert response.content == ANSWER
    assert response.headers["x-request-id"] == "req-1"
    assert response.headers["x-ratelimit-remaining"] == "7"
    sent = upstream.seen[0]
    assert sent.raw == body
    headers = dict(sent.headers)
    assert headers["authorization"] == "Bearer sk-provider"
    assert headers["anthropic-beta"] == "x-1"
    assert not any(name.startswith("x-reef-") for name in headers)
    record = record_of(one, response)
    assert record["state"] == "complete"
    assert record["response"] == json.loads(ANSWER)
    assert record["usage"]["output_tokens"] == 2
    with one.client() as client:
        kept = client.http.get(f"/reef/records/{record['agent_record_id']}/request").content
    assert kept == body


@pytest.mark.parametrize("cut", ["events", "bytes"])
def test_a_stream_goes_through_and_is_recorded_however_it_is_cut(
    world: tuple[Daemon, ScriptedProvider], cut: str
) -> None:
    one, upstream = world
    whole = b"".join(STREAM)
    pieces = STREAM if cut == "events" else [whole[at : at + 1] for at in range(len(whole))]
    play(upstream, Script(pieces, headers=SSE))
    response = post(one, body={**CHAT, "stream": True})
    assert response.content == whole
    record = record_of(one, response)
    assert record["state"] == "complete"
    assert record["response"]["choices"][0]["message"]["content"] == "naïve 海"


def test_the_receipt_of_a_stream_is_durable_before_its_end(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script(STREAM, headers=SSE, pause_s=0.2))
    with one.client() as client, client.stream(CHAT) as response:
        receipt = response.headers["x-reef-agent-record-id"]
        assert client.record(receipt)["state"] == "open"
        found = client.report(score=1, references=[receipt])
        assert found["state"] == "parked"
        response.read()
        assert client.record(receipt)["state"] == "complete"


def test_an_upstream_that_dies_in_mid_stream_is_told_in_band(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script(STREAM[:3], headers=SSE, cut=True))
    response = post(one, body={**CHAT, "stream": True})
    assert response.content.startswith(b"".join(STREAM[:3]))
    assert b"[DONE]" not in response.content
    assert "error" in json.loads(response.content.strip().split(b"data: ")[-1])
    assert record_of(one, response)["state"] == "incomplete"


def test_a_stream_that_ends_without_its_mark_is_incomplete(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script(STREAM[:2], headers=SSE))
    response = post(one, body={**CHAT, "stream": True})
    assert b"[DONE]" not in response.content
    assert record_of(one, response)["state"] == "incomplete"


def test_a_client_that_leaves_cancels_the_upstream(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script(STREAM * 100, headers=SSE, pause_s=0.1))
    with one.client() as client:
        with client.stream(CHAT) as response:
            receipt = response.headers["x-reef-agent-record-id"]
            next(response.iter_raw())
        eventually(lambda: upstream.gone, 10)
        record = eventually(lambda: (found := client.record(receipt))["state"] != "open" and found, 10)
    assert (record["state"], record["reason"]["code"]) == ("aborted", "client_gone")


def test_a_client_that_leaves_a_plain_call_cancels_the_upstream(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([b" "] * 200, headers=JSON, pause_s=0.1))
    with one.client(timeout_s=0.5) as client, pytest.raises(Exception, match=r"timed out|no answer"):
        client.call(CHAT)
    eventually(lambda: upstream.gone, 10)


def test_errors_keep_status_and_headers_and_are_recorded(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    body = b'{"error":{"message":"slow down","type":"rate_limit"}}'
    play(upstream, Script([body], status=429, headers=(*JSON, ("retry-after", "3"))))
    for stream in (False, True):
        response = post(one, body={**CHAT, "stream": stream})
        assert (response.status_code, response.content, response.headers["retry-after"]) == (429, body, "3")
        record = record_of(one, response)
        assert (record["state"], record["reason"]["code"]) == ("failed", "upstream_429")
    assert len(upstream.seen) == 2, "nothing is retried"


def test_an_upstream_that_is_not_there_is_a_clear_error_with_a_receipt(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one:
        for path, shape in (("/v1/chat/completions", "openai"), ("/v1/messages", "anthropic")):
            response = post(one, path)
            assert response.status_code == 502
            error = response.json()
            assert ("type" in error and error["type"] == "error") is (shape == "anthropic")
            assert "cannot be reached" in error["error"]["message"]
            assert record_of(one, response)["state"] == "failed"


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)])
def test_compressed_requests_are_read_and_passed_on_plain(
    world: tuple[Daemon, ScriptedProvider], coding: str, pack: Any
) -> None:
    one, upstream = world
    play(upstream, Script([ANSWER], headers=JSON))
    raw = json.dumps(CHAT).encode()
    response = post(one, body=pack(raw), content_encoding=coding)
    assert response.status_code == 200
    assert upstream.seen[0].raw == raw
    assert "content-encoding" not in dict(upstream.seen[0].headers)


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (b"{", {}, 400, "not JSON"),
        (b"[]", {}, 400, "must be a JSON object"),
        (b"\xff\xfe", {}, 400, "not UTF-8"),
        (b"{}", {"content_encoding": "gzip"}, 400, ""),
        (b"{}", {"content_encoding": "br2"}, 415, ""),
        (b"{}", {"x_reef_scenario": "../x"}, 400, "not a valid name"),
    ],
)
def test_bad_input_is_refused_and_never_reaches_the_provider(
    world: tuple[Daemon, ScriptedProvider], body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    one, upstream = world
    play(upstream, Script([ANSWER], headers=JSON))
    response = post(one, body=body, **headers)
    assert response.status_code == status
    assert said in response.json()["error"]["message"]
    assert not upstream.seen


def test_silence_is_bridged_with_comments(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([STREAM[0], *STREAM[1:]], headers=SSE, pause_s=0.7))
    response = post(one, body={**CHAT, "stream": True})
    assert b": keep-alive\n\n" in response.content
    assert response.content.replace(b": keep-alive\n\n", b"") == b"".join(STREAM)


def test_the_door(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, _ = world
    token = (one.home / "token").read_text().strip()
    bearer = {"authorization": f"Bearer {token}"}
    for path in ("/v1/models", "/reef/status", "/reef/scenarios"):
        assert httpx.get(one.url + path).status_code == 401
        assert httpx.get(one.url + path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert httpx.get(one.url + path, headers={**bearer, "host": "evil.test:80"}).status_code == 403
        assert httpx.get(one.url + path, headers={**bearer, "origin": "http://evil.test"}).status_code == 403
        assert httpx.get(f"{one.url}{path}?token={token}").status_code == 401
    assert httpx.get(one.url + "/healthz", headers={"host": "evil.test"}).status_code == 403
    assert httpx.get(one.url + "/healthz").status_code == httpx.head(one.url + "/").status_code == 200
    assert httpx.get(one.url + "/reef/status", headers={"x-api-key": token}).status_code == 200
    assert (one.home / "token").stat().st_mode & 0o777 == 0o600


def test_the_reef_token_never_goes_upstream(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([ANSWER], headers=JSON))
    token = (one.home / "token").read_text().strip()
    for header in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}):
        httpx.post(one.url + "/v1/chat/completions", json=CHAT, headers=header)
    odd = {"x-api-key": token, "referer": f"http://here/?token={token}", "x-odd": f"a={token};b=1"}
    httpx.post(f"{one.url}/v1/chat/completions?beta=true&key={token}", json=CHAT, headers=odd)
    assert all(token not in value for seen in upstream.seen for _, value in seen.headers)
    assert upstream.seen[-1].target == "/v1/chat/completions?beta=true"


def test_a_websocket_attempt_falls_back(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, _ = world
    with one.client() as client:
        headers = {"connection": "upgrade", "upgrade": "websocket"}
        assert client.http.get("/v1/responses", headers=headers).status_code == 426


def test_sessions_come_from_the_clients_own_header(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([ANSWER], headers=JSON))
    for header in ("x_reef_session", "x_claude_code_session_id", "session_id", "x_session_affinity"):
        response = post(one, **{header: f"run-{header}"})
        assert record_of(one, response)["session"] == f"run-{header}"


def test_a_session_and_a_tag_are_kept_as_they_are_written(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([ANSWER], headers=JSON))
    with one.client() as client:
        headers = {b"x-reef-tag-town": "Münster".encode(), b"x-reef-tag-odd": b"\xff"}
        response = client.http.post(
            "/v1/chat/completions", json=CHAT, headers={**headers, b"x-reef-session": "海".encode()}
        )
        found = client.record(response.headers["x-reef-agent-record-id"])
        assert (found["session"], found["meta"]["tags"]) == ("海", {"town": "Münster", "odd": "ÿ"})
        client.call(CHAT, session="Köln")
        with client.stream(CHAT, session="Köln") as streamed:
            streamed.read()
        assert len(client.records("s", session="Köln")) == 2
        assert len(client.report(score=1, session="Köln")["references"]) == 2


def test_many_clients_get_their_own_answers(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([ANSWER], headers=JSON))
    receipts: dict[str, str] = {}

    def run(name: str) -> None:
        with one.client(scenario=f"many-{name[0]}") as client:
            for turn in range(5):
                text = f"{name}-{turn}"
                response = client.call({**CHAT, "messages": [{"role": "user", "content": text}]})
                receipts[response.headers["x-reef-agent-record-id"]] = text

    threads = [threading.Thread(target=run, args=(f"{index % 4}{index}",)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receipts) == 80
    with one.client() as client:
        for receipt, text in receipts.items():
            record = client.record(receipt)
            assert record["request"]["messages"][0]["content"] == text
            assert record["scenario"] == f"many-{text[0]}"


def test_garbage_on_the_socket_does_not_hurt(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, _ = world
    host, port = one.url.removeprefix("http://").split(":")
    for garbage in (
        b"\x00" * 2000,
        b"GET / HTTP/1.1\r\nhost: " + b"a" * 100_000,
        b"POST /v1/messages HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(garbage)
    with one.client() as client:
        assert client.ready()


def test_unknown_routes_and_methods_say_so(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, _ = world
    with one.client() as client:
        with pytest.raises(RemoteError, match="no route GET /reef/nothing") as failed:
            client.get("/reef/nothing")
        assert failed.value.exit_code == 4
        assert client.http.delete("/reef/status").status_code == 405


def test_a_client_that_leaves_before_its_request_is_whole_is_no_fault(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    play(upstream, Script([ANSWER], headers=JSON))
    host, port = one.url.removeprefix("http://").split(":")
    token = (one.home / "token").read_text(encoding="utf-8").strip()
    for path in ("/v1/chat/completions", "/reef/report"):
        with socket.create_connection((host, int(port))) as one_socket:
            head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nx-reef-token: {token}\r\ncontent-length: 99\r\n\r\n"
            one_socket.sendall(head.encode() + b'{"mod')
    assert post(one).status_code == 200
    said = (one.home / "logs" / "reef.jsonl").read_text(encoding="utf-8")
    assert "bug while answering" not in said and "Exception in ASGI" not in said
