"""The HTTP side of the engine: SGLang's verbs over one ``Engine``. Knows nothing of training or scenarios.

Built by ``serve``; spoken to by the training inference backend and by ``TorchRuntime``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from reef.errors import BadRequest, ReefError, Unauthorized
from reef.train.torch_runtime import weights
from reef.train.torch_runtime.engine import Engine
from reef.train.torch_runtime.generation import Event, GenerateRequest, Sink
from reef.train.torch_runtime.lora import read_adapter
from reef.train.torch_runtime.sampling import sampling_from

MAX_BODY_BYTES = 64 << 20
OPEN_PATHS = ("/health", "/ready")
PAUSE_MODES = ("abort", "retract", "in_place")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class EngineServer:
    """Routes over one engine. ``key`` guards all but the health routes."""

    engine: Engine
    model_path: Path
    key: str
    _swap: asyncio.Lock = field(default_factory=asyncio.Lock)

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/abort_request", self.abort_request),
                web.post("/pause_generation", self.pause),
                web.post("/continue_generation", self.resume),
                web.post("/load_lora_adapter", self.load_adapter),
                web.post("/unload_lora_adapter", self.unload_adapter),
                web.post("/update_weights_from_disk", self.update_weights),
                web.route("*", "/flush_cache", self.flush_cache),
                web.get("/model_info", self.model_info),
                web.get("/server_info", self.server_info),
                web.get("/v1/loads", self.loads),
                web.get("/health", self.health),
                web.get("/ready", self.health),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the key and give every error of ours SGLang's shape."""
        try:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if request.path not in OPEN_PATHS and not secrets.compare_digest(given.encode(), self.key.encode()):
                raise Unauthorized("the engine's key is missing or wrong")
            return await handler(request)
        except ReefError as error:
            return web.json_response({"error": error.as_dict(), "success": False}, status=error.status)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate, plain or streamed; a client that goes away aborts its request."""
        asked = parse_generate(await _body(request))
        events: asyncio.Queue[Event] = asyncio.Queue()
        self.engine.submit(asked, events.put_nowait)
        finished = False
        try:
            if asked.stream:
                response = await self._stream(request, events)
            else:
                response = web.json_response(await events.get())
            finished = True
            return response
        except ConnectionResetError:
            return web.Response()  # nobody reads it
        finally:
            if not finished:
                self.engine.abort(asked.rid)

    async def _stream(self, request: web.Request, events: asyncio.Queue[Event]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        while True:
            event = await events.get()
            while not events.empty():
                event = joined(event, events.get_nowait())
            await response.write(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")
            if event["meta_info"]["finish_reason"] is not None:
                break
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def abort_request(self, request: web.Request) -> web.Response:
        """POST /abort_request {rid} or {abort_all: true}; an unknown rid is fine."""
        body = await _body(request)
        rid = body.get("rid")
        if not body.get("abort_all") and not isinstance(rid, str):
            raise BadRequest("abort_request needs rid or abort_all", field="rid")
        self.engine.abort(None if body.get("abort_all") else rid)
        return web.json_response({"success": True})

    async def pause(self, request: web.Request) -> web.Response:
        """POST /pause_generation {mode}; requests that come later wait."""
        mode = (await _body(request)).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise BadRequest(f"mode must be one of {', '.join(PAUSE_MODES)}", field="mode")
        await _done(self.engine.at_boundary(lambda: self.engine.pause(mode)))
        return web.json_response({"success": True, "message": f"paused by {mode}"})

    async def resume(self, request: web.Request) -> web.Response:
        """POST /continue_generation."""
        await _done(self.engine.at_boundary(self.engine.resume))
        return web.json_response({"success": True, "message": "generation continues"})

    async def load_adapter(self, request: web.Request) -> web.Response:
        """POST /load_lora_adapter {lora_name, lora_path}; a name that is loaded keeps its weights."""
        body = await _body(request)
        name, folder = _text(body, "lora_name"), Path(_text(body, "lora_path"))
        engine = self.engine
        async with self._swap:
            if name in engine.pool.ranks:
                await _done(engine.at_boundary(lambda: engine.keep(name)))
            if name not in engine.adapters():
                parts = await asyncio.to_thread(lambda: engine.pool.prepare(read_adapter(folder)))
                await _done(engine.at_boundary(lambda: engine.pool.add(name, parts)))
        return web.json_response({"success": True, "loaded_adapters": dict.fromkeys(engine.adapters(), "")})

    async def unload_adapter(self, request: web.Request) -> web.Response:
        """POST /unload_lora_adapter {lora_name}; takes effect when no request uses it."""
        name = _text(await _body(request), "lora_name")
        async with self._swap:
            await _done(self.engine.at_boundary(lambda: self.engine.unload(name)))
        return web.json_response({"success": True, "loaded_adapters": dict.fromkeys(self.engine.adapters(), "")})

    async def update_weights(self, request: web.Request) -> web.Response:
        """POST /update_weights_from_disk; running requests go on with the new weights and say so in their spans."""
        body = await _body(request)
        folder, version = Path(_text(body, "model_path")), str(body.get("weight_version") or body["model_path"])
        flush, abort_all = bool(body.get("flush_cache", True)), bool(body.get("abort_all_requests", False))
        engine = self.engine

        def swap() -> float:
            if abort_all:
                engine.abort(None)
            weights.copy_into(engine.model, fresh)
            engine.set_version(version)
            if flush:
                engine.forget_keys()
            return engine.load()["num_running_reqs"]

        async with self._swap:
            fresh = await asyncio.to_thread(weights.load_beside, folder, engine.model)
            running = await _done(engine.at_boundary(swap))
            self.model_path = folder
        return web.json_response({"success": True, "message": "weights updated", "num_paused_requests": running})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """GET or POST /flush_cache: nothing is kept beyond a request, so only running requests can be in the way."""
        load = self.engine.load()
        busy = load["num_running_reqs"] + load["num_waiting_reqs"]
        if busy:
            raise BadRequest(f"{busy} requests run or wait")
        return web.json_response({"success": True})

    async def model_info(self, request: web.Request) -> web.Response:
        """GET /model_info."""
        return web.json_response(
            {
                "model_path": str(self.model_path),
                "tokenizer_path": str(self.model_path),
                "is_generation": True,
                "weight_version": self.engine.version,
                "adapters": self.engine.adapters(),
            }
        )

    async def server_info(self, request: web.Request) -> web.Response:
        """GET /server_info."""
        engine = self.engine
        return web.json_response(
            {
                "engine": "reef-torch",
                "model_path": str(self.model_path),
                "context_length": engine.context,
                "max_running_requests": engine.slots,
                "paused": engine.paused,
                "weight_version": engine.version,
                "adapters": engine.adapters(),
            }
        )

    async def loads(self, request: web.Request) -> web.Response:
        """GET /v1/loads: running and waiting requests."""
        return web.json_response({"loads": [self.engine.load()]})

    async def health(self, request: web.Request) -> web.Response:
        """GET /health and /ready: the loop answers."""
        return web.json_response({"status": "ok"})


def parse_generate(body: Mapping[str, Any]) -> GenerateRequest:
    """The request in a /generate body, checked."""
    ids = body.get("input_ids")
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise BadRequest("input_ids must be a list of token ids", field="input_ids")
    adapter, params = body.get("lora_path"), body.get("sampling_params") or {}
    if adapter is not None and not isinstance(adapter, str):
        raise BadRequest("lora_path must be the name of a loaded adapter", field="lora_path")
    if not isinstance(params, dict):
        raise BadRequest("sampling_params must be an object", field="sampling_params")
    if params.get("n", 1) != 1:
        raise BadRequest("sampling_params.n must be 1: send one request for each sample", field="sampling_params.n")
    start = body.get("logprob_start_len", -1)
    tops = body.get("top_logprobs_num", 0)
    if type(start) is not int or type(tops) is not int:
        raise BadRequest("logprob_start_len and top_logprobs_num must be whole numbers", field="logprob_start_len")
    logprobs = bool(body.get("return_logprob", False))
    return GenerateRequest(
        rid=str(body.get("rid") or secrets.token_hex(16)),
        prompt=tuple(ids),
        sampling=sampling_from(params, secrets.randbits(62)),
        adapter=adapter,
        logprobs=logprobs,
        logprob_start=start if logprobs else -1,
        top_logprobs=tops if logprobs else 0,
        stream=bool(body.get("stream", False)),
    )


def joined(first: Event, second: Event) -> Event:
    """Two events of one request as one."""
    meta = dict(second["meta_info"])
    for name in ("output_token_logprobs", "output_top_logprobs"):
        if name in meta:
            meta[name] = first["meta_info"][name] + meta[name]
    return {
        "text": first["text"] + second["text"],
        "output_ids": first["output_ids"] + second["output_ids"],
        "meta_info": meta,
    }


async def _body(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    try:
        body = json.loads(raw or b"{}")
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} is missing", field=name)
    return value


async def _done(future: Future[Any]) -> Any:
    return await asyncio.wrap_future(future)


def deliverer(loop: asyncio.AbstractEventLoop) -> Callable[[list[tuple[Sink, Event]]], None]:
    """Hands the events of a pass to the loop's thread in one call."""

    def hand_over(events: list[tuple[Sink, Event]]) -> None:
        for sink, event in events:
            sink(event)

    def deliver(events: list[tuple[Sink, Event]]) -> None:
        if events:
            loop.call_soon_threadsafe(hand_over, events)

    return deliver
