"""Errors of providers: read from any of their shapes, written in the shape of the called route, whole or within a stream.

Knows nothing of transport. Called by the dialects' readers and by translation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reef.errors import UpstreamError
from reef.inference.sse import frame

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_ANTHROPIC = frozenset(_TYPES.values()) | {"billing_error", "timeout_error", "api_error"}
_TOO_LONG = "prompt is too long"
_OVERFLOW = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Fault:
    """What a provider said went wrong; ``kind``, ``code`` and ``param`` where it gave them."""

    message: str
    kind: str = ""
    code: str | None = None
    param: str | None = None


class ModelFault(UpstreamError):
    """The provider says, within an answer that began well, that it failed."""

    code = "upstream_error_event"

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"the model's server says: {fault.message}")
        self.fault = fault


def read_fault(body: Any, otherwise: str = "no reason given") -> Fault:
    """The fault in an error's body or event: OpenAI's, Anthropic's and the shapes of common servers."""
    held = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(held, dict):
        said = held.get("message") or held.get("detail") or held.get("error")
        kind, code, param = (held.get(key) for key in ("type", "code", "param"))
        message = said if isinstance(said, str) else str(said) if said else otherwise
        return Fault(
            message, str(kind or ""), None if code is None else str(code), param if isinstance(param, str) else None
        )
    return Fault(held if isinstance(held, str) and held else otherwise)


def fault_body(route: str, fault: Fault, status: int = 0) -> dict[str, Any]:
    """The error object clients of ``route`` expect; overflow of the context keeps the mark each side looks for."""
    message, code = fault.message, fault.code
    by_status = _TYPES.get(status, "api_error")
    if route == "messages":
        kind = fault.kind if fault.kind in _ANTHROPIC else by_status
        if code == _OVERFLOW and _TOO_LONG not in message:
            message = f"{_TOO_LONG}: {message}"
        return {"type": "error", "error": {"type": kind, "message": message, **({"code": code} if code else {})}}
    if _TOO_LONG in message:
        code = _OVERFLOW
    return {"error": {"message": message, "type": fault.kind or by_status, "param": fault.param, "code": code}}


def fault_event(route: str, fault: Fault, status: int = 0) -> bytes:
    """The fault as an event in the middle of a stream of ``route``."""
    body = fault_body(route, fault, status)
    if route == "messages":
        return frame(body, "error")
    if route == "chat":
        return frame(body)
    told: Mapping[str, Any] = body["error"]
    return frame(
        {"type": "error", "code": told["code"] or told["type"], "message": told["message"], "param": told["param"]},
        "error",
    )
