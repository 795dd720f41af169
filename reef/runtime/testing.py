"""StubTrainingRuntime: a public runtime for smoke tests. Steps succeed at once and touch nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from reef.core.artifacts import ArtifactRef, Candidate, Release
from reef.runtime import Capabilities, Outcome, Prepared, StepRequest


class StubTrainingRuntime:
    """Remembers what it was asked: ``steps``, ``published`` and ``settled`` are lists to assert on."""

    def __init__(self, surface: str = "weights", families: frozenset[str] | None = None) -> None:
        self.surface = surface
        self.families = families
        self.steps: list[StepRequest] = []
        self.published: list[Release] = []
        self.settled: list[tuple[str, str | None]] = []

    def capabilities(self) -> Capabilities:
        """Every loss family, unless the stub was given a set."""
        from_stub = frozenset({"sft", "pg", "sao", "opd", "tttd", "openclawrl-topk"})
        return Capabilities(self.surface, from_stub if self.families is None else self.families, "base-stub")

    def prepare(self, request: StepRequest) -> Prepared:
        """Accept anything."""
        return Prepared(request)

    def step(self, prepared: Prepared) -> Outcome:
        """A candidate whose content id follows from the step id."""
        self.steps.append(prepared.request)
        content_id = hashlib.sha256(prepared.request.step_id.encode()).hexdigest()[:32]
        return Candidate(prepared.request.step_id, ArtifactRef(content_id, 0), {"loss": 0.0})

    def publish(self, release: Release) -> None:
        """Remember the release."""
        self.published.append(release)

    def settle(self, step_id: str, content_id: str | None) -> None:
        """Remember the outcome."""
        self.settled.append((step_id, content_id))

    def recover(self, heads: Sequence[Release]) -> None:
        """Serve each head again."""
        self.published.extend(heads)
