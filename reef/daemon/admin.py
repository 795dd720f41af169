"""Reads and acts: scenarios, records, releases, steps, status, events. Called by the client, hence by CLI and TUI."""

from __future__ import annotations

import asyncio
import difflib
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from reef.core.artifacts import Release, artifact_path
from reef.core.records_types import RecordState, RequestType
from reef.core.reports import check_name
from reef.daemon.logs import LEVELS
from reef.daemon.redact import masked_text
from reef.daemon.services import Services
from reef.daemon.shapes import PAGE_LIMIT
from reef.daemon.views import record_view, release_view, scenario_view, status_view, step_view
from reef.daemon.wire import dump_json, json_response, read_body, read_json
from reef.errors import BadRequest, NotFound
from reef.evolve.journal import proposals
from reef.harness.tree import Tree, diff
from reef.scenario import Scenarios
from reef.train.harness_runtime import read_tree

T = TypeVar("T")

_SEQ_LIMIT = 2**53
_PAGE_BYTES = 8 * 2**20
"""A page with bodies ends after the record that reaches this."""


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _off_loop(work: Callable[[], T]) -> T:
    """Run a read or an act that may touch the disk for long on a worker thread."""
    return await asyncio.to_thread(work)


def _limit(request: Request, default: int = 50) -> int:
    return _whole(request, "limit", default, 1, PAGE_LIMIT)


def _whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name)
    return default if text is None else _number(text, name, low, high)


def _number(text: str, name: str, low: int, high: int) -> int:
    """``text`` as a whole number; Python reads no more than 4,300 digits, and nobody needs 20."""
    if not (text.isdecimal() and text.isascii() and len(text) < 20 and low <= int(text) <= high):
        raise BadRequest(f"{name}={text[:40]!r} is not a whole number from {low} to {high}", field=name)
    return int(text)


def _choice(request: Request, name: str, words: Iterable[str]) -> str | None:
    """A query value that must be one of ``words``: a misspelt one must not look like an empty list."""
    text = request.query_params.get(name)
    if text is not None and text not in (accepted := list(words)):
        raise BadRequest(f"{name}={text[:40]!r} is unknown", hint=f"accepted: {', '.join(accepted)}", field=name)
    return text


def _time(request: Request, name: str) -> float | None:
    """A query value in seconds since 1970."""
    text = request.query_params.get(name)
    try:
        found = None if text is None else float(text)
    except ValueError:
        found = math.nan
    if found is not None and not math.isfinite(found):
        raise BadRequest(f"{name}={str(text)[:40]!r} is not a time in seconds since 1970", field=name)
    return found


async def body_of(request: Request) -> dict[str, Any]:
    """The body as a JSON object; none is an empty one."""
    raw = await read_body(request, _services(request).max_body_bytes)
    body = read_json(raw) if raw else {}
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def actor_of(request: Request) -> str:
    """Who acts, as the client says it; for the log of actions."""
    return masked_text(request.headers.get("x-reef-actor", "http"), _services(request).secrets)[:80]


async def healthz(request: Request) -> Response:
    """200 when the first call would be served, 503 while starting or after a failed start."""
    services = _services(request)
    if services.ready:
        return json_response({"status": "degraded" if services.degraded else "ok"})
    return json_response({"status": "failed" if services.failure else "starting"}, 503)


async def root(request: Request) -> Response:
    """What some clients knock at before they call; says nothing that a stranger may not know."""
    return json_response({"name": "reef", "api": "/openapi.json"})


async def status(request: Request) -> Response:
    """The whole daemon in one document."""
    services = _services(request)
    return json_response(await _off_loop(lambda: status_view(services)))


async def scenarios(request: Request) -> Response:
    """All scenarios."""
    services = _services(request)
    return json_response(
        {"scenarios": await _off_loop(lambda: [scenario_view(services, row) for row in services.chain.scenarios()])}
    )


async def new_scenario(request: Request) -> Response:
    """Create one by name, also when new names are otherwise switched off."""
    services = _services(request)
    if not services.ready:
        raise services.not_ready()
    name = check_name((await body_of(request)).get("name"), "name")
    if name is None:
        raise BadRequest("give the scenario's name", field="name")
    await _off_loop(lambda: services.scenarios.open_now(name, create=True))
    return json_response(await _off_loop(lambda: scenario_view(services, services.chain.scenario(name))), 201)


async def one_scenario(request: Request) -> Response:
    """One scenario, with why it is idle."""
    services, name = _services(request), request.path_params["scenario"]
    return json_response(await _off_loop(lambda: scenario_view(services, services.chain.scenario(name))))


async def list_records(request: Request) -> Response:
    """A page of records, newest first; ``before``/``after`` take a seq. With bodies it ends early when it gets large."""
    services, name = _services(request), request.path_params["scenario"]
    limit, since = _limit(request), _time(request, "since")
    before = _whole(request, "before", 0, 0, _SEQ_LIMIT)
    after = _whole(request, "after", 0, 0, _SEQ_LIMIT) if "after" in request.query_params else None
    kind, state = _choice(request, "type", RequestType), _choice(request, "state", RecordState)
    bodies = _choice(request, "bodies", ("true", "false")) == "true"

    def read() -> bytes:
        rows = services.records.page(
            name,
            before_seq=before or None,
            after_seq=after,
            since=since,
            limit=limit,
            type=kind,
            state=state,
            session=request.query_params.get("session"),
        )
        shown: list[bytes] = []
        for row in rows:
            shown.append(dump_json(record_view(services, row, bodies=bodies)))
            if bodies and sum(map(len, shown)) > _PAGE_BYTES:
                break
        return b'{"records":[' + b",".join(shown) + b"]}"

    return Response(await _off_loop(read), media_type="application/json")


async def one_record(request: Request) -> Response:
    """One record with bodies, reports and lineage."""
    services, record_id = _services(request), request.path_params["record_id"]

    def read() -> dict[str, Any]:
        row = services.records.get(record_id)
        if row.record.scenario != request.path_params.get("scenario", row.record.scenario):
            raise NotFound(f"no record {record_id!r} in this scenario", hint="list them with: reef records")
        return record_view(services, row, bodies=True)

    return json_response(await _off_loop(read))


async def record_request(request: Request) -> Response:
    """The exact bytes of a record's request."""
    services, record_id = _services(request), request.path_params["record_id"]
    raw = await _off_loop(lambda: services.records.request_bytes(record_id))
    return Response(raw, media_type="application/json")


async def record_response(request: Request) -> Response:
    """The exact bytes of a record's answer, as they were passed on."""
    services, record_id = _services(request), request.path_params["record_id"]
    raw = await _off_loop(lambda: services.records.response_bytes(record_id))
    return Response(raw, media_type="application/octet-stream")


async def pending(request: Request) -> Response:
    """Reports that wait, with what they wait for."""
    services, name = _services(request), request.path_params["scenario"]

    def read() -> list[dict[str, Any]]:
        rows = services.records.page(name, type="report", state="parked", limit=_limit(request))
        return [record_view(services, row, bodies=False) for row in rows]

    return json_response({"records": await _off_loop(read)})


async def list_releases(request: Request) -> Response:
    """The chain, newest first."""
    services, name = _services(request), request.path_params["scenario"]
    before = _whole(request, "before", 0, 0, 2**31)

    def read() -> list[dict[str, Any]]:
        services.chain.scenario(name)
        found = services.chain.releases(name, limit=_limit(request, 200), before=before or None)
        return [release_view(release) for release in found]

    return json_response({"releases": await _off_loop(read)})


async def one_release(request: Request) -> Response:
    """One release with the records it learned from."""
    services, name = _services(request), request.path_params["scenario"]

    def read() -> dict[str, Any]:
        release = services.chain.get(name, request.path_params["release_id"])
        return release_view(release) | {"records": services.chain.step_records(name, release.release_id)}

    return json_response(await _off_loop(read))


async def release_diff(request: Request) -> Response:
    """What changed between a release and ``?to=`` (default: its parent): entries of a tree, or manifests."""
    services, name = _services(request), request.path_params["scenario"]

    def read() -> dict[str, Any]:
        release = services.chain.get(name, request.path_params["release_id"])
        other_id = request.query_params.get("to") or release.parent
        other = services.chain.get(name, other_id) if other_id else None
        if services.chain.scenario(name).surface == "harness":
            before = read_tree(services.home, other.content_id) if other is not None else Tree()
            return _differs(other, release, diff(before, read_tree(services.home, release.content_id)))
        left = _manifest(services.home, other.content_id) if other is not None else ""
        lines = difflib.unified_diff(
            left.splitlines(),
            _manifest(services.home, release.content_id).splitlines(),
            other.release_id if other is not None else "nothing",
            release.release_id,
            lineterm="",
        )
        return _differs(other, release, "\n".join(lines))

    return json_response(await _off_loop(read))


def _differs(before: Release | None, after: Release, said: str) -> dict[str, Any]:
    return {"from": None if before is None else release_view(before), "to": release_view(after), "diff": said}


def _manifest(home: Path, content_id: str) -> str:
    path = artifact_path(home, content_id) / "manifest.json"
    if not path.is_file():
        return ""
    return json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2, sort_keys=True)


async def list_steps(request: Request) -> Response:
    """Past steps, newest first."""
    services, name = _services(request), request.path_params["scenario"]
    steps = await _off_loop(lambda: services.chain.steps(name, limit=_limit(request, 200)))
    return json_response({"steps": [step_view(step) for step in steps]})


async def list_proposals(request: Request) -> Response:
    """Proposals of a scenario, newest first, with what became of them; ``before`` takes a seq."""
    services, name, limit = _services(request), request.path_params["scenario"], _limit(request)
    before = _whole(request, "before", 0, 0, _SEQ_LIMIT)
    texts, step_id = _choice(request, "texts", ("true", "false")) != "false", request.query_params.get("step_id")

    def read() -> list[dict[str, Any]]:
        services.chain.scenario(name)  # raises NotFound for one that is none
        store = services.records.store
        return proposals(store, name, limit=limit, before=before or None, step_id=step_id, texts=texts)

    return json_response({"proposals": await _off_loop(read)})


async def rollback(request: Request) -> Response:
    """Serve an earlier release again: ``{"to": "r3"}``, default the head's parent."""
    to = check_name((await body_of(request)).get("to"), "to")
    return await _act(request, lambda scenarios, name: release_view(scenarios.rollback(name, to, actor_of(request))))


async def promote(request: Request) -> Response:
    """Serve a held release: ``{"release_id": "r7"}``."""
    one = _release_id(await body_of(request))
    return await _act(request, lambda scenarios, name: release_view(scenarios.promote(name, one, actor_of(request))))


async def reject(request: Request) -> Response:
    """Refuse a held release: ``{"release_id": "r7"}``."""
    one = _release_id(await body_of(request))
    return await _act(request, lambda scenarios, name: release_view(scenarios.reject(name, one, actor_of(request))))


def _release_id(body: dict[str, Any]) -> str:
    release_id = check_name(body.get("release_id"), "release_id")
    if release_id is None:
        raise BadRequest("give the release to act on", hint='{"release_id": "r7"}', field="release_id")
    return release_id


async def pause(request: Request) -> Response:
    """Stop training; serving goes on."""
    return await _paused(request, True)


async def resume(request: Request) -> Response:
    """Go on training."""
    return await _paused(request, False)


async def _paused(request: Request, paused: bool) -> Response:
    services = _services(request)

    def change(scenarios: Scenarios, name: str) -> dict[str, Any]:
        scenarios.pause(name, paused, actor_of(request))
        return scenario_view(services, services.chain.scenario(name))

    return await _act(request, change)


async def step(request: Request) -> Response:
    """Make a step of whatever is complete."""
    return await _act(request, lambda scenarios, name: {"progress": dict(scenarios.step(name))}, 202)


async def _act(request: Request, change: Callable[[Scenarios, str], dict[str, Any]], status: int = 200) -> Response:
    """Change a scenario that exists, off the loop; a name that is none is not found, whatever it looks like."""
    services, name = _services(request), request.path_params["scenario"]

    def work() -> dict[str, Any]:
        return change(services.scenarios, services.chain.scenario(name).name)

    return json_response(await _off_loop(work), status)


async def log_lines(request: Request) -> Response:
    """The newest lines of the log, oldest first; ``after`` takes a line's number."""
    level = _choice(request, "level", LEVELS) or "debug"
    after, limit = _whole(request, "after", 0, 0, _SEQ_LIMIT), _limit(request)
    return json_response({"lines": _services(request).log_lines.lines(after, limit, level)})


async def events(request: Request) -> Response:
    """What happens, as server-sent events; ``Last-Event-ID`` or ``?after=`` resumes."""
    services = _services(request)
    said = request.headers.get("last-event-id") or request.query_params.get("after")
    last = None if said is None else _number(said, "after", 0, _SEQ_LIMIT)

    async def lines() -> AsyncIterator[bytes]:
        yield b": listening\n\n"
        async for event in services.bus.listen(last):
            yield f"id: {event.event_id}\nevent: {event.kind}\ndata: {json.dumps(event.as_dict())}\n\n".encode()

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"cache-control": "no-cache"})


_SCENARIO = "/reef/scenarios/{scenario}"

routes = [
    Route("/", root),
    Route("/healthz", healthz),
    Route("/reef/status", status),
    Route("/reef/events", events),
    Route("/reef/logs", log_lines),
    Route("/reef/scenarios", scenarios, methods=["GET"]),
    Route("/reef/scenarios", new_scenario, methods=["POST"]),
    Route(_SCENARIO, one_scenario),
    Route(f"{_SCENARIO}/records", list_records),
    Route(f"{_SCENARIO}/records/{{record_id}}", one_record),
    Route("/reef/records/{record_id}", one_record),
    Route("/reef/records/{record_id}/request", record_request),
    Route("/reef/records/{record_id}/response", record_response),
    Route(f"{_SCENARIO}/pending", pending),
    Route(f"{_SCENARIO}/releases", list_releases),
    Route(f"{_SCENARIO}/releases/{{release_id}}", one_release),
    Route(f"{_SCENARIO}/releases/{{release_id}}/diff", release_diff),
    Route(f"{_SCENARIO}/steps", list_steps),
    Route(f"{_SCENARIO}/proposals", list_proposals),
    *(
        Route(f"{_SCENARIO}/{name}", act, methods=["POST"])
        for name, act in (
            ("rollback", rollback),
            ("promote", promote),
            ("reject", reject),
            ("pause", pause),
            ("resume", resume),
            ("step", step),
        )
    ),
]
