"""POST /reef/report and POST /reef/records: feedback and imported exchanges come in. Every refusal names the field."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.core.reports import Report, check_name, parse_report
from reef.daemon.services import Services
from reef.daemon.wire import json_response, read_body
from reef.errors import BadRequest, Conflict, NotFound
from reef.scenario import Scenario

_IMPORT_LIMIT = 1000
_STATES = ("complete", "incomplete", "aborted", "failed")


async def report(request: Request) -> Response:
    """Store one report; the answer says which record it became and where it stands."""
    services: Services = request.app.state.services
    body = _json(await read_body(request, services.max_body_bytes))
    name = request.headers.get("x-reef-scenario") or (body.get("scenario") if isinstance(body, dict) else None)
    scenario = await _scenario(services, name)
    schema = scenario.recipe.report_schema
    if schema is None:
        raise Conflict(
            f"recipe {scenario.recipe.name} takes no reports",
            hint="it learns from the traffic itself",
            code="no_reports",
        )
    parsed = parse_report(body, schema)
    report_id = parsed.agent_record_id or check_name(request.headers.get("idempotency-key"), "idempotency-key")
    references = _references(services, scenario, parsed, report_id)
    record = AgentRecord.create(
        scenario.name, RequestType.REPORT, parsed.payload(references), report_id, session=parsed.session
    )
    stored = await services.records.submit(record)
    fresh = stored is record
    if fresh:
        services.bus.publish("report", scenario.name, id=record.agent_record_id, score=parsed.score)
        scenario.reported()
    return json_response(
        {
            "agent_record_id": stored.agent_record_id,
            "scenario": scenario.name,
            "state": stored.state.value,
            "reason": stored.reason,
            "references": record.payload["references"],
            "duplicate": not fresh,
        }
    )


async def import_records(request: Request) -> Response:
    """Import finished exchanges, one object or ``{"records": [...]}``; each is stored once by its id."""
    services: Services = request.app.state.services
    body = _json(await read_body(request, services.max_body_bytes))
    rows = body.get("records") if isinstance(body, dict) and "records" in body else [body]
    if not isinstance(rows, list) or not 1 <= len(rows) <= _IMPORT_LIMIT:
        raise BadRequest(f"records must be a list of 1 to {_IMPORT_LIMIT} objects", field="records")
    scenario = await _scenario(services, request.headers.get("x-reef-scenario"))
    parsed = [_imported(row, index, scenario.name) for index, row in enumerate(rows)]
    stored = [await services.records.submit(record) for record in parsed]
    scenario.answered()
    return json_response({"agent_record_ids": [record.agent_record_id for record in stored]})


async def _scenario(services: Services, name: Any) -> Scenario:
    found = name or services.default_scenario
    if not isinstance(found, str) or not found:
        raise BadRequest("no x-reef-scenario header", hint="name the workload the report belongs to", field="scenario")
    return services.scenarios.get(found) or await services.scenarios.open(found)


def _references(services: Services, scenario: Scenario, parsed: Report, report_id: str | None) -> tuple[str, ...]:
    """The named receipts, or all of the named session's; receipts of another scenario are refused."""
    if not parsed.references and parsed.session is not None:
        stored = services.records.resolve([report_id]) if report_id is not None else {}
        if stored:  # a retry: the session may have grown since, the report has not
            return next(iter(stored.values())).record.references
        found = services.records.session_receipts(scenario.name, parsed.session)
        if not found:
            raise NotFound(
                f"session {parsed.session!r} of scenario {scenario.name!r} has no recorded calls",
                hint="run the agent first, or give references",
                code="no_session",
            )
        return tuple(found)
    for reference, row in services.records.resolve(parsed.references).items():
        if row.record.scenario != scenario.name:
            raise Conflict(
                f"{reference} belongs to scenario {row.record.scenario!r}, not {scenario.name!r}",
                hint="send the report with that scenario's name",
                code="other_scenario",
            )
        if row.record.request_type is not RequestType.INFERENCE:
            raise BadRequest(f"{reference} is a {row.record.request_type.value}, not an inference", field="references")
    return parsed.references


def _imported(row: Any, index: int, scenario: str) -> AgentRecord:
    if not isinstance(row, dict) or not isinstance(row.get("request"), dict):
        raise BadRequest("an imported record needs a request object", field=f"records[{index}].request")
    response = row.get("response")
    if not isinstance(response, dict):
        raise BadRequest("an imported record needs a response object", field=f"records[{index}].response")
    state = row.get("state", "complete")
    if state not in _STATES:
        raise BadRequest(f"state {state!r} is none of {', '.join(_STATES)}", field=f"records[{index}].state")
    return AgentRecord.create(
        scenario,
        RequestType.INFERENCE,
        {"request": row["request"], "response": response},
        check_name(row.get("agent_record_id"), f"records[{index}].agent_record_id"),
        state=RecordState(state),
        session=check_name(row.get("session"), f"records[{index}].session"),
        release_id=check_name(row.get("release_id"), f"records[{index}].release_id"),
        meta={"imported": True},
    )


def _json(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}", hint="send a JSON object") from None


routes = [
    Route("/reef/report", report, methods=["POST"]),
    Route("/reef/records", import_records, methods=["POST"]),
]
