"""The one error tree. Each error knows its message, what to do next, its HTTP status and its exit code.

ReefError (500, exit 1)
  BadRequest 400/2     BadConfig -/2         Unauthorized 401/1    Forbidden 403/1
  NotFound 404/4       Conflict 409/1        TooLarge 413/1        Unsupported 415/1
  UpstreamError 502/1  Unavailable 503/6     UpstreamTimeout 504/1 StoreFull 507/6
  DaemonUnreachable -/3  GateRefused 409/5
"""

from __future__ import annotations

_REASON_CHARS = 500


class ReefError(Exception):
    """Base: ``message`` says what is wrong and where, ``hint`` what to do, ``code`` is stable for programs."""

    status = 500
    exit_code = 1
    code = "internal"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        if code is not None:
            self.code = code

    @property
    def reason(self) -> str:
        """Code and sentence, as a record keeps why it failed."""
        return f"{self.code}: {self.message[:_REASON_CHARS]}"

    def as_dict(self) -> dict[str, object]:
        """The ``error`` object of an HTTP answer or a ``--json`` document."""
        shown: dict[str, object] = {"code": self.code, "message": self.message, "hint": self.hint}
        if self.field is not None:
            shown["field"] = self.field
        return shown


class BadRequest(ReefError):
    """The caller's input is wrong; ``field`` names the part."""

    status, exit_code, code = 400, 2, "bad_request"


class BadConfig(ReefError):
    """A configuration file, flag or environment variable is wrong; raised before anything starts."""

    status, exit_code, code = 400, 2, "bad_config"


class Unauthorized(ReefError):
    """No token, or a wrong one."""

    status, code = 401, "unauthorized"


class Forbidden(ReefError):
    """A foreign Host or Origin, or an act that is switched off."""

    status, code = 403, "forbidden"


class NotFound(ReefError):
    """No such scenario, record, release or recipe."""

    status, exit_code, code = 404, 4, "not_found"


class Conflict(ReefError):
    """The same id with other content, or an act that the present state does not allow."""

    status, code = 409, "conflict"


class GateRefused(ReefError):
    """The gate says no."""

    status, exit_code, code = 409, 5, "gate_refused"


class TooLarge(ReefError):
    """A body over the configured limit."""

    status, code = 413, "too_large"


class Unsupported(ReefError):
    """A content coding or type nobody here can read."""

    status, code = 415, "unsupported"


class UpstreamError(ReefError):
    """The model's server could not be reached or broke off."""

    status, code = 502, "upstream_error"


class Unavailable(ReefError):
    """Not now: the queue is full, the engine restarts, or the store is read-only."""

    status, exit_code, code = 503, 6, "unavailable"


class UpstreamTimeout(ReefError):
    """The model's server did not answer in time."""

    status, code = 504, "upstream_timeout"


class StoreFull(ReefError):
    """The disk cannot take the record."""

    status, exit_code, code = 507, 6, "store_full"


class DaemonUnreachable(ReefError):
    """No daemon answers where one should."""

    exit_code, code = 3, "daemon_unreachable"
