"""What goes over HTTP, as JSON schemas, and the limits that the routes hold. Data only: openapi.py publishes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reef.core.artifacts import Decision, ReleaseState
from reef.core.records_types import RecordState, RequestType
from reef.core.reports import LIMITS, NAME_PATTERN
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

TEXT: Data = {"type": "string"}
NUMBER: Data = {"type": "number"}
BOOL: Data = {"type": "boolean"}
COUNT: Data = {"type": "integer", "minimum": 0}
OBJECT: Data = {"type": "object"}
PLAIN: Data = {"type": ["string", "number", "boolean", "null"]}
NAME: Data = {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
NAME_OR_EMPTY: Data = {"type": "string", "pattern": f"^({NAME_PATTERN})?$"}
TIME: Data = {"type": "number", "description": "seconds since 1970"}
NAME_TEXT = "1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit"


def ref(name: str) -> Data:
    """A schema of SCHEMAS, by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(of: Data) -> Data:
    """A list of these."""
    return {"type": "array", "items": of}


def or_null(of: Data) -> Data:
    """This, or null."""
    return {"anyOf": [of, {"type": "null"}]}


def one_of(values: Any) -> Data:
    """One of these words."""
    return {"type": "string", "enum": [str(value) for value in values]}


def fields(optional: Mapping[str, Data] | None = None, /, **required: Data) -> Data:
    """An object with these fields; more may be added in later versions."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def fields_alone(optional: Mapping[str, Data], /, **required: Data) -> Data:
    """As ``fields``, for what is sent: a field that nobody knows is refused."""
    shape = fields(
        {"scenario": or_null(NAME_OR_EMPTY), "agent_record_id": or_null(NAME_OR_EMPTY), **optional}, **required
    )
    return {**shape, "additionalProperties": False}


LINEAGE = or_null(fields({"reason": TEXT}, step=COUNT, release_id=or_null(TEXT)))
COUNTS: Data = {"type": "object", "additionalProperties": COUNT}

SCHEMAS: Data = {
    "Error": fields(error=fields({"field": TEXT}, code=TEXT, message=TEXT, hint=TEXT)),
    "OpenAIError": fields(
        error=fields(message=TEXT, type=TEXT, param=or_null(TEXT), code=or_null(TEXT)),
    ),
    "AnthropicError": fields(type={"const": "error"}, error=fields(type=TEXT, message=TEXT, code=TEXT)),
    "Record": fields(
        {
            "score": or_null(NUMBER),
            "references": list_of(TEXT),
            "feedback": {"description": "text or a JSON document, null for none"},
            "metadata": OBJECT,
            "request": {"description": "the JSON document that was sent; null once its body was removed"},
            "response": {"description": "the assembled answer; training holds the token block; null for none"},
            "reports": list_of(TEXT),
            "consumed_by": LINEAGE,
            "consumed_step": or_null(COUNT),
        },
        agent_record_id=TEXT,
        seq=COUNT,
        scenario=TEXT,
        request_type=one_of(RequestType),
        state=one_of(RecordState),
        reason=or_null(fields(code=TEXT, message=TEXT)),
        created_at=TIME,
        release_id=or_null(TEXT),
        session=or_null(TEXT),
        usage=or_null(OBJECT),
        meta=OBJECT,
        purged_at=or_null(TIME),
    ),
    "Release": fields(
        {"records": list_of(TEXT)},
        release_id={"type": "string", "pattern": "^r[0-9]+$"},
        content_id=TEXT,
        scenario=TEXT,
        parent=or_null(TEXT),
        step=COUNT,
        step_id=or_null(TEXT),
        state=one_of(ReleaseState),
        created_at=TIME,
        restored_from=or_null(TEXT),
        size_bytes=COUNT,
        verdict={"type": "object", "properties": {"decision": one_of(Decision), "rule": TEXT, "reason": TEXT}},
        metrics=OBJECT,
    ),
    "Step": fields(
        step=COUNT,
        step_id=TEXT,
        batch_id=TEXT,
        outcome=TEXT,
        reason=or_null(TEXT),
        release_id=or_null(TEXT),
        created_at=TIME,
        metrics=OBJECT,
        verdict=OBJECT,
    ),
    "Scenario": fields(
        name=TEXT,
        recipe=TEXT,
        surface=TEXT,
        created_at=TIME,
        release_id=or_null(TEXT),
        step=COUNT,
        state=TEXT,
        detail=TEXT,
        evolving=fields({"drafts": COUNT, "trajectory": list_of(NUMBER), "level": NUMBER, "unboxed": or_null(TEXT),
                         "error_budget": or_null(
            fields(alpha=NUMBER, used=NUMBER, tests=COUNT, published=COUNT, next_level=NUMBER))}),
        batch=fields(have=COUNT, need=COUNT),
        waiting_for=TEXT,
        pending_receipts=list_of(TEXT),
        counts={"type": "object", "additionalProperties": COUNTS},
        reasons=COUNTS,
        bytes=COUNT,
    ),
    "Status": fields(
        version={"const": 1},
        daemon=fields(
            version=TEXT, pid=COUNT, uptime_s=NUMBER, home=TEXT, url=TEXT, ready=BOOL, recipe=TEXT
        ),
        inference=fields(backend=one_of(("engine", "provider")), model=or_null(TEXT), ready=BOOL,
                         engine=or_null(OBJECT), speaks=list_of(one_of(ROUTES.values())),
                         upstream=or_null(fields(
                             url=TEXT, failing=BOOL,
                             last_failure=or_null(fields(at=NUMBER, code=TEXT, message=TEXT))))),
        store=fields(records=COUNT, bytes=COUNT, queue=COUNT, commits=COUNT, fsync_ms=NUMBER,
                     unrecorded=COUNT, degraded=or_null(TEXT)),
        scenarios=list_of(ref("Scenario")),
    ),
    "Report": {
        "type": "object",
        "properties": {
            "score": or_null({"type": "number", "description": "the recipe may want a range, or no score at all"}),
            "feedback": {"anyOf": [TEXT, OBJECT, {"type": "array"}, {"type": "null"}]},
            "references": or_null({**list_of(NAME), "maxItems": LIMITS.references, "description": "receipts"}),
            "metadata": or_null(OBJECT),
            "session": or_null({"type": "string", "maxLength": LIMITS.session_chars}),
            "agent_record_id": or_null({**NAME, "description": "makes a retry safe; so does Idempotency-Key"}),
            "scenario": or_null({**NAME, "description": "where the header x-reef-scenario is not sent"}),
        },
        "additionalProperties": False,
        "allOf": [
            {"anyOf": [
                {"required": ["references"], "properties": {"references": {"type": "array", "minItems": 1}}},
                {"required": ["session"], "properties": {"session": TEXT}},
            ]},
            {"anyOf": [
                {"required": ["score"], "properties": {"score": NUMBER}},
                {"required": ["feedback"], "properties": {"feedback": {"anyOf": [
                    {"type": "string", "pattern": r"\S"},
                    {"type": "object", "minProperties": 1},
                    {"type": "array", "minItems": 1},
                ]}}},
            ]},
        ],
    },
    "Stored": fields(
        agent_record_id=TEXT,
        scenario=TEXT,
        state=one_of(RecordState),
        reason=or_null(TEXT),
        references=list_of(TEXT),
        duplicate=BOOL,
    ),
    "Harness": fields(
        scenario=TEXT,
        release_id=TEXT,
        content_id=TEXT,
        model=or_null(TEXT),
        version={"const": TREE_VERSION},
        entries=list_of(fields(kind=one_of(KINDS), name=TEXT, text=TEXT)),
    ),
    "Edit": fields({"action": one_of(("put", "delete")), "text": TEXT}, kind=one_of(KINDS), name=TEXT),
    "Knobs": fields(
        recipe=TEXT,
        file=or_null(TEXT),
        knobs=list_of(
            fields(name=TEXT, value=PLAIN, default=PLAIN, origin=TEXT, help=TEXT, applies=one_of(("next_batch", "restart")))
        ),
    ),
    "Proposal": fields(
        seq=COUNT,
        step_id=TEXT,
        origin=TEXT,
        state=one_of(("open", "refused", "rejected", "inconclusive", "kept", "perfect", "held", "published")),
        reason=or_null(TEXT),
        created_at=TIME,
        proposal=fields(why=TEXT, edits=list_of(ref("Edit"))),
        seen=OBJECT,
        release_id=or_null(TEXT),
    ),
    "Adapter": fields(
        name=TEXT,
        summary=TEXT,
        package=or_null(TEXT),
        version=or_null(TEXT),
        node=or_null(TEXT),
        size_mb=COUNT,
        kinds=list_of(one_of(KINDS)),
    ),
    "Import": {
        "type": "object",
        "required": ["request"],
        "anyOf": [
            {"required": ["response"], "properties": {"response": OBJECT}},
            {"required": ["state"], "properties": {"state": one_of(IMPORT_STATES[1:])}},
        ],
        "properties": {
            "agent_record_id": or_null(NAME_OR_EMPTY),
            "request": OBJECT,
            "response": or_null({"type": "object", "properties": {"training": OBJECT}}),
            "state": one_of(IMPORT_STATES),
            "session": or_null({"type": "string", "maxLength": LIMITS.session_chars}),
            "release_id": or_null({"type": "string", "pattern": f"^{RELEASE_PATTERN}$"}),
            "created_at": or_null({"type": "number", "minimum": 0, "maximum": 2**33}),
            "usage": or_null({
                "type": "object",
                "propertyNames": {"pattern": "^[ -~]*$"},
                "additionalProperties": {**COUNT, "maximum": 2**53},
            }),
        },
    },
}  # fmt: skip
