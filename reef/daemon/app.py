"""build_app: the one composition root. Stores, runtimes, backends and routes are made here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from reef.config import Config
from reef.daemon import admin, asks, gateway, harness, knobs, metrics, openapi, reports
from reef.daemon.agreement import check_agreement
from reef.daemon.auth import LOOPBACK, Door
from reef.daemon.local import torch_version
from reef.daemon.services import Services
from reef.daemon.wire import error_response
from reef.errors import BadConfig, BadRequest, NotFound, ReefError, TooLarge, Unsupported
from reef.events import Bus
from reef.inference.assembly import assemble, unpack
from reef.inference.base import ROUTES, InferenceBackend
from reef.inference.translation import TranslatingBackend, dialects_of
from reef.recipes.registry import recipe_of
from reef.records import RecordStore
from reef.releases import ReleaseChain
from reef.runtime.serving import ServingTable
from reef.scenario import Scenarios
from reef.store import Store
from reef.store.retention import Limits, Retention
from reef.train.torch_runtime.runtime import TorchRuntime
from reef.train.torch_runtime.settings import TrainSettings
from reef.train.watch import WatchSettings

log = logging.getLogger("reef.daemon")

_RESERVE_BYTES = 4 * 2**20
"""Room for bookkeeping on a disk that is full."""

routes = [
    *gateway.routes,
    *reports.routes,
    *admin.routes,
    *harness.routes,
    *asks.routes,
    *knobs.routes,
    *metrics.routes,
    *openapi.routes,
]


def build_app(config: Config, token: str) -> Starlette:
    """The whole daemon as an ASGI app; nothing is started yet. Raises BadConfig before anything is written."""
    hosts = _hosts(config)
    recipe_class = recipe_of(config)
    bus = Bus()
    serving = ServingTable()
    engine = _runtime(config, bus, serving)
    recipe = recipe_class.from_environment(engine, config.recipe_settings)
    check_agreement(config, recipe)
    if recipe.runtime is None and recipe.build_surface().kind == "weights":
        raise BadConfig(
            f"recipe {recipe.name} trains weights, and no model is given to train",
            hint="set reef.model_path (--model-path), or choose recipe record",
            field="reef.recipe",
        )
    backend = _backend(config, engine, serving)
    config.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = Store(config.home / "reef.db", reserve_bytes=_RESERVE_BYTES)
    records = RecordStore(store, read_response=read_response)
    chain = ReleaseChain(records.store)
    scenarios = Scenarios(
        records,
        chain,
        bus,
        recipe,
        backend,
        create=config.service.create_scenarios,
        review=config.service.publish == "review",
        watch=WatchSettings(config.service.auto_rollback, config.service.canary, config.service.canary_reports),
        park_timeout_s=config.service.park_timeout_h * 3600,
    )
    limits = Limits(config.service.retention_days, config.service.retention_gb, config.service.keep_releases)
    retention = Retention(records.store, config.home, limits)
    services = Services(config, token, records, chain, bus, backend, scenarios, engine, retention)
    store.on_trouble = services.store_trouble
    told = partial(_told, mask=scenarios.mask)
    direct = dict.fromkeys(ROUTES, gateway.answer) | {"/reef/report": reports.report}
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Door, token=token, hosts=hosts, direct=direct, told=told, overhead=services.overhead)],
        exception_handlers={HTTPException: _http_error, Exception: _other_error}
        | dict.fromkeys((ReefError, RecursionError, ClientDisconnect), _other_error),
        lifespan=_running,
    )
    app.state.services = services
    return app


def read_response(meta: Mapping[str, Any], raw: bytes) -> Any:
    """A recorded answer's wire bytes as the plain response object of its route."""
    coding = str(meta.get("content_encoding") or "")
    try:
        whole = unpack(raw, coding) if coding else raw
    except (BadRequest, TooLarge, Unsupported):
        return None  # recorded as coding_not_readable; the bytes are kept, there is only no object to show
    return assemble(str(meta.get("route", "")), str(meta.get("content_type", "")), whole).body


@contextlib.asynccontextmanager
async def _running(app: Starlette) -> AsyncIterator[None]:
    """Start in the background, so that /healthz can say "starting"; stop in order: trainers, children, store."""
    services: Services = app.state.services
    starting = asyncio.ensure_future(asyncio.to_thread(_start, services, asyncio.get_running_loop()))
    yield
    await starting
    services.ready = False
    await asyncio.to_thread(services.retention.stop)
    await asyncio.to_thread(services.scenarios.stop)
    if services.background:
        await asyncio.wait(set(services.background), timeout=5)
    await services.backend.aclose()
    if services.engine is not None:
        await asyncio.to_thread(services.engine.stop)
    await asyncio.to_thread(services.records.close)


def _start(services: Services, loop: asyncio.AbstractEventLoop) -> None:
    """Close what a dead daemon left open, start children, prove that they give ids and log-probs, take up training."""
    try:
        services.records.self_test()
        closed = services.records.close_open("daemon_stopped: the daemon ended while the answer was on its way")
        if closed:
            log.warning("%d answers were cut off when the last daemon ended", closed)
        if services.engine is not None:
            services.engine.start()
            asyncio.run_coroutine_threadsafe(services.backend.check(), loop).result()
        services.scenarios.start()
    except ReefError as error:
        log.error("start failed: %s (%s)", error.message, error.hint)
        services.failure = error
        return
    except Exception as error:  # the edge of the thread: a bug of ours must end the start, not hang it
        log.exception("start failed")
        services.failure = ReefError(f"the start failed: {error}", hint="see: reef logs")
        return
    services.retention.start()
    services.ready = True
    services.bus.publish("ready", None, url=services.url)


def _runtime(config: Config, bus: Bus, serving: ServingTable) -> TorchRuntime | None:
    """The torch runtime when a model is given; None where a provider answers."""
    if config.service.model_path is None:
        return None
    if torch_version() is None:
        raise BadConfig(
            "the embedded engine needs PyTorch",
            hint="pip install 'reefd[torch]', or give reef.upstream_url",
            code="no_torch",
        )
    if config.service.runtime != "torch":
        raise BadConfig("runtime: slime is not available yet", hint="use runtime: torch", field="reef.runtime")
    training = config.training
    names = TrainSettings.__dataclass_fields__.keys()
    values = {name: getattr(training, name) for name in names if getattr(training, name, None) is not None}
    return TorchRuntime(
        config.home,
        config.service.model_path,
        TrainSettings(**values),
        serving,
        lambda kind, data: bus.publish(kind, data.pop("scenario", None), **data),
    )


def _backend(config: Config, engine: TorchRuntime | None, serving: ServingTable) -> InferenceBackend:
    service = config.service
    if engine is not None:
        from reef.daemon.embedded import embedded_backend  # tokenizers and jinja2 come with the torch extra

        return embedded_backend(service, engine, serving)
    if service.upstream_url is None:
        raise BadConfig(
            "nothing answers model calls: neither an upstream nor a model is given",
            hint="set reef.upstream_url (REEF_UPSTREAM_URL), or reef.model_path for the embedded engine",
        )
    try:
        far = urlsplit(service.upstream_url)
        usable = far.scheme in ("http", "https") and bool(far.hostname) and (far.port or 1) > 0
    except ValueError:  # brackets or a port that are none
        usable = False
    if not usable:
        raise BadConfig(
            f"reef.upstream_url {service.upstream_url!r} is no http address",
            hint="for example https://api.openai.com, or http://127.0.0.1:11434",
            field="reef.upstream_url",
        )
    if far.username and service.upstream_api_key:
        raise BadConfig(
            "reef.upstream_url names a user, and reef.upstream_api_key is a key: a call can carry only one of them",
            hint="take the user out of the address, or leave the key out",
            field="reef.upstream_url",
        )
    return TranslatingBackend(
        service.upstream_url,
        speaks=dialects_of(service.upstream_api, service.upstream_url),
        api_key=service.upstream_api_key,
        connect_timeout_s=service.connect_timeout_s,
        idle_timeout_s=service.idle_timeout_s,
        max_answer_bytes=int(service.max_answer_mb * 2**20),
        drop_beta=service.upstream_drop_beta,
    )


def _hosts(config: Config) -> frozenset[str] | None:
    """Names the daemon may be called by; None (any) only where the owner exposed it beyond loopback."""
    host = config.service.host
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local and config.service.token is None:
        raise BadConfig(
            f"host {host} can be reached from other machines, and no token is set",
            hint="set reef.token (REEF_TOKEN) to a long random text, or listen on 127.0.0.1",
            field="reef.host",
        )
    return LOOPBACK | {host, f"[{host}]"} if local else None


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        missing = NotFound(f"no route {request.method} {request.url.path[:120]}", hint="see GET /reef/status")
        return await _other_error(request, missing)
    wrong = ReefError(f"{request.method} is not possible here", code="method_not_allowed")
    wrong.status = error.status_code
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the router names the methods of the first route of this path, and there may be more
        here = [route for route in routes if isinstance(route, Route) and route.path_regex.match(request.url.path)]
        headers["allow"] = wrong.hint = ", ".join(sorted({name for route in here for name in route.methods or ()}))
    return error_response(request.url.path, wrong, headers)


async def _other_error(request: Request, error: Exception) -> Response:
    services: Services = request.app.state.services
    return _told(request.url.path, error, mask=services.scenarios.mask)


def _told(path: str, error: Exception, *, mask: Callable[[str], str]) -> Response:
    """Whatever a route raised as an answer in the shape of ``path``. The last edge: no trace leaves here, and no key: an
    error quotes what was sent."""
    match error:
        case ReefError():
            error.message, error.hint = mask(error.message), mask(error.hint)
            return error_response(path, error)
        case ClientDisconnect():  # it left before its request was whole: nobody reads this, and nothing is wrong
            return Response(status_code=499)
        case RecursionError():  # a document that can be parsed may still be too deep to be written again
            log.warning("too deep: %s", path, exc_info=error)
            deep = BadRequest("the document is nested too deeply", hint="send a flatter JSON document")
            return error_response(path, deep)
        case _:
            log.error("bug while answering %s", path, exc_info=error)
            return error_response(path, ReefError("reef failed on this request", hint="see: reef logs"))
