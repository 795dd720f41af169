"""Answers model calls: read the call, find the scenario, ask its backend, record, hand back the receipt.

Knows nothing of providers, engines or training. A receipt in a header is a row on disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from reef.core.records_types import RecordState, new_id
from reef.daemon.services import Services
from reef.daemon.wire import error_body, error_event, json_response, read_body
from reef.errors import BadRequest, ReefError, StoreFull, Unavailable
from reef.inference.base import ROUTES, Answer, Call, Finish
from reef.records import Exchange, ExchangeEnd
from reef.scenario import Scenario
from reef.store.bodies import split_json

log = logging.getLogger("reef.gateway")

RECEIPT = "x-reef-agent-record-id"
RELEASE = "x-reef-release-id"
UNRECORDED = "x-reef-unrecorded"

_SESSION_HEADERS = (
    "x-reef-session",
    "x-reef-tag-session",
    "x-claude-code-session-id",
    "session-id",
    "x-session-id",
    "session_id",
    "thread-id",
    "x-session-affinity",
)
_END_MARKS = {
    "chat": (b"data: [DONE]", b"data:[DONE]"),
    "messages": (b"event: message_stop", b'data: {"type":"message_stop"', b'data: {"type": "message_stop"'),
    "responses": (b"event: response.completed", b"event: response.incomplete", b"event: response.failed"),
}
_MARK_BYTES = 64


async def answer(request: Request) -> Response:
    """POST /v1/chat/completions, /v1/responses, /v1/messages."""
    services: Services = request.app.state.services
    services.require_ready()
    raw = await read_body(request, services.max_body_bytes)
    body, segments = split_json(raw)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", hint="see the provider's API reference")
    headers, name, session, meta = _read_headers(request, body, services)
    scenario = services.scenarios.get(name) or await services.scenarios.open(name)
    record_id = new_id()
    stream = body.get("stream") is True
    path = request.url.path
    call = Call(ROUTES[path], path, request.url.query, raw, body, headers, stream, name, record_id)
    serving = scenario.backend.serving(name)
    exchange = Exchange(record_id, name, segments, time.time(), session, serving, {"route": call.route, **meta})
    if stream:
        return await _streamed(services, scenario, call, exchange)
    return await _plain(request, services, scenario, call, exchange)


def _read_headers(
    request: Request, body: dict[str, Any], services: Services
) -> tuple[tuple[tuple[str, str], ...], str, str | None, dict[str, Any]]:
    """What may go upstream, the scenario's name, the session, and what is kept beside the record."""
    found: dict[str, str] = {}
    kept: list[tuple[str, str]] = []
    tags: dict[str, str] = {}
    for raw_name, raw_value in request.headers.raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = value
        if name.startswith("x-reef-"):
            if name.startswith("x-reef-tag-"):
                tags[name[11:]] = value[:256]
        elif services.token not in value:
            kept.append((name, value))
    scenario = found.get("x-reef-scenario") or services.default_scenario
    if not scenario:
        raise BadRequest("no x-reef-scenario header", hint="name the workload, e.g. x-reef-scenario: my-agent")
    session = next((found[name] for name in _SESSION_HEADERS if found.get(name)), None) or body.get("prompt_cache_key")
    meta: dict[str, Any] = {"stream": body.get("stream") is True, "client": found.get("user-agent", "")[:120]}
    if tags:
        meta["tags"] = tags
    return tuple(kept), scenario, session[:200] if isinstance(session, str) else None, meta


async def _plain(request: Request, services: Services, scenario: Scenario, call: Call, exchange: Exchange) -> Response:
    """Answer, then one commit of request and response together, then the bytes go out."""
    started = time.perf_counter()
    work = asyncio.ensure_future(_whole_answer(scenario, call))
    gone = asyncio.ensure_future(request.receive())
    await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    if not work.done():  # the client went away: stop the work upstream, keep what is known
        work.cancel()
        await asyncio.wait((work,))
        await _record(
            services, scenario, exchange, _end(Finish(RecordState.ABORTED, "client_gone"), b"", started), False
        )
        return Response(status_code=499)
    gone.cancel()
    status, headers, sent, finish, release = work.result()
    exchange = exchange if release is None else _with_release(exchange, release)
    end = _end(finish, sent, started, status, headers)
    headers.append(await _record(services, scenario, exchange, end, False))
    if exchange.release_id is not None:
        headers.append((RELEASE, exchange.release_id))
    response = Response(sent, status)
    response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    response.raw_headers.append((b"content-length", str(len(sent)).encode()))
    return response


async def _whole_answer(scenario: Scenario, call: Call) -> tuple[int, list[tuple[str, str]], bytes, Finish, str | None]:
    """Status, headers, body, how it ended, and the release that answered. An error of ours becomes a failed answer."""
    try:
        got = await scenario.backend.chat(call)
    except ReefError as error:
        body = json_response(error_body(call.path, error)).body
        headers = [("content-type", "application/json")]
        if error.status == 503:
            headers.append(("retry-after", "1"))
        return error.status, headers, bytes(body), Finish(RecordState.FAILED, error.code), None
    sent = bytearray()
    try:
        async for chunk in got.slices():
            sent += chunk
    except ReefError as error:
        finish = got.finish(bytes(sent))
        body = bytes(json_response(error_body(call.path, error)).body)
        return error.status, [("content-type", "application/json")], body, finish, got.release_id
    finally:
        await got.aclose()
    return got.status, list(got.headers), bytes(sent), got.finish(bytes(sent)), got.release_id


async def _streamed(services: Services, scenario: Scenario, call: Call, exchange: Exchange) -> Response:
    """The open row is committed while the upstream is called, so the receipt in the header block names a durable row."""
    started = time.perf_counter()
    opening = services.records.submit_exchange(exchange, None)
    pending = asyncio.ensure_future(scenario.backend.chat(call))
    recorded, receipt = True, (RECEIPT, exchange.record_id)
    try:
        await opening
    except (StoreFull, Unavailable) as error:
        if services.refuse_unrecorded:
            pending.cancel()
            raise StoreFull(error.message, hint=error.hint) from error
        services.degraded(error)
        recorded, receipt = False, (UNRECORDED, error.code)
    await asyncio.wait((pending,), timeout=services.keepalive_s)
    status, headers = 200, [("content-type", "text/event-stream"), ("cache-control", "no-cache")]
    release = exchange.release_id
    if pending.done():
        try:
            got = pending.result()
        except ReefError as error:
            body = bytes(json_response(error_body(call.path, error)).body)
            end = _end(Finish(RecordState.FAILED, error.code), body, started, error.status)
            await _close(services, scenario, exchange, end, recorded)
            return Response(body, error.status, dict([receipt]), "application/json")
        status, headers, release = got.status, list(got.headers), got.release_id or release
    headers.append(receipt)
    if release is not None:
        headers.append((RELEASE, release))
    return Relay(services, scenario, call, exchange, pending, status, headers, started, recorded)


class Relay(Response):
    """Passes slices on as they come and holds back the end until the record is complete on disk."""

    def __init__(
        self,
        services: Services,
        scenario: Scenario,
        call: Call,
        exchange: Exchange,
        pending: asyncio.Future[Answer],
        status: int,
        headers: list[tuple[str, str]],
        started: float,
        recorded: bool,
    ) -> None:
        self.status_code = status
        self.background = None
        self.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._services, self._scenario, self._call, self._exchange = services, scenario, call, exchange
        self._pending, self._started, self._recorded = pending, started, recorded
        self._sent = bytearray()
        self._upstream_headers = headers
        self._first_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the answer has ended or the client is gone."""
        relaying = asyncio.ensure_future(self._relay(send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((relaying, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not relaying.done():
                relaying.cancel()
                await asyncio.wait((relaying,))
        finally:
            leaving.cancel()
        if not relaying.cancelled():
            relaying.result()

    async def _relay(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        got: Answer | None = None
        reason: str | None = "client_gone"
        held = b""
        try:
            got = await self._answer(send)
            held, reason = await self._pass_on(send, got)
        except ReefError as error:
            reason, held = error.code, error_event(self._call.route, error)
        finally:
            finish = Finish(RecordState.ABORTED if reason == "client_gone" else RecordState.FAILED, reason)
            if got is not None:
                finish = got.finish(bytes(self._sent), reason if reason == "client_gone" else None)
                closing = asyncio.ensure_future(got.aclose())
                self._services.keep(closing)
            elif not self._pending.done():
                self._pending.cancel()
            end = _end(
                finish, bytes(self._sent), self._started, self.status_code, self._upstream_headers, self._first_s
            )
            await asyncio.shield(_close(self._services, self._scenario, self._exchange, end, self._recorded))
        await send({"type": "http.response.body", "body": held, "more_body": False})

    async def _answer(self, send: Send) -> Answer:
        """The upstream's headers; comments keep the client's connection alive while they are not there."""
        while not self._pending.done():
            await asyncio.wait((self._pending,), timeout=self._services.keepalive_s)
            if not self._pending.done():
                await self._comment(send)
        return self._pending.result()

    async def _pass_on(self, send: Send, got: Answer) -> tuple[bytes, str | None]:
        """Relay slices; returns the held-back end and why the stream is not whole (None when it is)."""
        marks = _END_MARKS[self._call.route]
        async for chunk in self._alive(send, got.slices()):
            if self._first_s is None:
                self._first_s = time.perf_counter() - self._started
            before = len(self._sent)
            self._sent += chunk
            cut = _end_at(self._sent, before, marks)
            if cut is None:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                continue
            start = max(cut, before)
            if start > before:
                await send({"type": "http.response.body", "body": bytes(self._sent[before:start]), "more_body": True})
            async for rest in got.slices():
                self._sent += rest
            return bytes(self._sent[start:]), None
        finish = got.finish(bytes(self._sent))
        if finish.state is RecordState.INCOMPLETE:
            error = ReefError("the model's server ended the stream before its end", code=finish.reason or "no_end_mark")
            return error_event(self._call.route, error), finish.reason
        return b"", None

    async def _alive(self, send: Send, slices: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """``slices``, with a comment to the client whenever the upstream is silent for long."""
        upcoming: asyncio.Future[bytes] | None = None
        try:
            while True:
                upcoming = asyncio.ensure_future(anext(slices))
                while not upcoming.done():
                    await asyncio.wait((upcoming,), timeout=self._services.keepalive_s)
                    if not upcoming.done():
                        await self._comment(send)
                try:
                    chunk = upcoming.result()
                except StopAsyncIteration:
                    return
                yield chunk
        finally:
            if upcoming is not None and not upcoming.done():
                upcoming.cancel()

    async def _comment(self, send: Send) -> None:
        if self._sent and not self._sent.endswith(b"\n\n"):
            return  # never inside an event
        comment = b'event: ping\ndata: {"type": "ping"}\n\n' if self._call.route == "messages" else b": keep-alive\n\n"
        await send({"type": "http.response.body", "body": comment, "more_body": True})


def _end_at(sent: bytearray, before: int, marks: tuple[bytes, ...]) -> int | None:
    """Where the protocol's end begins in what has been received, None when it has not come yet."""
    start = max(0, before - _MARK_BYTES)
    found = [at for mark in marks if (at := sent.find(mark, start)) >= 0 and (at == 0 or sent[at - 1] in b"\r\n")]
    return min(found) if found else None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _with_release(exchange: Exchange, release: str) -> Exchange:
    if release == exchange.release_id:
        return exchange
    return Exchange(
        exchange.record_id,
        exchange.scenario,
        exchange.segments,
        exchange.created_at,
        exchange.session,
        release,
        exchange.meta,
    )


def _end(
    finish: Finish,
    sent: bytes,
    started: float,
    status: int | None = None,
    headers: list[tuple[str, str]] | None = None,
    first_s: float | None = None,
) -> ExchangeEnd:
    """What is kept of an ended call."""
    known = dict(headers or ())
    meta: dict[str, Any] = {"duration_ms": round((time.perf_counter() - started) * 1000, 1)}
    for name, value in (
        ("status", status),
        ("content_type", known.get("content-type")),
        ("content_encoding", known.get("content-encoding")),
        ("finish_reason", finish.finish_reason),
        ("usage", dict(finish.usage) or None),
        ("model", finish.model),
        ("training_error", finish.training_error),
        ("first_byte_ms", None if first_s is None else round(first_s * 1000, 1)),
    ):
        if value is not None:
            meta[name] = value
    return ExchangeEnd(finish.state, finish.reason, sent, finish.training, meta)


async def _record(
    services: Services, scenario: Scenario, exchange: Exchange, end: ExchangeEnd, opened: bool
) -> tuple[str, str]:
    """Commit and return the header that says so: a receipt, or why there is none."""
    try:
        await (
            services.records.submit_end(exchange, end) if opened else services.records.submit_exchange(exchange, end)
        )
    except (StoreFull, Unavailable) as error:
        if services.refuse_unrecorded:
            raise StoreFull(error.message, hint=error.hint) from error
        services.degraded(error)
        return UNRECORDED, error.code
    services.recorded(exchange, end)
    scenario.answered()
    return RECEIPT, exchange.record_id


async def _close(services: Services, scenario: Scenario, exchange: Exchange, end: ExchangeEnd, recorded: bool) -> None:
    """Complete an open row; a store that fails now leaves it open, and the next start marks it aborted."""
    if recorded:
        await _record(services, scenario, exchange, end, True)


async def models(request: Request) -> Response:
    """GET /v1/models."""
    services: Services = request.app.state.services
    services.require_ready()
    headers, _, _, _ = _read_headers(request, {}, services)
    return json_response(await services.backend.models(headers))


async def count_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens: answered, never recorded as an inference."""
    services: Services = request.app.state.services
    services.require_ready()
    raw = await read_body(request, services.max_body_bytes)
    body, _ = split_json(raw)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    headers, name, _, _ = _read_headers(request, body, services)
    path = request.url.path
    call = Call("messages", path, request.url.query, raw, body, headers, False, name, new_id())
    return json_response(await services.backend.count_tokens(call))


async def no_websocket(request: Request) -> Response:
    """GET /v1/responses: some clients try a WebSocket first; 426 makes them fall back to POST at once."""
    return Response(status_code=426, headers={"upgrade": "http/1.1"})


routes = [
    *(Route(path, answer, methods=["POST"]) for path in ROUTES),
    Route("/v1/responses", no_websocket, methods=["GET"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
]
