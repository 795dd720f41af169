"""Errors in the shape of the route that was called, as a body and as an event inside a stream that has begun.

Knows nothing of HTTP servers. Called by the gateway.
"""

from __future__ import annotations

from typing import Any

from reef.errors import ReefError
from reef.inference.sse import frame

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(route: str, error: ReefError) -> dict[str, Any]:
    """The body of an error answer on ``route`` (chat, responses or messages)."""
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    if route == "messages":
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    kind = _OPENAI_TYPES.get(error.status, "server_error")
    return {"error": {"message": message, "type": kind, "param": error.field, "code": error.code}}


def error_event(route: str, error: ReefError) -> bytes:
    """The event that tells a reader in the middle of a stream that the rest will not come; no end mark follows it."""
    body = error_body(route, error)
    if route == "chat":
        return frame(body)
    if route == "responses":
        fault = body["error"]
        return frame(
            {"type": "error", "code": fault["code"], "message": fault["message"], "param": fault["param"]}, "error"
        )
    return frame(body, "error")
