"""The parties of benchmarks/gateway.py, each its own process: a scripted model server and four ways to stand before it.

    python -m benchmarks.servers model PORT
    python -m benchmarks.servers passthrough|recorder|starlette PORT UPSTREAM [FILE]

``passthrough`` is an aiohttp server with aiohttp's pooled client and keeps nothing: what a Python gateway costs at least.
``recorder`` adds one writer thread with group commit (SQLite, WAL, synchronous=FULL) and answers after the commit: what durable
recording costs at least. Both run on asyncio's own loop, as ``web.run_app`` does. ``starlette`` is the usual pair of Starlette
and httpx (on uvloop, as uvicorn does), and keeps nothing.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

HOP = frozenset({"host", "content-length", "connection", "transfer-encoding"})
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
TEXT = "the answer of a scripted model is short and always the same, so that only the way to it is measured " * 4


class Model(asyncio.Protocol):
    """Answers chat calls at once from bytes made beforehand. The number of chunks is asked for in ``max_tokens``, a pause
    between them (ms) in ``seed``."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Stop a stream nobody reads."""
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer each whole request in the buffer."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + size:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + size])
            del self._buffer[: end + 4 + size]
            if b'"stream": true' in body or b'"stream":true' in body:
                asked = json.loads(body)
                self._task = asyncio.ensure_future(self._stream(asked["max_tokens"], asked.get("seed", 0) / 1000))
            else:
                self._transport.write(PLAIN)

    async def _stream(self, count: int, pause_s: float) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        frames = _frames(count)
        if not pause_s:
            self._transport.write(b"".join(frames))
        for frame in frames if pause_s else ():
            self._transport.write(frame)
            await asyncio.sleep(pause_s)
        self._transport.write(b"0\r\n\r\n")


def _plain() -> bytes:
    body = json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 60, "total_tokens": 160},
        }
    ).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


PLAIN = _plain()
_MADE: dict[int, list[bytes]] = {}


def stream_body(count: int) -> bytes:
    """The whole body of a streamed answer of ``count`` words."""
    return b"".join(frame.split(b"\r\n", 1)[1][:-2] for frame in _frames(count))


def _frames(count: int) -> list[bytes]:
    if count not in _MADE:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        deltas = [{"delta": {"content": f"word{at} "}, "finish_reason": None} for at in range(count)]
        deltas.append({"delta": {}, "finish_reason": "stop"})
        events = [json.dumps({**head, "choices": [{"index": 0, **delta}]}) for delta in deltas]
        data = [f"data: {event}\n\n".encode() for event in (*events, "[DONE]")]
        _MADE[count] = [b"%x\r\n%s\r\n" % (len(one), one) for one in data]
    return _MADE[count]


async def model(port: int) -> None:
    """Serve until ended."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


async def _session(app: web.Application) -> AsyncIterator[None]:
    app["client"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
    yield
    await app["client"].close()


async def passed(request: web.Request) -> web.StreamResponse:
    """One call passed on and forgotten."""
    body = await request.read()
    headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
    async with request.app["client"].post(request.app["up"] + request.path, data=body, headers=headers) as answer:
        kind = {"content-type": answer.headers["content-type"]}
        if "event-stream" not in kind["content-type"]:
            return web.Response(body=await answer.read(), status=answer.status, headers=kind)
        out = web.StreamResponse(status=answer.status, headers=kind)
        await out.prepare(request)
        async for chunk in answer.content.iter_any():
            await out.write(chunk)
        return out


async def recorded(request: web.Request) -> web.StreamResponse:
    """One call passed on; its end is held back until request and answer are on disk."""
    body = await request.read()
    json.loads(body)
    headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
    record_id = uuid.uuid4().hex
    async with request.app["client"].post(request.app["up"] + request.path, data=body, headers=headers) as answer:
        kind = {"content-type": answer.headers["content-type"], "x-reef-agent-record-id": record_id}
        if "event-stream" not in kind["content-type"]:
            said = await answer.read()
            await request.app["keep"](record_id, body, said)
            return web.Response(body=said, status=answer.status, headers=kind)
        out = web.StreamResponse(status=answer.status, headers=kind)
        await out.prepare(request)
        got = bytearray()
        async for chunk in answer.content.iter_any():
            got += chunk
            cut = chunk.find(b"data: [DONE]")
            if cut >= 0:
                await request.app["keep"](record_id, body, bytes(got))
            await out.write(chunk)
        return out


class Recorder:
    """One writer thread, one transaction for whatever waits."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[tuple[asyncio.Future[None], tuple[str, float, bytes, bytes]]] = (
            queue.SimpleQueue()
        )

    def keep(self, record_id: str, request: bytes, answer: bytes) -> asyncio.Future[None]:
        """Done once the row is on disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put((future, (record_id, time.time(), request, answer)))
        return future

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """The writer's loop."""
        db = sqlite3.connect(self._path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE records(id TEXT PRIMARY KEY, at REAL, request BLOB, answer BLOB)")
        while True:
            batch = [self._queue.get()]
            while len(batch) < 512 and not self._queue.empty():
                batch.append(self._queue.get())
            db.executemany("INSERT INTO records VALUES (?,?,?,?)", [row for _, row in batch])
            db.commit()
            loop.call_soon_threadsafe(_done, [future for future, _ in batch])


def _done(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def aiohttp_server(port: int, upstream: str, file: str | None) -> None:
    """``passthrough``, or ``recorder`` when a file is given."""
    app = web.Application(client_max_size=64 << 20)
    app["up"] = upstream
    app.cleanup_ctx.append(_session)
    if file is not None:
        recorder = Recorder(file)
        app["keep"] = recorder.keep
        threading.Thread(target=recorder.run, args=(asyncio.get_running_loop(),), daemon=True).start()
    for path in PATHS:
        app.router.add_post(path, recorded if file is not None else passed)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


def starlette_server(port: int, upstream: str) -> None:
    """The usual pair."""
    import contextlib

    import httpx
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
        async with httpx.AsyncClient(base_url=upstream, timeout=300, limits=limits) as client:
            app.state.client = client
            yield

    async def call(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP]
        client: httpx.AsyncClient = request.app.state.client
        sent = client.build_request("POST", request.url.path, content=await request.body(), headers=headers)
        answer = await client.send(sent, stream=True)
        kind = answer.headers["content-type"]
        if "event-stream" in kind:
            return StreamingResponse(answer.aiter_raw(), answer.status_code, media_type=kind)
        return Response(await answer.aread(), answer.status_code, media_type=kind)

    app = Starlette(routes=[Route(path, call, methods=["POST"]) for path in PATHS], lifespan=life)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def main() -> None:
    """One party, by name."""
    kind, port, *rest = sys.argv[1:]
    if kind == "starlette":
        starlette_server(int(port), rest[0])
    elif kind == "model":
        uvloop.run(model(int(port)))
    else:
        asyncio.run(aiohttp_server(int(port), rest[0], rest[1] if kind == "recorder" else None))


if __name__ == "__main__":
    main()
