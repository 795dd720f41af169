"""POST /reef/train and POST /reef/harness/proposals: what people and agents ask for; each is the next step by itself."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.core.reports import check_name
from reef.daemon.redact import masked_json, masked_text
from reef.daemon.reports import new_name
from reef.daemon.services import Services
from reef.daemon.shapes import REQUEST_CHARS
from reef.daemon.wire import json_response, read_body, read_json
from reef.errors import BadRequest, Conflict
from reef.evolve.screens import without_credentials
from reef.evolve.values import Refusal, proposal_of


async def train(request: Request) -> Response:
    """A request in words for a change of the harness."""
    services, body, _ = await _body(request, "request")
    words = body.get("request")
    if not isinstance(words, str) or not words.strip() or len(words) > REQUEST_CHARS:
        raise BadRequest(f"request must be text of 1 to {REQUEST_CHARS} characters", field="request")
    return await _store(services, request, body, {"request": words.strip()})


async def propose(request: Request) -> Response:
    """A finished change, by an agent or a person: screened, compared and judged like any other."""
    services, body, hid = await _body(request, "edits", "why")
    found = proposal_of({name: body[name] for name in ("why", "edits") if name in body})  # a Refusal is a 409
    clean, reason = without_credentials(found, str)
    if hid or reason is not None:  # nothing of it is kept
        raise Refusal(reason or "the change holds a key of this deployment", hint="leave the key out")
    by = masked_text(request.headers.get("x-reef-actor", "agent"), services.secrets)[:40]
    return await _store(services, request, body, {"proposal": clean, "by": by})


async def _body(request: Request, *fields: str) -> tuple[Services, Mapping[str, Any], bool]:
    """Who serves, what was sent, and whether keys of the deployment were hidden in it."""
    services: Services = request.app.state.services
    if not services.scenarios.recipe.takes_requests:
        hint = "start with: reef up --recipe evolve"
        raise Conflict(f"recipe {services.scenarios.recipe.name} evolves no harness", hint=hint, code="no_harness")
    sent = raw = await read_body(request, services.max_body_bytes)
    if any(needle in raw for needle in services.needles):
        raw = masked_json(raw, services.secrets)
    body = read_json(raw)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    if odd := sorted(set(body) - {*fields, "scenario", "agent_record_id"}):
        raise BadRequest(f"unknown field {odd[0]!r}", field=str(odd[0]))
    return services, body, raw != sent


async def _store(services: Services, request: Request, body: Mapping[str, Any], payload: Mapping[str, Any]) -> Response:
    given = check_name(body.get("scenario"), "scenario")
    name = await new_name(services, request.headers.get("x-reef-scenario") or given)
    record_id = check_name(body.get("agent_record_id"), "agent_record_id") or uuid.uuid4().hex
    record = AgentRecord(record_id, name, RequestType.TRAINING, payload, time.time(), RecordState.PARKED)
    (stored,) = await asyncio.wrap_future(services.records.submit(record))
    thread = (await services.scenarios.open(name)).thread
    assert thread is not None, "a recipe that takes requests trains"
    thread.wake()
    return json_response(
        {
            "agent_record_id": stored.agent_record_id,
            "scenario": name,
            "state": stored.state.value,
            "reason": stored.reason,
            "references": [],
            "duplicate": stored is not record,
        }
    )


routes = [
    Route("/reef/train", train, methods=["POST"]),
    Route("/reef/harness/proposals", propose, methods=["POST"]),
]
