"""What a client may send back: schema, parsing, limits. Pure; every refusal names the field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reef.errors import BadRequest

__all__ = [
    "LIMITS",
    "NAME_PATTERN",
    "Limits",
    "Report",
    "ReportSchema",
    "check_name",
    "check_session",
    "parse_report",
    "secret_name",
]

Need = Literal["required", "optional", "forbidden"]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "score": (int, float),
    "feedback": (str, dict, list),
    "references": (list,),
    "metadata": (dict,),
    "session": (str,),
    "agent_record_id": (str,),
    "scenario": (str,),
}
_WORDS = {int: "a number", float: "a number", str: "text", dict: "an object", list: "a list"}
NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one report."""

    references: int = 1000
    session_chars: int = 200
    """As much as is kept of the session of a call."""
    bytes_of: Mapping[str, int] = field(default_factory=lambda: {"feedback": 256 * 1024, "metadata": 64 * 1024})


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
    """A parsed report. ``references`` are empty when ``session`` names the run instead; ``payload`` is what is stored."""

    score: float | None
    references: tuple[str, ...]
    payload: Mapping[str, Any]
    session: str | None = None
    agent_record_id: str | None = None


def parse_report(body: Any, schema: ReportSchema) -> Report:
    """Check ``body`` against the common rules and the recipe's ``schema``; raises BadRequest naming the field."""
    if not isinstance(body, Mapping):
        raise BadRequest("a report must be a JSON object", hint='send {"score": 1, "references": ["<receipt>"]}')
    known = {name: value for name, value in body.items() if value is not None}
    for name, value in known.items():
        wanted = _TYPES.get(name)
        if wanted is None:
            hint = f"known: {', '.join(_TYPES)}; put the rest in metadata"
            raise BadRequest(f"unknown field {name!r}", hint=hint, field=str(name))
        if not isinstance(value, wanted) or isinstance(value, bool):
            words = " or ".join(dict.fromkeys(_WORDS[one] for one in wanted))
            raise BadRequest(f"{name} must be {words}, not {type(value).__name__}", field=name)
        limit = LIMITS.bytes_of.get(name)
        if limit is not None and len((value if isinstance(value, str) else json.dumps(value)).encode()) > limit:
            raise BadRequest(f"{name} is over {limit} bytes", field=name)
        if name == "session" and len(str(value)) > LIMITS.session_chars:
            raise _long_session(name)
        if name in ("agent_record_id", "scenario") and not _NAME.fullmatch(str(value)):
            raise _bad_name(value, name)
    score, references = known.get("score"), known.get("references") or []
    if len(references) > LIMITS.references:
        raise BadRequest(f"{len(references)} references, at most {LIMITS.references}", field="references")
    for index, reference in enumerate(references):
        if not isinstance(reference, str) or not _NAME.fullmatch(reference):
            raise BadRequest(
                f"references[{index}] {str(reference)[:40]!r} is not a receipt",
                hint="receipts come in the x-reef-agent-record-id header",
                field=f"references[{index}]",
            )
    if not references and "session" not in known:
        raise BadRequest("the report names nothing", hint="give references (receipts) or a session", field="references")
    feedback = known.get("feedback")
    empty = not (feedback.strip() if isinstance(feedback, str) else feedback)
    if score is None and empty:
        raise BadRequest("the report says nothing", hint="give a score, feedback or both", field="score")
    for name, need in (("score", schema.score), ("feedback", schema.feedback)):
        if need == "required" and (name not in known or (name == "feedback" and empty)):
            raise BadRequest(f"this scenario's recipe needs a {name}", hint=f"add {name} to the report", field=name)
        if need == "forbidden" and name in known:
            raise BadRequest(f"this scenario's recipe takes no {name}", hint=f"leave {name} out", field=name)
    if score is not None:
        low, high = schema.low, schema.high
        if not math.isfinite(score) or (low is not None and score < low) or (high is not None and score > high):
            raise BadRequest(f"score {score} is not a number from {low} to {high}", field="score")
        known["score"] = float(score)
    unique = tuple(dict.fromkeys(references))
    payload = {name: known[name] for name in ("score", "feedback", "metadata") if name in known}
    return Report(
        known.get("score"),
        unique,
        {"references": list(unique), **payload},
        known.get("session"),
        known.get("agent_record_id"),
    )


def check_name(value: Any, name: str) -> str | None:
    """A short name from a strict alphabet (letters, digits, ``.``, ``_``, ``-``), None when absent."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _bad_name(value, name)
    return value


def secret_name(name: str) -> BadRequest:
    """The error for a name that would put a key into the record."""
    return BadRequest(f"{name} holds a key or the token of this daemon", hint="choose another name", field=name)


def check_session(value: Any, name: str) -> str | None:
    """The name of a session: any text of at most ``LIMITS.session_chars`` characters, None when absent."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > LIMITS.session_chars:
        raise _long_session(name)
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a pair of UTF-16
        raise BadRequest(f"{name} cannot be written as UTF-8", field=name) from None
    return value


def _long_session(name: str) -> BadRequest:
    return BadRequest(f"{name} must be text of at most {LIMITS.session_chars} characters", field=name)


def _bad_name(value: Any, name: str) -> BadRequest:
    return BadRequest(
        f"{name} {str(value)[:40]!r} is not a valid name",
        hint="1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit",
        field=name,
    )
