"""GET /openapi.json: every route as data, written by hand and kept true by two tests: one compares it with the app's
routes, the other lets schemathesis call a live daemon and check each answer against it.

By hand, because routes here read plain JSON and have no models to generate from. Knows no services.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef import __version__
from reef.core.artifacts import Decision, ReleaseState
from reef.core.records_types import RecordState, RequestType
from reef.core.reports import LIMITS, NAME_PATTERN
from reef.daemon.wire import json_response
from reef.harness.tree import KINDS
from reef.harness.tree import VERSION as TREE_VERSION
from reef.inference.base import ROUTES

Data = dict[str, Any]

IMPORT_LIMIT = 1000
"""Records of one POST /reef/records."""
PAGE_LIMIT = 500
"""Rows of one page."""
REQUEST_CHARS = 20_000
"""Characters of a request for a change in words."""
RELEASE_PATTERN = "r[0-9]{1,9}"
IMPORT_STATES = ("complete", "incomplete", "aborted", "failed")

_TEXT: Data = {"type": "string"}
_NUMBER: Data = {"type": "number"}
_BOOL: Data = {"type": "boolean"}
_COUNT: Data = {"type": "integer", "minimum": 0}
_OBJECT: Data = {"type": "object"}
_NAME: Data = {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
_NAME_OR_EMPTY: Data = {"type": "string", "pattern": f"^({NAME_PATTERN})?$"}
_TIME: Data = {"type": "number", "description": "seconds since 1970"}
_NAME_TEXT = "1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit"


def _ref(name: str) -> Data:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Data) -> Data:
    return {"type": "array", "items": of}


def _or_null(of: Data) -> Data:
    return {"anyOf": [of, {"type": "null"}]}


def _words(values: Any) -> Data:
    return {"type": "string", "enum": [str(value) for value in values]}


def _shape(optional: Mapping[str, Data] | None = None, /, **required: Data) -> Data:
    """An object with these fields; more may be added in later versions."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _shape_alone(optional: Mapping[str, Data], /, **required: Data) -> Data:
    """As ``_shape``, for what is sent: a field that nobody knows is refused."""
    shape = _shape(
        {"scenario": _or_null(_NAME_OR_EMPTY), "agent_record_id": _or_null(_NAME_OR_EMPTY), **optional}, **required
    )
    return {**shape, "additionalProperties": False}


_LINEAGE = _or_null(_shape(step=_COUNT, release_id=_or_null(_TEXT)))
_COUNTS: Data = {"type": "object", "additionalProperties": _COUNT}

_SCHEMAS: Data = {
    "Error": _shape(error=_shape({"field": _TEXT}, code=_TEXT, message=_TEXT, hint=_TEXT)),
    "OpenAIError": _shape(
        error=_shape(message=_TEXT, type=_TEXT, param=_or_null(_TEXT), code=_or_null(_TEXT)),
    ),
    "AnthropicError": _shape(type={"const": "error"}, error=_shape(type=_TEXT, message=_TEXT, code=_TEXT)),
    "Record": _shape(
        {
            "score": _or_null(_NUMBER),
            "references": _list(_TEXT),
            "feedback": {"description": "text or a JSON document, null for none"},
            "metadata": _OBJECT,
            "request": {"description": "the JSON document that was sent; null once its body was removed"},
            "response": {"description": "the assembled answer; training holds the token block; null for none"},
            "reports": _list(_TEXT),
            "consumed_by": _LINEAGE,
            "consumed_step": _or_null(_COUNT),
        },
        agent_record_id=_TEXT,
        seq=_COUNT,
        scenario=_TEXT,
        request_type=_words(RequestType),
        state=_words(RecordState),
        reason=_or_null(_shape(code=_TEXT, message=_TEXT)),
        created_at=_TIME,
        release_id=_or_null(_TEXT),
        session=_or_null(_TEXT),
        usage=_or_null(_OBJECT),
        meta=_OBJECT,
        purged_at=_or_null(_TIME),
    ),
    "Release": _shape(
        {"records": _list(_TEXT)},
        release_id={"type": "string", "pattern": "^r[0-9]+$"},
        content_id=_TEXT,
        scenario=_TEXT,
        parent=_or_null(_TEXT),
        step=_COUNT,
        step_id=_or_null(_TEXT),
        state=_words(ReleaseState),
        created_at=_TIME,
        restored_from=_or_null(_TEXT),
        size_bytes=_COUNT,
        verdict={"type": "object", "properties": {"decision": _words(Decision), "rule": _TEXT, "reason": _TEXT}},
        metrics=_OBJECT,
    ),
    "Step": _shape(
        step=_COUNT,
        step_id=_TEXT,
        batch_id=_TEXT,
        outcome=_TEXT,
        reason=_or_null(_TEXT),
        release_id=_or_null(_TEXT),
        created_at=_TIME,
        metrics=_OBJECT,
        verdict=_OBJECT,
    ),
    "Scenario": _shape(
        name=_TEXT,
        recipe=_TEXT,
        surface=_TEXT,
        created_at=_TIME,
        release_id=_or_null(_TEXT),
        step=_COUNT,
        state=_TEXT,
        detail=_TEXT,
        evolving=_shape({"error_budget": _or_null(
            _shape(alpha=_NUMBER, used=_NUMBER, tests=_COUNT, published=_COUNT, next_level=_NUMBER))}),
        batch=_shape(have=_COUNT, need=_COUNT),
        waiting_for=_TEXT,
        pending_receipts=_list(_TEXT),
        counts={"type": "object", "additionalProperties": _COUNTS},
        reasons=_COUNTS,
        bytes=_COUNT,
    ),
    "Status": _shape(
        version={"const": 1},
        daemon=_shape(
            version=_TEXT, pid=_COUNT, uptime_s=_NUMBER, home=_TEXT, url=_TEXT, ready=_BOOL, recipe=_TEXT
        ),
        inference=_shape(backend=_words(("engine", "provider")), model=_or_null(_TEXT), ready=_BOOL,
                         engine=_or_null(_OBJECT), speaks=_list(_words(ROUTES.values())),
                         upstream=_or_null(_shape(
                             url=_TEXT, failing=_BOOL,
                             last_failure=_or_null(_shape(at=_NUMBER, code=_TEXT, message=_TEXT))))),
        store=_shape(records=_COUNT, bytes=_COUNT, queue=_COUNT, commits=_COUNT, fsync_ms=_NUMBER,
                     unrecorded=_COUNT, degraded=_or_null(_TEXT)),
        scenarios=_list(_ref("Scenario")),
    ),
    "Report": {
        "type": "object",
        "properties": {
            "score": _or_null({"type": "number", "description": "the recipe may want a range, or no score at all"}),
            "feedback": {"anyOf": [_TEXT, _OBJECT, {"type": "array"}, {"type": "null"}]},
            "references": _or_null({**_list(_NAME), "maxItems": LIMITS.references, "description": "receipts"}),
            "metadata": _or_null(_OBJECT),
            "session": _or_null({"type": "string", "maxLength": LIMITS.session_chars}),
            "agent_record_id": _or_null({**_NAME, "description": "makes a retry safe; so does Idempotency-Key"}),
            "scenario": _or_null({**_NAME, "description": "where the header x-reef-scenario is not sent"}),
        },
        "additionalProperties": False,
        "allOf": [
            {"anyOf": [
                {"required": ["references"], "properties": {"references": {"type": "array", "minItems": 1}}},
                {"required": ["session"], "properties": {"session": _TEXT}},
            ]},
            {"anyOf": [
                {"required": ["score"], "properties": {"score": _NUMBER}},
                {"required": ["feedback"], "properties": {"feedback": {"anyOf": [
                    {"type": "string", "pattern": r"\S"},
                    {"type": "object", "minProperties": 1},
                    {"type": "array", "minItems": 1},
                ]}}},
            ]},
        ],
    },
    "Stored": _shape(
        agent_record_id=_TEXT,
        scenario=_TEXT,
        state=_words(RecordState),
        reason=_or_null(_TEXT),
        references=_list(_TEXT),
        duplicate=_BOOL,
    ),
    "Harness": _shape(
        scenario=_TEXT,
        release_id=_TEXT,
        content_id=_TEXT,
        model=_or_null(_TEXT),
        version={"const": TREE_VERSION},
        entries=_list(_shape(kind=_words(KINDS), name=_TEXT, text=_TEXT)),
    ),
    "Edit": _shape({"action": _words(("put", "delete")), "text": _TEXT}, kind=_words(KINDS), name=_TEXT),
    "Proposal": _shape(
        seq=_COUNT,
        step_id=_TEXT,
        origin=_TEXT,
        state=_words(("open", "refused", "rejected", "inconclusive", "held", "published")),
        reason=_or_null(_TEXT),
        created_at=_TIME,
        proposal=_shape(why=_TEXT, edits=_list(_ref("Edit"))),
        seen=_OBJECT,
        release_id=_or_null(_TEXT),
    ),
    "Adapter": _shape(
        name=_TEXT,
        summary=_TEXT,
        package=_or_null(_TEXT),
        version=_or_null(_TEXT),
        node=_or_null(_TEXT),
        size_mb=_COUNT,
        kinds=_list(_words(KINDS)),
    ),
    "Import": {
        "type": "object",
        "required": ["request"],
        "anyOf": [
            {"required": ["response"], "properties": {"response": _OBJECT}},
            {"required": ["state"], "properties": {"state": _words(IMPORT_STATES[1:])}},
        ],
        "properties": {
            "agent_record_id": _or_null(_NAME_OR_EMPTY),
            "request": _OBJECT,
            "response": _or_null({"type": "object", "properties": {"training": _OBJECT}}),
            "state": _words(IMPORT_STATES),
            "session": _or_null({"type": "string", "maxLength": LIMITS.session_chars}),
            "release_id": _or_null({"type": "string", "pattern": f"^{RELEASE_PATTERN}$"}),
            "created_at": _or_null({"type": "number", "minimum": 0, "maximum": 2**33}),
            "usage": _or_null({
                "type": "object",
                "propertyNames": {"pattern": "^[ -~]*$"},
                "additionalProperties": {**_COUNT, "maximum": 2**53},
            }),
        },
    },
}  # fmt: skip


def _query(name: str, schema: Data, said: str) -> Data:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": said}


def _header(name: str, schema: Data, said: str) -> Data:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": said}


def _path(name: str, said: str, example: str) -> Data:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT, "description": said, "example": example}


_SCENARIO = _path("scenario", "a scenario's name", "default")
_RECORD = _path("record_id", "a receipt, or a report's id", "example-1")
_RELEASE = _path("release_id", "r7, or the beginning of a content id (8 characters or more)", "r0")
_WORKLOAD = _header("x-reef-scenario", _NAME_OR_EMPTY, f"the workload; {_NAME_TEXT}")
_SESSION = _header("x-reef-session", _TEXT, "groups the calls of one agent run")
_ACTOR = _header("x-reef-actor", _TEXT, "who acts, for the log of actions")
_LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT}, "rows of the page")
_ID_HEADERS: Data = {
    "x-reef-agent-record-id": {"schema": _TEXT, "description": "the receipt: names a row that is on disk"},
    "x-reef-release-id": {"schema": _TEXT, "description": "the release that answered"},
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
    return {str(code): _answer(_ERRORS[code], _ref(shape)) for code in sorted({401, 403, *codes})}


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
        "requestBody": {"required": True, "content": {"application/json": {"schema": _OBJECT}}},
        "responses": {"default": passed, **_errors(*_BODY_ERRORS, 404, shape=shape)},
    }
    return {"post": operation}


_ONE_RELEASE = _shape(release_id={**_NAME, "description": "r7, or the beginning of a content id"})
_TYPE = _query("type", _words(RequestType), "only this kind of record")
_STATE = _query("state", _words(RecordState), "only records in this state")
_ID = {"type": "integer", "minimum": 0, "maximum": 2**53}
_OF_SCENARIO = "/reef/scenarios/{scenario}"

_PATHS: dict[str, Data] = {
    "/": {
        "get": {
            "summary": "What some clients knock at before they call; needs no token.",
            "security": [],
            "responses": {
                "200": _answer("reef is here", _shape(name=_words(("reef",)), api=_TEXT)),
                "403": _answer(_ERRORS[403], _ref("Error")),
            },
        }
    },
    "/healthz": {
        "get": {
            "summary": "200 when the first call would be served; needs no token.",
            "security": [],
            "responses": {
                "200": _answer("ready", _shape(status=_words(("ok", "degraded")))),
                "503": _answer("not ready", _shape(status=_words(("starting", "failed")))),
                "403": _answer(_ERRORS[403], _ref("Error")),
            },
        }
    },
    "/openapi.json": _get("This document.", _OBJECT),
    "/metrics": _get("Figures in the Prometheus text format.", _TEXT, kind="text/plain"),
    "/reef/status": _get("The whole daemon in one document.", _ref("Status")),
    "/reef/events": _get(
        "What happens, as server-sent events, until the client leaves.",
        _TEXT,
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
                "200": _answer("the list", _OBJECT),
                **_errors(503, shape="OpenAIError"),
            },
        }
    },
    "/v1/messages/count_tokens": {
        "post": {
            "summary": "Counted by what answers calls; never recorded.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": _OBJECT}}},
            "responses": {
                "default": _answer("the provider's refusal", None),
                "200": _answer("the count", _OBJECT),
                **_errors(*_BODY_ERRORS, shape="AnthropicError"),
            },
        }
    },
    "/reef/report": _post(
        "Feedback about receipts, or about all calls of a session.",
        _ref("Report"),
        _ref("Stored"),
        _WORKLOAD,
        _header("idempotency-key", _NAME_OR_EMPTY, "the report's id, where the body names none"),
        errors=(404, 409),
    ),
    "/reef/train": _post(
        "Ask for a change of the harness in words; it is the next step.",
        _shape_alone({}, request={**_TEXT, "pattern": r"\S", "maxLength": REQUEST_CHARS}),
        _ref("Stored"),
        _WORKLOAD,
        errors=(404, 409),
    ),
    "/reef/harness/proposals": _post(
        "Hand in a change of the harness; it is screened, compared and judged as the next step.",
        _shape_alone({"why": _TEXT}, edits=_list(_ref("Edit"))),
        _ref("Stored"),
        _WORKLOAD,
        _ACTOR,
        errors=(404, 409),
    ),
    "/reef/harness": _get(
        "The harness that a scenario serves, as a tree of texts; a new name creates the scenario.",
        _ref("Harness"),
        _query("scenario", _NAME_OR_EMPTY, "default: reef.default_scenario"),
        _query("session", {"type": "string", "maxLength": LIMITS.session_chars}, "the agent run that asks"),
        errors=(400, 404, 409, 503),
    ),
    "/reef/harness/adapters": _get("The agents that can be installed.", _shape(adapters=_list(_ref("Adapter")))),
    "/reef/harness/install": _get(
        "A bash script that installs an agent with this daemon's harness.",
        _TEXT,
        {**_query("adapter", {"type": "string", "minLength": 1}, "an adapter's name"), "required": True, "example": "minimal"},
        _query("scenario", _NAME_OR_EMPTY, "default: reef.default_scenario"),
        errors=(400, 404, 409, 503),
        kind="text/x-shellscript",
    ),
    "/reef/records": _post(
        f"Import finished exchanges: one, or records with up to {IMPORT_LIMIT}; each is stored once by its id.",
        {
            "anyOf": [
                _ref("Import"),
                _shape(records={**_list(_ref("Import")), "minItems": 1, "maxItems": IMPORT_LIMIT}),
            ],
        },
        _shape(agent_record_ids=_list(_TEXT), new=_COUNT),
        _WORKLOAD,
        errors=(404, 409),
    ),
    "/reef/records/{record_id}": _get("One record with bodies and lineage.", _ref("Record"), _RECORD, errors=(404,)),
    "/reef/records/{record_id}/request": _get("The exact bytes of its request.", {}, _RECORD, errors=(404,)),
    "/reef/records/{record_id}/response": _get(
        "The exact bytes of its answer.", {}, _RECORD, errors=(404,), kind="application/octet-stream"
    ),
    "/reef/scenarios": {
        **_get("All scenarios.", _shape(scenarios=_list(_ref("Scenario")))),
        **_post("Create one.", _shape(name=_NAME), _ref("Scenario"), errors=(404,), status=201),
    },
    _OF_SCENARIO: _get("One, with what it waits for.", _ref("Scenario"), _SCENARIO, errors=(404,)),
    f"{_OF_SCENARIO}/records": _get(
        "A page of records, newest first, or oldest first with after.",
        _shape(records=_list(_ref("Record"))),
        _SCENARIO,
        _LIMIT,
        _query("before", _ID, "records with a smaller seq"),
        _query("after", _ID, "records with a greater seq, oldest first"),
        _query("since", _NUMBER, "created at or after this time, in seconds since 1970"),
        _TYPE,
        _STATE,
        _query("session", _TEXT, "only this session"),
        _query("bodies", _words(("true", "false")), "with requests and answers; the page ends early when it gets large"),
        errors=(400, 404),
    ),
    f"{_OF_SCENARIO}/records/{{record_id}}": _get(
        "One record of this scenario.", _ref("Record"), _SCENARIO, _RECORD, errors=(404,)
    ),
    f"{_OF_SCENARIO}/pending": _get(
        "Reports that wait, with what they wait for.",
        _shape(records=_list(_ref("Record"))),
        _SCENARIO,
        _LIMIT,
        errors=(400, 404),
    ),
    f"{_OF_SCENARIO}/releases": _get(
        "The chain, newest first.",
        _shape(releases=_list(_ref("Release"))),
        _SCENARIO,
        _LIMIT,
        _query("before", {**_ID, "maximum": 2**31}, "releases with a smaller number"),
        errors=(400, 404),
    ),
    f"{_OF_SCENARIO}/releases/{{release_id}}": _get(
        "One release with the ids of the records it learned from.",
        _ref("Release"),
        _SCENARIO,
        _RELEASE,
        errors=(404,),
    ),
    f"{_OF_SCENARIO}/releases/{{release_id}}/diff": _get(
        "What changed since another release.",
        {"type": "object", "required": ["from", "to", "diff"],
         "properties": {"from": _or_null(_ref("Release")), "to": _ref("Release"), "diff": _TEXT}},
        _SCENARIO,
        _RELEASE,
        _query("to", _TEXT, "the other release; default: the parent"),
        errors=(404,),
    ),
    f"{_OF_SCENARIO}/steps": _get(
        "Past steps, newest first.", _shape(steps=_list(_ref("Step"))), _SCENARIO, _LIMIT, errors=(400, 404)
    ),
    f"{_OF_SCENARIO}/proposals": _get(
        "A page of proposals for the harness, newest first, and what became of them; it ends early when it gets large.",
        _shape(proposals=_list(_ref("Proposal"))),
        _SCENARIO,
        _LIMIT,
        _query("before", _ID, "proposals with a smaller seq"),
        _query("step_id", _TEXT, "only the proposal of this step"),
        _query("texts", _words(("true", "false")), "false: edits without their texts"),
        errors=(400, 404),
    ),
    f"{_OF_SCENARIO}/rollback": _act(
        "Serve an earlier release again.",
        {"type": "object", "properties": {"to": _or_null({**_NAME_OR_EMPTY, "description": "default: the head's parent"})}},
        _ref("Release"),
    ),
    f"{_OF_SCENARIO}/promote": _act("Serve a held release.", _ONE_RELEASE, _ref("Release")),
    f"{_OF_SCENARIO}/reject": _act("Refuse a held release.", _ONE_RELEASE, _ref("Release")),
    f"{_OF_SCENARIO}/pause": _act("Stop training; serving goes on.", None, _ref("Scenario")),
    f"{_OF_SCENARIO}/resume": _act("Go on training.", None, _ref("Scenario")),
    f"{_OF_SCENARIO}/step": _act("Make a step of what is complete.", None, _shape(progress=_OBJECT), 202),
}  # fmt: skip
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
            "schemas": _SCHEMAS,
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
