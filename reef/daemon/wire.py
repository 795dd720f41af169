"""Reading request bodies and writing errors in the shape of the called route. Knows nothing of scenarios."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from reef.errors import BadRequest, ReefError, TooLarge
from reef.inference.assembly import unpack
from reef.inference.faults import Fault, fault_body, fault_event


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body, unpacked when it came compressed; raises TooLarge, Unsupported or BadRequest."""
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise body_too_large(limit_bytes)
        parts.append(chunk)
    raw = b"".join(parts)
    if "content-encoding" in request.headers:
        raw = await asyncio.to_thread(unpack, raw, request.headers["content-encoding"])  # it may unpack to very much
        if len(raw) > limit_bytes:
            raise body_too_large(limit_bytes)
    return raw


def read_json(raw: bytes) -> Any:
    """The JSON document ``raw`` holds; raises BadRequest with the position when it holds none."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}", hint="send a JSON object in UTF-8") from None


def read_json_whole(raw: bytes) -> Any:
    """As ``read_json``, for what must come back as it was: long whole numbers keep their digits, half pairs stay."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise BadRequest("the body is nested too deeply", hint="send a flatter JSON document") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of more digits than Python reads
        raise BadRequest(f"the body is not JSON: {error}", hint="send a JSON object in UTF-8") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def body_too_large(limit_bytes: int) -> TooLarge:
    """The error for a body over the limit."""
    return TooLarge(f"the body is over {limit_bytes} bytes", hint="raise reef.max_body_mb if that is right")


def dump_json(value: Any) -> bytes:
    """``value`` as JSON, whatever a client or a provider once sent: halves of surrogate pairs stay escapes, whole numbers
    keep all digits, and non-finite numbers become null."""
    try:
        return orjson.dumps(value)
    except TypeError:  # orjson writes none of these, and not deeper than 254
        text = json.dumps(value)
        return json.dumps(json.loads(text, parse_constant=lambda _: None)).encode()


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``value`` as JSON; non-finite numbers become null."""
    return Response(dump_json(value), status, dict(headers or {}), "application/json")


def error_body(path: str, error: ReefError) -> dict[str, Any]:
    """The error object as the clients of ``path`` expect it."""
    if not path.startswith("/v1/"):
        return {"error": error.as_dict()}
    return fault_body("messages" if path.startswith("/v1/messages") else "chat", _fault(error), error.status)


def _fault(error: ReefError) -> Fault:
    return Fault(f"{error.message}. {error.hint}" if error.hint else error.message, "", error.code, error.field)


def error_response(path: str, error: ReefError, headers: Mapping[str, str] | None = None) -> Response:
    """``error`` as an answer; 503 carries Retry-After."""
    extra = dict(headers or {})
    if error.status == 503:
        extra.setdefault("retry-after", "1")
    return json_response(error_body(path, error), error.status, extra)


def error_event(route: str, error: ReefError) -> bytes:
    """``error`` as an event in the middle of a stream of ``route``."""
    return fault_event(route, _fault(error), error.status)
