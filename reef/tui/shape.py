"""What the dashboard reads of each document. What has another shape is refused where it comes in, so no pane meets it.

Knows no values, only kinds; fields that nobody here reads may be anything. Used by store.py; a test holds it against the
schemas that the daemon publishes.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from reef.client import no_daemon
from reef.tui.source import Source

NUMBER = (int, float)
TEXT_OR_NONE = (str, type(None))
NUMBER_OR_NONE = (int, float, type(None))
OBJECT_OR_NONE = (dict, type(None))

_RELEASE = {
    "release_id": str, "scenario": str, "parent": TEXT_OR_NONE, "step": int, "state": str, "created_at": NUMBER,
    "restored_from": TEXT_OR_NONE, "verdict": dict, "metrics": dict,
}  # fmt: skip
_STEP = {
    "step": int, "outcome": str, "reason": TEXT_OR_NONE, "release_id": TEXT_OR_NONE, "created_at": NUMBER,
    "metrics": dict, "verdict": dict,
}  # fmt: skip
_RECORD = {
    "agent_record_id": str, "seq": int, "scenario": str, "request_type": str, "state": str, "reason": OBJECT_OR_NONE,
    "created_at": NUMBER, "release_id": TEXT_OR_NONE, "usage": OBJECT_OR_NONE, "meta": dict,
}  # fmt: skip
_SCENARIO = {
    "name": str, "recipe": str, "release_id": TEXT_OR_NONE, "step": int, "state": str, "detail": str, "evolving": dict,
    "batch": {"have": int, "need": int}, "waiting_for": str, "counts": {...: {...: int}}, "reasons": {...: int},
}  # fmt: skip
_EVENT = {"id": int, "kind": str, "scenario": TEXT_OR_NONE, "at": NUMBER, "data": dict}
_KNOB = {"name": str, "origin": str, "help": str, "applies": str}

SHAPES: Mapping[str, Any] = {
    r"/reef/status": {
        "daemon": {"pid": int, "uptime_s": NUMBER, "ready": bool},
        "inference": {"upstream": OBJECT_OR_NONE},
        "store": {"bytes": int, "degraded": TEXT_OR_NONE},
        "scenarios": [_SCENARIO],
    },
    r"/reef/scenarios/[^/]+/releases": {"releases": [_RELEASE]},
    r"/reef/scenarios/[^/]+/releases/[^/]+": _RELEASE,
    r"/reef/scenarios/[^/]+/releases/[^/]+/diff": {"diff": str},
    r"/reef/scenarios/[^/]+/steps": {"steps": [_STEP]},
    r"/reef/scenarios/[^/]+/records": {"records": [_RECORD]},
    r"/reef/records/[^/]+": _RECORD,
    r"/reef/harness": {"entries": [{"kind": str, "name": str, "text": str}]},
    r"/reef/harness/adapters": {"adapters": [{"name": str, "summary": str, "kinds": [str]}]},
    r"/reef/knobs": {"knobs": [_KNOB]},
    r"/reef/logs": {"lines": [{"number": int, "level": str, "message": str}]},
}
"""Path to what is read there: a type or types, a list of one shape, an object; the key ``...`` stands for every key."""


def wrong_in(value: Any, shape: Any, at: str = "") -> str | None:
    """Where ``value`` has not this shape; None where it has."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{at or 'it'} is no object"
        wanted = [(key, shape[...]) for key in value] if ... in shape else list(shape.items())
        found = (
            wrong_in(value[key], one, f"{at}.{key}".lstrip("."))
            if key in value
            else f"{at}.{key} is missing".lstrip(".")
            for key, one in wanted
        )
        return next((wrong for wrong in found if wrong), None)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{at} is no list"
        return next((wrong for i, one in enumerate(value) if (wrong := wrong_in(one, shape[0], f"{at}[{i}]"))), None)
    right = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    return None if right else f"{at} is {type(value).__name__}"


class Checked:
    """A source whose answers have the shape that is read, or are refused as a ReefError."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def url(self) -> str:
        """Where it is."""
        return self._source.url

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        """GET a JSON document; raises ReefError."""
        found = await self._source.get(path, **query)
        shape = next((shape for name, shape in SHAPES.items() if re.fullmatch(name, path)), None)
        if shape is not None and (wrong := wrong_in(found, shape)):
            raise no_daemon("what answers", f"GET {path}: {wrong}")
        return found

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST a JSON document; raises ReefError."""
        return await self._source.post(path, body)

    async def change_knobs(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Change numbers of the recipe; raises ReefError."""
        return await self._source.change_knobs(knobs)

    async def events(self, after: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """What happens; what is no event is left out."""
        async for event in self._source.events(after):
            if wrong_in(event, _EVENT) is None:
                yield event

    async def close(self) -> None:
        """Give back what it holds."""
        await self._source.close()
