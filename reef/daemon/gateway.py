"""Answers model calls: read the call, find the scenario, ask its backend, record, hand back the receipt.

Knows nothing of providers, engines or training. A receipt in a header is a row on disk.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef.core.records_types import Delivery, Finish, RecordState
from reef.daemon.redact import LITTLE_BYTES, costly, keys_of_tools, masked_answer, masked_json, masked_text
from reef.daemon.relay import Relay, complete, let_go
from reef.daemon.services import Services
from reef.daemon.shapes import RELEASE_PATTERN
from reef.daemon.wire import error_response, json_response, read_body
from reef.errors import BadRequest, NotFound, ReefError, StoreFull, Unavailable
from reef.inference.base import ROUTES, Answer, Call
from reef.records import Exchange
from reef.scenario import Scenario
from reef.store.bodies import split_json

log = logging.getLogger("reef.gateway")

RECEIPT = "x-reef-agent-record-id"
RELEASE = "x-reef-release-id"

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
_LENDING = frozenset({"url", "server_url", "headers", "authorization", "authorization_token", "api_key"})
"""What only tools have that somebody else runs: where they are, and what lets the provider in there."""

# Seeded by the system; asking it for every id would let another thread take the interpreter each time.
_ids = random.Random()
_AGENTS = ("claude-cli/", "opencode/", "codex", "pi/", "GeminiCLI/", "QwenCode/")
"""Coding agents, whose own turns always offer tools: a call of theirs without any is a title, a summary or a probe."""


async def answer(request: Request) -> Response:
    """POST /v1/chat/completions, /v1/responses, /v1/messages."""
    services: Services = request.app.state.services
    if not services.ready:
        raise services.not_ready()
    call, exchange = await read_call(request, services)
    scenario = services.scenarios.opened.get(call.scenario) or await services.scenarios.open(call.scenario)
    if RELEASE in request.headers:
        exchange = await _named_release(services, scenario, exchange, request.headers[RELEASE])
    if call.stream:
        return await _streamed(services, scenario, call, exchange)
    return await _plain(request, services, scenario, call, exchange)


async def read_call(request: Request, services: Services) -> tuple[Call, Exchange]:
    """Headers and body, each read once: the call for the backend, and its exchange for the store."""
    found: dict[str, str] = {}
    kept: list[tuple[str, str]] = []
    meta: dict[str, Any] = {}
    for raw_name, raw_value in request.headers.raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = value
        if name.startswith("x-reef-tag-"):
            meta.setdefault("tags", {})[name[11:]] = value if value.isascii() else _utf8(value)
        elif (
            not name.startswith("x-reef-")
            and services.unsent not in value
            and value.rpartition(" ")[2] != services.token
        ):
            kept.append((name, value))
    raw = await read_body(request, services.max_body_bytes)
    body, segments = split_json(raw)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", hint="see the provider's API reference")
    tools = body["tools"] if isinstance(body.get("tools"), list) else ()
    lends = "mcp_servers" in body or any(type(tool) is dict and not _LENDING.isdisjoint(tool) for tool in tools)
    lent = keys_of_tools(body) if lends else ()
    if lent or any(needle in raw for needle in services.needles):
        clean = masked_json(raw, (*services.secrets, *lent))
        segments = segments if clean is raw else split_json(clean)[1]
    scenario = found.get("x-reef-scenario") or services.default_scenario
    if not scenario:
        raise BadRequest("no x-reef-scenario header", hint="name the workload, e.g. x-reef-scenario: my-agent")
    named = next((found[name] for name in _SESSION_HEADERS if found.get(name)), None)
    named = body.get("prompt_cache_key") if named is None else named if named.isascii() else _utf8(named)
    session = named if isinstance(named, str) else None
    path, record_id, stream = request.scope["path"], f"{_ids.getrandbits(128):032x}", body.get("stream") is True
    agent, tags = found.get("user-agent", ""), meta.get("tags", {})
    noted = f"{agent} {session} {tags}".encode("utf-8", "replace")
    if lent or any(secret in noted for secret in services.secrets):
        keys = *services.secrets, *lent
        agent, session = masked_text(agent, keys), None if session is None else masked_text(session, keys)
        tags = {masked_text(name, keys): masked_text(value, keys) for name, value in tags.items()}
    if tags:
        meta["tags"] = {name: value[:256] for name, value in tags.items()}
    session = None if session is None else session[:200].encode("utf-8", "replace").decode()
    agent = agent[:120]
    meta |= {"route": ROUTES.get(path, ""), "stream": stream, "client": agent}
    if agent.startswith(_AGENTS) and not body.get("tools") and not services.train_helper_calls:
        meta["helper"] = "no_tools"
    if "x-reef-tag-episode" in found:  # what an experiment of ours asks is no use of the agent
        meta["helper"] = "episode"
    if found.get("x-stainless-retry-count", "0") != "0":
        meta["retry"] = True
    query = request.scope["query_string"].decode("latin-1")
    call = Call(
        meta["route"],
        path,
        query
        if services.unsent not in query
        else "&".join(one for one in query.split("&") if services.unsent not in one),
        raw,
        body,
        tuple(kept),
        stream,
        scenario,
        record_id,
    )
    return call, Exchange(record_id, scenario, segments, time.time(), session, None, meta, lent)


def _utf8(value: str) -> str:
    """A header's value that is more than ASCII, as its client meant it."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


async def _plain(request: Request, services: Services, scenario: Scenario, call: Call, exchange: Exchange) -> Response:
    """Answer, then one commit of request and response together, then the bytes go out."""
    started = time.perf_counter()
    this = asyncio.current_task()
    assert this is not None
    leaving = asyncio.ensure_future(request.receive())  # ends when the client is gone: the work upstream is cancelled
    asking = True  # the callback may be on its way when it is taken back: what has been answered is kept all the same
    leave = lambda _: asking and this.cancel()  # noqa: E731
    leaving.add_done_callback(leave)
    status, headers, release, sent = 499, list[tuple[str, str]](), exchange.release_id, b""
    got: Answer | None = None
    whole = False
    try:
        got = await scenario.backend.chat(call)
        status, headers, release = got.status, got.headers, got.release_id or release
        sent = b"".join([chunk async for chunk in got.slices()])
        whole = True
    except ReefError as error:
        finish = Finish(RecordState.FAILED, error.reason) if got is None else got.finish(sent)
        failure = error_response(call.path, error)
        status, sent, headers = error.status, bytes(failure.body), failure.headers.items()
    except asyncio.CancelledError:
        this.uncancel()
        finish = Finish(RecordState.ABORTED, "client_gone") if got is None else got.finish(sent, "client_gone")
    finally:
        asking = False
        leaving.remove_done_callback(leave)
        leaving.cancel()
        if got is not None and not whole:
            await got.aclose()
    took_s = time.perf_counter() - started
    request.scope["reef.upstream_s"] = took_s
    delivery = Delivery(sent, status, dict(headers), took_s * 1000)
    much = len(sent) > LITTLE_BYTES and costly(sent, delivery.headers)
    if whole:
        assert got is not None
        finish = await asyncio.to_thread(got.finish, sent) if much else got.finish(sent)
    if exchange.lent or "content-encoding" in delivery.headers or any(needle in sent for needle in services.needles):
        keys = *services.secrets, *exchange.lent
        if much:
            finish, delivery = await asyncio.to_thread(masked_answer, finish, delivery, keys)
        else:
            finish, delivery = masked_answer(finish, delivery, keys)
    exchange = replace(exchange, release_id=release) if release is not None else exchange
    receipt = (RECEIPT, exchange.record_id)
    try:
        await asyncio.wrap_future(services.records.submit_exchange(exchange, finish, delivery))
    except (StoreFull, Unavailable) as error:
        receipt = services.unrecorded_header(error)
    else:
        services.last_store_error = None
        if services.bus.listened:
            services.say_recorded(exchange, finish, delivery)
        if scenario.thread is not None:
            scenario.answered()
    response = Response(sent, status)
    passed = [pair for pair in headers if pair[0] != "content-length" and not pair[0].startswith("x-reef-")]
    shown = [*passed, receipt, (RELEASE, release)] if release is not None else [*passed, receipt]
    response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in shown]
    response.raw_headers.append((b"content-length", str(len(sent)).encode()))
    return response


async def _streamed(services: Services, scenario: Scenario, call: Call, exchange: Exchange) -> Response:
    """The open row is committed while the upstream is called, so the receipt in the header block names a durable row."""
    started = time.perf_counter()
    exchange = replace(exchange, release_id=scenario.backend.serving(call.scenario) or exchange.release_id)
    opening = services.records.submit_exchange(exchange, None, None)
    pending = asyncio.ensure_future(scenario.backend.chat(call))
    try:
        recorded, receipt = True, (RECEIPT, exchange.record_id)
        try:
            await asyncio.wrap_future(opening)
        except (StoreFull, Unavailable) as error:
            # What failed to reach the disk may be there all the same once the store has been opened again.
            services.records.abandon(exchange.record_id, f"{error.code}: its receipt could not be given")
            recorded, receipt = False, services.unrecorded_header(error)
        await asyncio.wait((pending,), timeout=services.keepalive_s)
        status, headers = 200, [("content-type", "text/event-stream"), ("cache-control", "no-cache")]
        release = exchange.release_id
        if pending.done():
            try:
                got = pending.result()
            except ReefError as error:
                failure = error_response(call.path, error, dict([receipt]))
                took_ms = (time.perf_counter() - started) * 1000
                delivery = Delivery(bytes(failure.body), error.status, dict(failure.headers), took_ms)
                await complete(
                    services, scenario, exchange, Finish(RecordState.FAILED, error.reason), delivery, recorded
                )
                return failure
            except Exception:  # a bug, told at the door: the row must not stay open for it
                services.records.abandon(exchange.record_id, "reef_failed: see the log")
                raise
            status, release = got.status, got.release_id or release
            headers = [pair for pair in got.headers if not pair[0].startswith("x-reef-")]
        headers.append(receipt)
        if release is not None:
            headers.append((RELEASE, release))
        return Relay(
            services, scenario, call, replace(exchange, release_id=release), pending, status, headers, started, recorded
        )
    except BaseException:  # nobody takes the answer any more
        let_go(services, pending)
        raise


async def _named_release(services: Services, scenario: Scenario, exchange: Exchange, named: str) -> Exchange:
    """A harness runs where the agent does: the call says which release that is, and is believed where the chain has it."""
    if scenario.surface != "harness" or not re.fullmatch(RELEASE_PATTERN, named):
        return exchange
    if named not in scenario.known_releases:
        try:
            await asyncio.to_thread(services.chain.get, scenario.name, named)
        except NotFound:
            return exchange
        scenario.known_releases.add(named)
    return replace(exchange, release_id=named)


async def models(request: Request) -> Response:
    """GET /v1/models."""
    services: Services = request.app.state.services
    if not services.ready:
        raise services.not_ready()
    headers = tuple(
        (name, value)
        for name, value in request.headers.items()
        if services.unsent not in value and value.rpartition(" ")[2] != services.token
    )
    return json_response(await services.backend.models(headers))


async def count_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens: answered, never recorded as an inference."""
    services: Services = request.app.state.services
    if not services.ready:
        raise services.not_ready()
    call, _ = await read_call(request, services)
    return json_response(await services.backend.count_tokens(replace(call, route="messages")))


async def no_websocket(request: Request) -> Response:
    """GET /v1/responses: some clients try a WebSocket first; 426 makes them fall back to POST at once."""
    return Response(status_code=426, headers={"upgrade": "http/1.1"})


routes = [
    *(Route(path, answer, methods=["POST"]) for path in ROUTES),
    Route("/v1/responses", no_websocket, methods=["GET"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
]
