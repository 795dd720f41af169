"""Streams that are not as they should be: late refusals, plain bodies, codings, odd line ends, a store that fails."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.server
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from reef.config import load
from reef.core.records_types import RecordState
from reef.daemon.app import build_app
from reef.daemon.services import Services
from reef.inference.base import Answer, Call
from reef.inference.testing import Script, ScriptedProvider
from tests.daemon.test_gateway import ANSWER, CHAT, JSON, SSE, STREAM, chunk
from tests.support import daemon, provider

HEADERS = {"authorization": "Bearer a-test-token", "x-reef-scenario": "s"}
RECEIPT = "x-reef-agent-record-id"
NOISE = random.Random(0).randbytes(100_000).hex()


@contextlib.asynccontextmanager
async def app_at(home: Path, upstream: str, **settings: str) -> AsyncIterator[tuple[Starlette, httpx.AsyncClient]]:
    overrides = {"reef.upstream_url": upstream} | {f"reef.{key}": value for key, value in settings.items()}
    app = build_app(load(None, overrides=overrides, environ={}, home=home), "a-test-token")
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=HEADERS)
    async with app.router.lifespan_context(app), client:
        while (await client.get("/healthz")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield app, client


@contextlib.contextmanager
def late_provider(status: int, body: bytes, content_type: str) -> Iterator[str]:
    """Sends even its headers only after a while."""

    class Late(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            time.sleep(0.5)
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Late) as url:
        yield url


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


async def stream(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={**CHAT, "stream": True})


async def record(client: httpx.AsyncClient, response: httpx.Response) -> dict[str, object]:
    found: dict[str, object] = (await client.get(f"/reef/records/{response.headers[RECEIPT]}")).json()
    return found


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [(429, b'{"error":{"message":"slow down"}}', "upstream_429"), (200, ANSWER, "no_event_stream")],
)
async def test_an_answer_that_is_no_stream_and_late_is_told_in_an_event(
    tmp_path: Path, status: int, body: bytes, code: str
) -> None:
    with late_provider(status, body, "application/json") as url:
        async with app_at(tmp_path, url, keepalive_s="0.1") as (_, client):
            response = await stream(client)
            events = [line for line in response.content.split(b"\n\n") if line and not line.startswith(b":")]
            assert response.status_code == 200 and len(events) == 1
            assert json.loads(events[0].removeprefix(b"data: "))["error"]["code"] == code
            found = await record(client, response)
    assert found["response"] == json.loads(body)
    assert found["state"] == ("failed" if status == 429 else "complete")


async def test_a_server_that_stays_on_the_line_after_its_end_is_not_waited_for(tmp_path: Path) -> None:
    left = threading.Event()

    class Lingering(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"".join(STREAM))
            left.wait(60)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Lingering) as url:
        async with app_at(tmp_path, url, idle_timeout_s="30") as (_, client):
            response = await asyncio.wait_for(stream(client), 20)
            left.set()
            assert response.content == b"".join(STREAM)
            assert (await record(client, response))["state"] == "complete"


async def test_a_server_that_breaks_off_after_its_end_has_ended(tmp_path: Path) -> None:
    upstream = ScriptedProvider(Script(STREAM, headers=SSE, cut=True))
    async with upstream, app_at(tmp_path, upstream.url) as (_, client):
        response = await stream(client)
        assert response.content == b"".join(STREAM)
        assert (await record(client, response))["state"] == "complete"


async def test_a_bug_behind_a_stream_leaves_no_open_row(tmp_path: Path) -> None:
    async def broken(call: Call) -> Answer:
        raise KeyError("a bug")

    async with app_at(tmp_path, "http://127.0.0.1:9") as (app, client):
        services: Services = app.state.services
        await services.scenarios.open("s")
        services.backend.chat = broken  # type: ignore[method-assign]
        assert (await stream(client)).status_code == 500
        services.records.store.write(lambda db: None)  # behind what the answer left to be written
        (row,) = services.records.page("s")
        assert (row.record.state, row.record.reason) == (RecordState.ABORTED, "reef_failed: see the log")


async def test_a_stream_that_only_begins_late_is_whole(tmp_path: Path) -> None:
    with late_provider(200, b"".join(STREAM), "text/event-stream") as url:
        async with app_at(tmp_path, url, keepalive_s="0.1") as (_, client):
            response = await stream(client)
            assert response.content.replace(b": keep-alive\n\n", b"") == b"".join(STREAM)
            assert (await record(client, response))["state"] == "complete"


def test_silence_is_bridged_whatever_the_line_ends(tmp_path: Path) -> None:
    crlf = [event.replace(b"\n\n", b"\r\n\r\n") for event in STREAM]
    with (
        provider(Script(crlf, headers=SSE, pause_s=0.3)) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url, reef_keepalive_s="0.1") as one,
        one.client() as client,
        client.stream(CHAT) as response,
    ):
        passed = response.read()
    assert passed.count(b": keep-alive\n\n") >= 3
    assert passed.replace(b": keep-alive\n\n", b"") == b"".join(crlf)


@pytest.mark.parametrize("kind", ["plain", "gzip"])
def test_nothing_is_put_into_a_body_that_has_no_readable_events(tmp_path: Path, kind: str) -> None:
    whole = ANSWER if kind == "plain" else gzip.compress(b"".join(STREAM))
    headers = JSON if kind == "plain" else (*SSE, ("content-encoding", "gzip"))
    pieces = [b"", whole[:10], whole[10:30], whole[30:]]
    with (
        provider(Script(pieces, headers=headers, pause_s=0.3)) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url, reef_keepalive_s="0.1") as one,
        one.client() as client,
    ):
        with client.stream(CHAT) as response:
            passed = b"".join(response.iter_raw())
            receipt = response.headers[RECEIPT]
        assert passed == whole
        assert client.record(receipt)["state"] == "complete"


@pytest.mark.parametrize("streamed", [False, True])
async def test_headers_that_are_ours_never_come_from_the_upstream(tmp_path: Path, streamed: bool) -> None:
    foreign = ((RECEIPT, "not-ours"), ("x-reef-release-id", "r99"))
    script = Script(STREAM, headers=(*SSE, *foreign)) if streamed else Script([ANSWER], headers=(*JSON, *foreign))
    async with ScriptedProvider(script) as upstream, app_at(tmp_path, upstream.url) as (_, client):
        response = await client.post("/v1/chat/completions", json={**CHAT, "stream": streamed})
        assert "not-ours" not in response.headers[RECEIPT]
        assert "x-reef-release-id" not in response.headers
        assert (await record(client, response))["state"] == "complete"


def fill_disk(app: Starlette, full: bool) -> None:
    """The database may not grow any more, as on a full disk; or it may again."""
    pages = 1 if full else 2**30  # never under what it has
    app.state.services.records.store.submit(lambda db: db.execute(f"PRAGMA max_page_count={pages}")).result()


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_goes_out_without_a_receipt_and_the_daemon_recovers(tmp_path: Path, streamed: bool) -> None:
    script = Script(STREAM, headers=SSE) if streamed else Script([ANSWER], headers=JSON)
    big = {"model": "m", "messages": [{"role": "user", "content": NOISE}], "stream": streamed}
    async with ScriptedProvider(script) as upstream, app_at(tmp_path, upstream.url) as (app, client):
        await client.post("/reef/scenarios", json={"name": "s"})
        fill_disk(app, True)
        response = await client.post("/v1/chat/completions", json=big)
        assert response.content == (b"".join(STREAM) if streamed else ANSWER)
        assert RECEIPT not in response.headers
        assert response.headers["x-reef-unrecorded"] == "store_full"
        assert (await client.get("/healthz")).json()["status"] == "degraded"
        fill_disk(app, False)
        response = await client.post("/v1/chat/completions", json=big)
        assert (await record(client, response))["state"] == "complete"
        assert (await client.get("/healthz")).json()["status"] == "ok"


async def test_a_stream_whose_end_cannot_be_kept_is_refused_in_band(tmp_path: Path) -> None:
    script = Script([chunk(content=NOISE), *STREAM], headers=SSE, pause_s=0.2)
    async with (
        ScriptedProvider(script) as upstream,
        app_at(tmp_path, upstream.url, on_store_failure="refuse") as (app, client),
    ):
        await client.post("/reef/scenarios", json={"name": "s"})
        answering = asyncio.ensure_future(stream(client))
        while not (await client.get("/reef/scenarios/s/records", params={"state": "open"})).json()["records"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        fill_disk(app, True)
        response = await answering
    assert b"[DONE]" not in response.content
    assert json.loads(response.content.strip().split(b"data: ")[-1])["error"]["code"] == "store_full"


async def test_what_came_of_a_plain_body_that_breaks_off_is_passed_on(tmp_path: Path) -> None:
    script = Script([ANSWER[:40]], headers=[*JSON, ("content-length", str(len(ANSWER)))], cut=True)
    async with ScriptedProvider(script) as upstream, app_at(tmp_path, upstream.url) as (_, client):
        answer = await stream(client)
        assert answer.content == ANSWER[:40]
        kept = await record(client, answer)
        assert kept["state"] == "incomplete"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        ANSWER.replace(b'"m-1"', rb'"\ud800"').replace(b'"prompt_tokens": 3', b'"prompt_tokens": %d' % 10**30),
        ANSWER.replace(b'"kept": true', b'"kept": NaN, "deep": ' + b"[" * 300 + b"]" * 300),
        b'{"choices": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'data: {"choices": [null]}\n\n',
    ],
)
async def test_an_answer_that_is_odd_goes_out_whole_with_a_receipt_that_can_be_read(
    tmp_path: Path, body: bytes, streamed: bool
) -> None:
    async with (
        ScriptedProvider(Script([body], headers=JSON)) as upstream,
        app_at(tmp_path, upstream.url) as (_, client),
    ):
        answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": streamed})
        assert (answer.status_code, answer.content) == (200, body)
        await record(client, answer)


async def test_an_answer_whose_coding_cannot_be_read_has_a_receipt_that_can_be_read(tmp_path: Path) -> None:
    script = Script([b"not gzip"], headers=[*JSON, ("content-encoding", "gzip")])
    async with ScriptedProvider(script) as upstream, app_at(tmp_path, upstream.url) as (_, client):
        request = client.build_request("POST", "/v1/chat/completions", json=CHAT)
        answer = await client.send(request, stream=True)  # its body is not read: the client would fail to unpack it
        assert [part async for part in answer.aiter_raw()] == [b"not gzip"]
        kept = await record(client, answer)
        assert (kept["state"], kept["response"]) == ("incomplete", None)


async def test_a_session_of_half_a_character_is_kept(tmp_path: Path) -> None:
    body = json.dumps({**CHAT, "prompt_cache_key": "key \ud800"})
    async with ScriptedProvider(Script([ANSWER])) as upstream, app_at(tmp_path, upstream.url) as (_, client):
        answer = await client.post("/v1/chat/completions", content=body)
        kept = await record(client, answer)
        assert (answer.status_code, kept["session"]) == (200, "key ?")


@pytest.mark.parametrize("what", ["digits", "depth"])
async def test_numbers_and_depths_that_cannot_be_kept_are_refused(tmp_path: Path, what: str) -> None:
    async with ScriptedProvider(Script([ANSWER])) as upstream, app_at(tmp_path, upstream.url) as (_, client):
        if what == "digits":
            answer = await client.post("/v1/chat/completions", content=b'{"messages": [], "x": ' + b"9" * 6000 + b"}")
        else:
            nested = b"[" * 1000 + b"]" * 1000
            answer = await client.post("/reef/report", content=b'{"references": ["a"], "feedback": ' + nested + b"}")
        assert answer.status_code == 400 and not upstream.seen
