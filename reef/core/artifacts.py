"""Releases, candidates and verdicts as frozen values. Knows nothing of SQLite or files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class ReleaseState(StrEnum):
    """Where a release stands in its chain."""

    PUBLISHED = "published"
    """Committed; it becomes the serving one when every engine has confirmed it."""
    SERVING = "serving"
    """What calls are answered with now."""
    HELD = "held"
    """Waits for a person to promote or reject it."""
    REJECTED = "rejected"
    """Refused by the gate or by a person; never served."""
    ROLLED_BACK = "rolled_back"
    """Was served and was left for an earlier one."""


class Decision(StrEnum):
    """What the gate says of a candidate."""

    ACCEPT = "accept"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """The durable files of one candidate or release: ``content_id`` names the folder below ``artifacts/``."""

    content_id: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's decision about one candidate, with what is needed to explain it."""

    decision: Decision
    rule: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a step produced and nobody serves yet; its artifact is already durable.

    ``checks`` are named measurements of the separate validation, each ``{"ok": bool, "value": float, "limit": float}``;
    ``verdict`` is there when making the candidate included comparing it; ``state`` holds keys of the algorithm state that
    making it has changed, over those of the step's signal. They are committed with the step, or not at all.
    """

    step_id: str
    artifact: ArtifactRef
    metrics: Mapping[str, float] = field(default_factory=dict)
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    verdict: Verdict | None = None
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Release:
    """One row of a scenario's chain: ``release_id`` (``r7``) for people, ``content_id`` for machines.

    ``step`` counts the training steps behind the release; a rollback keeps its source's step.
    """

    release_id: str
    scenario: str
    content_id: str
    parent: str | None
    step: int
    state: ReleaseState
    created_at: float
    size_bytes: int = 0
    step_id: str | None = None
    restored_from: str | None = None
    verdict: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The 7 of ``r7``."""
        return int(self.release_id[1:])


def artifact_path(home: Path, content_id: str) -> Path:
    """Where the files of ``content_id`` lie below the state directory."""
    return home / "artifacts" / content_id
