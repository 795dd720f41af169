"""ServingTable: which release each scenario is answered with, right now.

Written by a TrainingRuntime after every engine has confirmed, read by the inference backend at the start of a call.
"""

from __future__ import annotations

from dataclasses import dataclass

from reef.errors import ReefError, Unavailable


@dataclass(frozen=True, slots=True)
class Serving:
    """One scenario's target: ``adapter`` is the engine's adapter name, None for the base weights or a full model."""

    release_id: str
    content_id: str
    adapter: str | None


class ServingTable:
    """A dict with one writer per scenario; reads never block (replacing a dict value is atomic in CPython)."""

    def __init__(self) -> None:
        self._targets: dict[str, Serving] = {}
        self._refused: dict[str, ReefError] = {}

    def get(self, scenario: str) -> Serving | None:
        """The target of ``scenario``, None before its first publish."""
        return self._targets.get(scenario)

    def target(self, scenario: str) -> Serving | None:
        """As ``get``, for a call: raises Unavailable where the committed release cannot be served, and no other may be."""
        found = self._targets.get(scenario)
        if found is None and (error := self._refused.get(scenario)) is not None:
            raise Unavailable(error.message, hint=error.hint, code="release_not_served")
        return found

    def set(self, scenario: str, target: Serving) -> None:
        """New calls of ``scenario`` go to ``target``; calls in flight keep what they read."""
        self._targets[scenario] = target

    def refuse(self, scenario: str, error: ReefError) -> None:
        """The committed release cannot be served: calls are told so, unless an earlier release is still there."""
        self._refused[scenario] = error

    def adapters(self) -> frozenset[str]:
        """Names of the adapters that some scenario serves."""
        return frozenset(target.adapter for target in self._targets.values() if target.adapter is not None)
