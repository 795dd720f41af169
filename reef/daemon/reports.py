"""POST /reef/report and POST /reef/records: feedback and imported exchanges come in. Every refusal names the field."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.core.reports import Report, check_name, check_session, parse_report, secret_name
from reef.daemon.redact import masked_json
from reef.daemon.services import Services
from reef.daemon.shapes import IMPORT_LIMIT, IMPORT_STATES, RELEASE_PATTERN
from reef.daemon.wire import json_response, read_body, read_json, read_json_whole
from reef.errors import BadRequest, Conflict, NotFound
from reef.records import RecordStore

_LATEST_S = 2.0**33
_WORD = re.compile(r"[ -~]*")


async def report(request: Request) -> Response:
    """Store one report; the answer says which record it became and where it stands."""
    services: Services = request.app.state.services
    raw = await read_body(request, services.max_body_bytes)
    if any(needle in raw for needle in services.needles):
        raw = masked_json(raw, services.secrets)
    body = read_json(raw)
    name = request.headers.get("x-reef-scenario") or (body.get("scenario") if isinstance(body, dict) else None)
    known = services.scenarios.opened.get(name or services.default_scenario) if isinstance(name, str | None) else None
    name = known.name if known is not None else await new_name(services, name)
    schema = services.scenarios.recipe.report_schema
    if schema is None:
        hint = "it learns from the traffic itself"
        raise Conflict(f"recipe {services.scenarios.recipe.name} takes no reports", hint=hint, code="no_reports")
    parsed = parse_report(body, schema)
    report_id = parsed.agent_record_id
    if "idempotency-key" in request.headers:
        key = check_name(request.headers["idempotency-key"], "idempotency-key")
        if key is not None and any(secret in key.encode() for secret in services.secrets):
            raise secret_name("idempotency-key")
        report_id = report_id or key
    payload = parsed.payload
    if not parsed.references:
        named = await asyncio.to_thread(_session_references, services.records, name, parsed, report_id)
        payload = {**payload, "references": named}
    trained = (
        known.thread is not None if known is not None else services.scenarios.recipe.build_surface().kind != "nothing"
    )
    record = AgentRecord(
        report_id or uuid.uuid4().hex,
        name,
        RequestType.REPORT,
        payload,
        time.time(),
        RecordState.PARKED,
        session=parsed.session,
        reason=None if trained else "record_only: this scenario's recipe updates nothing",
        meta={} if parsed.score is None else {"score": parsed.score},
    )
    (stored,) = await asyncio.wrap_future(services.records.submit(record))
    scenario = known or await services.scenarios.open(name)  # made by now, in the transaction that took the report
    if stored is record:
        if services.bus.listened:
            services.bus.publish("report", name, id=record.agent_record_id, score=parsed.score)
        if scenario.thread is not None:
            scenario.thread.wake()
    shown = {
        "agent_record_id": stored.agent_record_id,
        "scenario": name,
        "state": stored.state.value,
        "reason": stored.reason,
        "references": payload["references"],
        "duplicate": stored is not record,
    }
    return Response(orjson.dumps(shown), media_type="application/json")


async def import_records(request: Request) -> Response:
    """Import finished exchanges, one object or ``{"records": [...]}``; each is stored once by its id."""
    services: Services = request.app.state.services
    raw = await read_body(request, services.max_body_bytes)
    if any(needle in raw for needle in services.needles):
        raw = masked_json(raw, services.secrets)
    body = read_json_whole(raw)
    rows = body.get("records") if isinstance(body, dict) and "records" in body else [body]
    if not isinstance(rows, list) or not 1 <= len(rows) <= IMPORT_LIMIT:
        raise BadRequest(f"records must be a list of 1 to {IMPORT_LIMIT} objects", field="records")
    name = await new_name(services, request.headers.get("x-reef-scenario"))
    taken = await asyncio.to_thread(_import, services.records, name, rows)
    (await services.scenarios.open(name)).answered()
    return json_response(taken)


async def new_name(services: Services, name: Any) -> str:
    """The name of a scenario that is perhaps not there yet; it is made with what it is to hold, and not before."""
    found = name or services.default_scenario
    if not isinstance(found, str):
        raise BadRequest(f"scenario must be text, not {type(found).__name__}", field="scenario")
    if not found:
        raise BadRequest("no x-reef-scenario header", hint="name the workload the report belongs to", field="scenario")
    await asyncio.to_thread(services.scenarios.check, found)
    return found


def _session_references(records: RecordStore, scenario: str, parsed: Report, report_id: str | None) -> list[str]:
    """All receipts of the named session; a retry keeps those of the first report, although the session may have grown."""
    assert parsed.session is not None
    stored = records.resolve([report_id]) if report_id is not None else {}
    if stored:
        return list(next(iter(stored.values())).record.references)
    found = records.session_receipts(scenario, parsed.session)
    if not found:
        raise NotFound(
            f"session {parsed.session!r} of scenario {scenario!r} has no finished calls of its own",
            hint="run the agent first, or give references",
            code="no_session",
        )
    return found


def _import(records: RecordStore, scenario: str, rows: list[Any]) -> dict[str, Any]:
    """Check all rows, then store all or none; off the event loop, because tensors of a thousand exchanges are much."""
    parsed = [_imported(row, index, scenario) for index, row in enumerate(rows)]
    stored = records.submit(*parsed).result()
    fresh = sum(one is given for one, given in zip(stored, parsed, strict=True))
    return {"agent_record_ids": [one.agent_record_id for one in stored], "new": fresh}


def _imported(row: Any, index: int, scenario: str) -> AgentRecord:
    if not isinstance(row, dict) or not isinstance(row.get("request"), dict):
        raise BadRequest("an imported record needs a request object", field=f"records[{index}].request")
    state, response = row.get("state", "complete"), row.get("response")
    if state not in IMPORT_STATES:
        raise BadRequest(f"state {state!r} is none of {', '.join(IMPORT_STATES)}", field=f"records[{index}].state")
    if not isinstance(response, dict) and (response is not None or state == "complete"):
        raise BadRequest("an imported record needs a response object", field=f"records[{index}].response")
    if response is not None and not isinstance(response.get("training", {}), dict):
        raise BadRequest("training must be an object of tensors", field=f"records[{index}].response.training")
    created_at = row.get("created_at")
    if created_at is not None and (type(created_at) not in (int, float) or not 0 <= created_at <= _LATEST_S):
        raise BadRequest("created_at must be a time in seconds since 1970", field=f"records[{index}].created_at")
    usage = row.get("usage")
    counted = {} if usage is None else usage
    if not isinstance(counted, dict) or not all(_WORD.fullmatch(name) and _is_count(counted[name]) for name in counted):
        raise BadRequest("usage must be an object of counts", field=f"records[{index}].usage")
    release_id = row.get("release_id")
    if release_id is not None and not (isinstance(release_id, str) and re.fullmatch(RELEASE_PATTERN, release_id)):
        raise BadRequest(
            "release_id must be a release's name", hint="for example r7", field=f"records[{index}].release_id"
        )
    return AgentRecord.create(
        scenario,
        RequestType.INFERENCE,
        {"request": row["request"], "response": response},
        check_name(row.get("agent_record_id"), f"records[{index}].agent_record_id"),
        created_at=created_at,
        state=RecordState(state),
        session=check_session(row.get("session"), f"records[{index}].session"),
        release_id=release_id,
        meta={
            "imported": True,
            **({"usage": {name: int(count) for name, count in counted.items()}} if counted else {}),
        },
    )


def _is_count(value: Any) -> bool:
    """True for a whole number from 0 on, also one that was written as 3.0."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= 2**53 and value % 1 == 0


routes = [
    Route("/reef/report", report, methods=["POST"]),
    Route("/reef/records", import_records, methods=["POST"]),
]
