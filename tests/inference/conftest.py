"""Fixtures: a model folder without weights, calls, and a bare gateway that puts a backend behind real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import settings

from reef.errors import ReefError
from reef.inference.base import ROUTES, Call, InferenceBackend
from reef.inference.template import ChatTemplate
from reef.runtime.serving import Serving, ServingTable
from reef.train.slime_runtime.reef_adapters.sglang_chat import SGLangChatTrainingInferenceBackend
from tests.models import _write_tokenizer

CAPTURES = Path(__file__).parents[3] / "shared" / "clients" / "captures"
settings.register_profile("reef", deadline=None)  # a busy machine is no failure
settings.load_profile("reef")
PATHS = {route: path for path, route in ROUTES.items()}


def make_call(route: str, body: dict[str, Any], call_id: str = "c1", scenario: str = "s") -> Call:
    """A call as the gateway makes it."""
    stream = bool(body.get("stream"))
    return Call(route, PATHS[route], "", json.dumps(body).encode(), body, (), stream, scenario, call_id)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and chat template of the tiny model, no weights."""
    folder = tmp_path_factory.mktemp("tokenizer")
    _write_tokenizer(folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 512}')
    return folder


@pytest.fixture(scope="session")
def template(model_folder: Path) -> ChatTemplate:
    return ChatTemplate(model_folder)


Connect = Callable[..., AbstractAsyncContextManager[SGLangChatTrainingInferenceBackend]]


@pytest.fixture
def connect(model_folder: Path) -> Connect:
    """Opens the training inference backend on an engine URL; scenario ``s`` is served by release r1 with adapter a1."""

    @asynccontextmanager
    async def open_backend(url: str, **options: Any) -> AsyncIterator[SGLangChatTrainingInferenceBackend]:
        table = ServingTable()
        table.set("s", Serving("r1", "content1", options.pop("adapter", "a1")))
        options = {"api_key": None, "tokenizer_path": model_folder, "model_name": "tiny", **options}
        backend = SGLangChatTrainingInferenceBackend(url, serving=table, **options)
        try:
            yield backend
        finally:
            await backend.aclose()

    return open_backend


@asynccontextmanager
async def gateway(backend: InferenceBackend, scenario: str = "s") -> AsyncIterator[str]:
    """The URL of a server that hands every request to ``backend`` and its answer back, and does nothing else."""
    count = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        raw = await request.read()
        body = json.loads(raw)
        stream = body.get("stream") is True
        path = request.path
        call = Call(
            ROUTES.get(path, "messages"), path, request.query_string, raw, body, (), stream, scenario, f"c{count}"
        )
        try:
            if path.endswith("count_tokens"):
                return web.json_response(await backend.count_tokens(call))
            got = await backend.chat(call)
        except ReefError as error:
            return web.json_response({"error": {"message": error.message, "code": error.code}}, status=error.status)
        response = web.StreamResponse(status=got.status, headers=dict(got.headers))
        await response.prepare(request)
        try:
            async for chunk in got.slices():
                await response.write(chunk)
        finally:
            await got.aclose()
        return response

    async def models(request: web.Request) -> web.Response:
        return web.json_response(await backend.models())

    app = web.Application()
    app.add_routes([web.post("/{path:.*}", answer), web.get("/v1/models", models)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
