"""The whole of an object's state as plain values that can be compared: does a method that must only read change anything?"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

from reef.core.records_types import AgentRecord

_PLAIN = (str, int, float, bool, bytes, type(None))
_DEEPEST = 8


def shape(thing: object) -> dict[str, Any]:
    """Each attribute of ``thing`` as plain values."""
    return {name: _plain(value, _DEEPEST) for name, value in vars(thing).items() if name != "context"}


def changed_part(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first attribute that differs, as people write it; None for none."""
    names = [*before, *(name for name in after if name not in before)]
    return next((f"self.{name}" for name in names if before.get(name) != after.get(name)), None)


def _plain(value: Any, left: int) -> Any:
    if isinstance(value, _PLAIN) or left == 0:
        return value if isinstance(value, _PLAIN) else type(value).__name__
    if isinstance(value, AgentRecord):
        return value.agent_record_id
    if isinstance(value, Mapping):
        return [(_plain(key, left - 1), _plain(item, left - 1)) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return [_plain(item, left - 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(item, left - 1)) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, item.name), left - 1) for item in dataclasses.fields(value)]
    module = type(value).__module__
    if hasattr(value, "__dict__") and not callable(value) and module.partition(".")[0] not in _FOREIGN:
        return [(name, _plain(item, left - 1)) for name, item in vars(value).items()]
    return id(value) if callable(value) else type(value).__name__


_FOREIGN = frozenset({"threading", "queue", "asyncio", "logging", "torch", "reef.authoring"})
"""Machinery with a life of its own."""
