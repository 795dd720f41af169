"""GET /openapi.json: every route as data, written by hand and kept true by two tests: one compares it with the app's
routes, the other lets schemathesis call a live daemon and check each answer against it.

By hand, because routes here read plain JSON and have no models to generate from. Knows no services.
"""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef import __version__
from reef.core.records_types import RecordState, RequestType
from reef.core.reports import LIMITS
from reef.daemon.logs import LEVELS
from reef.daemon.shapes import (
    COUNT,
    IMPORT_LIMIT,
    NAME,
    NAME_OR_EMPTY,
    NAME_TEXT,
    NUMBER,
    OBJECT,
    PAGE_LIMIT,
    PLAIN,
    RELEASE_PATTERN,
    REQUEST_CHARS,
    SCHEMAS,
    TEXT,
    Data,
    fields,
    fields_alone,
    list_of,
    one_of,
    or_null,
    ref,
)
from reef.daemon.wire import json_response
from reef.inference.base import ROUTES


def _query(name: str, schema: Data, said: str) -> Data:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": said}


def _header(name: str, schema: Data, said: str) -> Data:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": said}


def _path(name: str, said: str, example: str) -> Data:
    return {"name": name, "in": "path", "required": True, "schema": TEXT, "description": said, "example": example}


_SCENARIO = _path("scenario", "a scenario's name", "default")
_RECORD = _path("record_id", "a receipt, or a report's id", "example-1")
_RELEASE = _path("release_id", "r7, or the beginning of a content id (8 characters or more)", "r0")
_WORKLOAD = _header("x-reef-scenario", NAME_OR_EMPTY, f"the workload; {NAME_TEXT}")
_SESSION = _header("x-reef-session", TEXT, "groups the calls of one agent run")
_ACTOR = _header("x-reef-actor", TEXT, "who acts, for the log of actions")
_LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT}, "rows of the page")
_ID_HEADERS: Data = {
    "x-reef-agent-record-id": {"schema": TEXT, "description": "the receipt: names a row that is on disk"},
    "x-reef-release-id": {"schema": TEXT, "description": "the release that answered"},
}


def _answer(said: str, schema: Data | None, kind: str = "application/json", headers: Data | None = None) -> Data:
    found: Data = {"description": said}
    if schema is not None:
        found["content"] = {kind: {"schema": schema}}
    if headers is not None:
        found["headers"] = headers
    return found


_ERRORS = {
    400: "the request is wrong; field names the part",
    401: "no token, or a wrong one",
    403: "a foreign Host or Origin",
    404: "no such thing",
    409: "the present state does not allow it, or the id exists with other content",
    413: "the body is over reef.max_body_mb",
    415: "a content coding that nobody here reads",
    503: "starting, stopping, or the store's queue is full; retry-after says when",
    507: "the disk cannot take the record",
}


def _errors(*codes: int, shape: str = "Error") -> Data:
    return {str(code): _answer(_ERRORS[code], ref(shape)) for code in sorted({401, 403, *codes})}


def _get(
    said: str, schema: Data | None, *parameters: Data, errors: tuple[int, ...] = (), kind: str = "application/json"
) -> Data:
    answers = {"200": _answer("what was asked for", schema, kind), **_errors(*errors)}
    return {"get": {"summary": said, "parameters": list(parameters), "responses": answers}}


_BODY_ERRORS = (400, 413, 415, 503, 507)


def _post(
    said: str, body: Data | None, schema: Data, *parameters: Data, errors: tuple[int, ...] = (), status: int = 200
) -> Data:
    operation: Data = {
        "summary": said,
        "parameters": list(parameters),
        "responses": {str(status): _answer("done", schema), **_errors(*_BODY_ERRORS, *errors)},
    }
    if body is not None:
        required = bool(body.get("required")) or "anyOf" in body or "$ref" in body
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    return {"post": operation}


def _act(said: str, body: Data | None, schema: Data, status: int = 200) -> Data:
    return _post(said, body, schema, _SCENARIO, _ACTOR, errors=(404, 409), status=status)


def _provider(path: str) -> Data:
    """A recorded wire format: any JSON object goes to the provider, whose answer, of whatever kind, comes back as it is."""
    shape = "AnthropicError" if path.startswith("/v1/messages") else "OpenAIError"
    passed: Data = {
        "description": "what answered, passed on byte for byte: its status, headers, JSON or event stream",
        "content": {"*/*": {}},
        "headers": _ID_HEADERS,
    }
    operation: Data = {
        "summary": "A model call, recorded, in the provider's own format (see its API reference); streamed on request.",
        "parameters": [_WORKLOAD, _SESSION],
        "requestBody": {"required": True, "content": {"application/json": {"schema": OBJECT}}},
        "responses": {"default": passed, **_errors(*_BODY_ERRORS, 404, shape=shape)},
    }
    return {"post": operation}


_ONE_RELEASE = fields(release_id={**NAME, "description": "r7, or the beginning of a content id"})
_TYPE = _query("type", one_of(RequestType), "only this kind of record")
_STATE = _query("state", one_of(RecordState), "only records in this state")
_ID = {"type": "integer", "minimum": 0, "maximum": 2**53}
_OF_SCENARIO = "/reef/scenarios/{scenario}"

_PATHS: dict[str, Data] = {
    "/": {
        "get": {
            "summary": "What some clients knock at before they call; needs no token.",
            "security": [],
            "responses": {
                "200": _answer("reef is here", fields(name=one_of(("reef",)), api=TEXT)),
                "403": _answer(_ERRORS[403], ref("Error")),
            },
        }
    },
    "/healthz": {
        "get": {
            "summary": "200 when the first call would be served; needs no token.",
            "security": [],
            "responses": {
                "200": _answer("ready", fields(status=one_of(("ok", "degraded")))),
                "503": _answer("not ready", fields(status=one_of(("starting", "failed")))),
                "403": _answer(_ERRORS[403], ref("Error")),
            },
        }
    },
    "/openapi.json": _get("This document.", OBJECT),
    "/metrics": _get("Figures in the Prometheus text format.", TEXT, kind="text/plain"),
    "/reef/status": _get("The whole daemon in one document.", ref("Status")),
    "/reef/events": _get(
        "What happens, as server-sent events, until the client leaves.",
        TEXT,
        _query("after", _ID, "resume after this event's id"),
        _header("last-event-id", _ID, "as after; this is what browsers send"),
        errors=(400,),
        kind="text/event-stream",
    ),
    **{path: _provider(path) for path in ROUTES},
    "/v1/models": {
        "get": {
            "summary": "The models that can be named in calls.",
            "responses": {
                "default": _answer("the provider's refusal", None),
                "200": _answer("the list", OBJECT),
                **_errors(503, shape="OpenAIError"),
            },
        }
    },
    "/v1/messages/count_tokens": {
        "post": {
            "summary": "Counted by what answers calls; never recorded.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": OBJECT}}},
            "responses": {
                "default": _answer("the provider's refusal", None),
                "200": _answer("the count", OBJECT),
                **_errors(*_BODY_ERRORS, shape="AnthropicError"),
            },
        }
    },
    "/reef/report": _post(
        "Feedback about receipts, or about all calls of a session.",
        ref("Report"),
        ref("Stored"),
        _WORKLOAD,
        _header("idempotency-key", NAME_OR_EMPTY, "the report's id, where the body names none"),
        errors=(404, 409),
    ),
    "/reef/train": _post(
        "Ask for a change of the harness in words; it is the next step.",
        fields_alone({}, request={**TEXT, "pattern": r"\S", "maxLength": REQUEST_CHARS}),
        ref("Stored"),
        _WORKLOAD,
        errors=(404, 409),
    ),
    "/reef/harness/proposals": _post(
        "Hand in a change of the harness; it is screened, compared and judged as the next step.",
        fields_alone({"why": TEXT}, edits=list_of(ref("Edit"))),
        ref("Stored"),
        _WORKLOAD,
        _ACTOR,
        errors=(404, 409),
    ),
    "/reef/harness": _get(
        "The harness that a scenario serves, as a tree of texts; a new name creates the scenario.",
        ref("Harness"),
        _query("scenario", NAME_OR_EMPTY, "default: reef.default_scenario"),
        _query("session", {"type": "string", "maxLength": LIMITS.session_chars}, "the agent run that asks"),
        _query("release", {"type": "string", "pattern": f"^({RELEASE_PATTERN})?$"}, "one release of it, served or not"),
        errors=(400, 404, 409, 503),
    ),
    "/reef/harness/adapters": _get("The agents that can be installed.", fields(adapters=list_of(ref("Adapter")))),
    "/reef/harness/install": _get(
        "A bash script that installs an agent with this daemon's harness.",
        TEXT,
        {**_query("adapter", {"type": "string", "minLength": 1}, "an adapter's name"), "required": True, "example": "minimal"},
        _query("scenario", NAME_OR_EMPTY, "default: reef.default_scenario"),
        errors=(400, 404, 409, 503),
        kind="text/x-shellscript",
    ),
    "/reef/records": _post(
        f"Import finished exchanges: one, or records with up to {IMPORT_LIMIT}; each is stored once by its id.",
        {
            "anyOf": [
                ref("Import"),
                fields(records={**list_of(ref("Import")), "minItems": 1, "maxItems": IMPORT_LIMIT}),
            ],
        },
        fields(agent_record_ids=list_of(TEXT), new=COUNT),
        _WORKLOAD,
        errors=(404, 409),
    ),
    "/reef/records/{record_id}": _get("One record with bodies and lineage.", ref("Record"), _RECORD, errors=(404,)),
    "/reef/records/{record_id}/request": _get("The exact bytes of its request.", {}, _RECORD, errors=(404,)),
    "/reef/records/{record_id}/response": _get(
        "The exact bytes of its answer.", {}, _RECORD, errors=(404,), kind="application/octet-stream"
    ),
    "/reef/scenarios": {
        **_get("All scenarios.", fields(scenarios=list_of(ref("Scenario")))),
        **_post("Create one.", fields(name=NAME), ref("Scenario"), errors=(404,), status=201),
    },
    _OF_SCENARIO: _get("One, with what it waits for.", ref("Scenario"), _SCENARIO, errors=(404,)),
    f"{_OF_SCENARIO}/records": _get(
        "A page of records, newest first, or oldest first with after.",
        fields(records=list_of(ref("Record"))),
        _SCENARIO,
        _LIMIT,
        _query("before", _ID, "records with a smaller seq"),
        _query("after", _ID, "records with a greater seq, oldest first"),
        _query("since", NUMBER, "created at or after this time, in seconds since 1970"),
        _TYPE,
        _STATE,
        _query("session", TEXT, "only this session"),
        _query("bodies", one_of(("true", "false")), "with requests and answers; the page ends early when it gets large"),
        errors=(400, 404),
    ),
    f"{_OF_SCENARIO}/records/{{record_id}}": _get(
        "One record of this scenario.", ref("Record"), _SCENARIO, _RECORD, errors=(404,)
    ),
    f"{_OF_SCENARIO}/pending": _get(
        "Reports that wait, with what they wait for.",
        fields(records=list_of(ref("Record"))),
        _SCENARIO,
        _LIMIT,
        errors=(400, 404),
    ),
    f"{_OF_SCENARIO}/releases": _get(
        "The chain, newest first.",
        fields(releases=list_of(ref("Release"))),
        _SCENARIO,
        _LIMIT,
        _query("before", {**_ID, "maximum": 2**31}, "releases with a smaller number"),
        errors=(400, 404),
    ),
    f"{_OF_SCENARIO}/releases/{{release_id}}": _get(
        "One release with the ids of the records it learned from.",
        ref("Release"),
        _SCENARIO,
        _RELEASE,
        errors=(404,),
    ),
    f"{_OF_SCENARIO}/releases/{{release_id}}/diff": _get(
        "What changed since another release.",
        {"type": "object", "required": ["from", "to", "diff"],
         "properties": {"from": or_null(ref("Release")), "to": ref("Release"), "diff": TEXT}},
        _SCENARIO,
        _RELEASE,
        _query("to", TEXT, "the other release; default: the parent"),
        errors=(404,),
    ),
    f"{_OF_SCENARIO}/steps": _get(
        "Past steps, newest first.", fields(steps=list_of(ref("Step"))), _SCENARIO, _LIMIT, errors=(400, 404)
    ),
    f"{_OF_SCENARIO}/proposals": _get(
        "A page of proposals for the harness, newest first, and what became of them; it ends early when it gets large.",
        fields(proposals=list_of(ref("Proposal"))),
        _SCENARIO,
        _LIMIT,
        _query("before", _ID, "proposals with a smaller seq"),
        _query("step_id", TEXT, "only the proposal of this step"),
        _query("texts", one_of(("true", "false")), "false: edits without their texts"),
        errors=(400, 404),
    ),
    f"{_OF_SCENARIO}/rollback": _act(
        "Serve an earlier release again.",
        {"type": "object", "properties": {"to": or_null({**NAME_OR_EMPTY, "description": "default: the head's parent"})}},
        ref("Release"),
    ),
    f"{_OF_SCENARIO}/promote": _act("Serve a held release.", _ONE_RELEASE, ref("Release")),
    f"{_OF_SCENARIO}/reject": _act("Refuse a held release.", _ONE_RELEASE, ref("Release")),
    f"{_OF_SCENARIO}/pause": _act("Stop training; serving goes on.", None, ref("Scenario")),
    f"{_OF_SCENARIO}/resume": _act("Go on training.", None, ref("Scenario")),
    f"{_OF_SCENARIO}/step": _act("Make a step of what is complete.", None, fields(progress=OBJECT), 202),
}  # fmt: skip
_PATHS["/reef/logs"] = _get(
    "The newest lines of the log, oldest first, also those of the runs before.",
    fields(
        lines=list_of(
            fields(
                {"fields": OBJECT, "exc": TEXT},
                number=COUNT,
                time=TEXT,
                level=one_of(LEVELS),
                logger=TEXT,
                message=TEXT,
            )
        )
    ),
    _LIMIT,
    _query("after", COUNT, "lines with a greater number"),
    _query("level", one_of(LEVELS), "this level and above"),
    errors=(400,),
)
_PATHS["/reef/knobs"] = {
    **_get("Every key of the deployment, and when a change of it applies.", ref("Knobs")),
    "patch": _post(
        "Change numbers of the recipe from the next batch on, until the daemon stops; null takes a change back.",
        fields(knobs={"type": "object", "minProperties": 1, "additionalProperties": PLAIN}),
        ref("Knobs"),
        _ACTOR,
        errors=(404, 409),
    )["post"],
}
_PATHS["/v1/responses"] |= {
    "get": {
        "summary": "Some clients try a WebSocket first: 426 sends them to POST at once.",
        "responses": {"426": _answer("use POST", None), **_errors(shape="OpenAIError")},
    }
}
_PATHS["/reef/scenarios"]["post"]["responses"]["201"]["links"] = {
    "scenario": {
        "operationRef": "#/paths/~1reef~1scenarios~1{scenario}/get",
        "parameters": {"scenario": "$response.body#/name"},
    }
}


for _route, _operations in _PATHS.items():
    for _method, _operation in _operations.items():
        _operation["operationId"] = f"{_method}{re.sub(r'[^a-z_]+', '_', _route)}".rstrip("_")


def document() -> Data:
    """The whole document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Reef",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "The daemon's HTTP interface. Fields may be added; none is taken away within a version.",
        },
        "security": [{"bearer": []}, {"apiKey": []}, {"reefToken": []}],
        "paths": _PATHS,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "reefToken": {"type": "apiKey", "in": "header", "name": "x-reef-token"},
            },
        },
    }


async def openapi(request: Request) -> Response:
    """The document."""
    return json_response(document())


routes = [Route("/openapi.json", openapi)]
