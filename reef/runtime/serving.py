"""ServingTable: which release each scenario is answered with, right now.

Written by a TrainingRuntime after every engine has confirmed, read by the inference backend at the start of a call.
"""

from __future__ import annotations

from dataclasses import dataclass


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

    def get(self, scenario: str) -> Serving | None:
        """The target of ``scenario``, None before its first publish."""
        return self._targets.get(scenario)

    def set(self, scenario: str, target: Serving) -> None:
        """New calls of ``scenario`` go to ``target``; calls in flight keep what they read."""
        self._targets[scenario] = target

    def adapters(self) -> frozenset[str]:
        """Names of the adapters that some scenario serves."""
        return frozenset(target.adapter for target in self._targets.values() if target.adapter is not None)
