"""What a client may send back: schema, parsing, limits. Pure; every refusal names the field."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reef.errors import BadRequest

__all__ = ["LIMITS", "Limits", "Report", "ReportSchema", "check_name", "parse_report"]

Need = Literal["required", "optional", "forbidden"]
_FIELDS = ("score", "feedback", "references", "metadata", "session", "agent_record_id", "scenario")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one report."""

    references: int = 1000
    feedback_bytes: int = 256 * 1024
    metadata_bytes: int = 64 * 1024
    id_chars: int = 128


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ReportSchema:
    """What a recipe reads from a report; the report route refuses what does not fit before it is stored."""

    score: Need = "optional"
    feedback: Need = "optional"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A parsed report. ``references`` may be empty when ``session`` names the run instead."""

    score: float | None
    feedback: str | Mapping[str, Any] | list[Any] | None
    references: tuple[str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    session: str | None = None
    agent_record_id: str | None = None

    def payload(self, references: tuple[str, ...] | None = None) -> dict[str, Any]:
        """What is stored: only fields that were sent, with resolved ``references`` when given."""
        found: dict[str, Any] = {"references": list(self.references if references is None else references)}
        if self.score is not None:
            found["score"] = self.score
        if self.feedback is not None:
            found["feedback"] = self.feedback
        if self.metadata:
            found["metadata"] = dict(self.metadata)
        return found


def parse_report(body: Any, schema: ReportSchema | None) -> Report:
    """Check ``body`` against the common rules and the recipe's ``schema``; raises BadRequest naming the field."""
    if not isinstance(body, Mapping):
        raise BadRequest("a report must be a JSON object", hint='send {"score": 1, "references": ["<receipt>"]}')
    for name in body:
        if name not in _FIELDS:
            raise BadRequest(
                f"unknown field {name!r}",
                hint=f"known: {', '.join(_FIELDS)}; put the rest in metadata",
                field=str(name),
            )
    report = Report(
        _score(body.get("score")),
        _feedback(body.get("feedback")),
        _references(body.get("references")),
        _metadata(body.get("metadata")),
        check_name(body.get("session"), "session"),
        check_name(body.get("agent_record_id"), "agent_record_id"),
    )
    if not report.references and report.session is None:
        raise BadRequest("the report names nothing", hint="give references (receipts) or a session", field="references")
    if report.score is None and report.feedback is None:
        raise BadRequest("the report says nothing", hint="give a score, feedback or both", field="score")
    if schema is not None:
        _check_schema(report, schema)
    return report


def check_name(value: Any, name: str) -> str | None:
    """A short name from a strict alphabet (letters, digits, ``.``, ``_``, ``-``), None when absent."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise BadRequest(
            f"{name} {str(value)[:40]!r} is not a valid name",
            hint="1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            field=name,
        )
    return value


def _check_schema(report: Report, schema: ReportSchema) -> None:
    for name, need, value in (("score", schema.score, report.score), ("feedback", schema.feedback, report.feedback)):
        if need == "required" and value is None:
            raise BadRequest(f"this scenario's recipe needs a {name}", hint=f"add {name} to the report", field=name)
        if need == "forbidden" and value is not None:
            raise BadRequest(f"this scenario's recipe takes no {name}", hint=f"leave {name} out", field=name)
    if report.score is not None:
        low, high = schema.low, schema.high
        if (low is not None and report.score < low) or (high is not None and report.score > high):
            raise BadRequest(f"score {report.score:g} is outside {low} to {high}", field="score")


def _score(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"score must be a number, not {type(value).__name__}", hint="e.g. 0, 0.5 or 1", field="score")
    if not math.isfinite(value):
        raise BadRequest(f"score must be finite, not {value}", field="score")
    return float(value)


def _feedback(value: Any) -> str | Mapping[str, Any] | list[Any] | None:
    if value is None or isinstance(value, str | Mapping | list):
        if value is not None and len(str(value)) > LIMITS.feedback_bytes:
            raise BadRequest(f"feedback is over {LIMITS.feedback_bytes // 1024} KiB", field="feedback")
        return value
    raise BadRequest(f"feedback must be text or an object, not {type(value).__name__}", field="feedback")


def _references(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequest("references must be a list of receipts", field="references")
    if len(value) > LIMITS.references:
        raise BadRequest(f"{len(value)} references, at most {LIMITS.references}", field="references")
    for index, reference in enumerate(value):
        if not isinstance(reference, str) or not _NAME.fullmatch(reference):
            raise BadRequest(
                f"references[{index}] {str(reference)[:40]!r} is not a receipt",
                hint="receipts come in the x-reef-agent-record-id header",
                field=f"references[{index}]",
            )
    return tuple(dict.fromkeys(value))


def _metadata(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRequest("metadata must be an object", field="metadata")
    if len(str(value)) > LIMITS.metadata_bytes:
        raise BadRequest(f"metadata is over {LIMITS.metadata_bytes // 1024} KiB", field="metadata")
    return value
