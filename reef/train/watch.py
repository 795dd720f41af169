"""Watch: after publishing, people's own reports decide whether a release stays. Canaries end, bad releases are left.

Knows nothing of runtimes; the trainer serves what the chain says afterwards. Asked by the trainer before each step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reef.core.artifacts import Release
from reef.errors import BadConfig, Conflict, NotFound
from reef.gate.live import Live, compare
from reef.records import figures
from reef.releases import ReleaseChain

log = logging.getLogger("reef.train")

LOOK_S = 1.0
"""Reports may come by the thousand; looking more often than this would only read the same again."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """``canary`` is a share of sessions, 0 for none; it ends after ``canary_reports``, or as soon as it is shown to be worse."""

    auto_rollback: bool = False
    canary: float = 0.0
    canary_reports: int = 20


@dataclass(slots=True)
class Watch:
    """One scenario's watch."""

    chain: ReleaseChain
    scenario: str
    settings: WatchSettings
    try_serving: Callable[[Release], None]
    """Raises what makes it impossible to go back to a release."""
    missed: bool = False
    """It was asked too soon after the last time: it is to be asked again after LOOK_S."""
    _looked_s: float = field(default=-LOOK_S)

    def look(self) -> tuple[Release, str] | None:
        """Act on what the reports say: the release that the chain has moved to, or that was refused, and why."""
        now_s = time.monotonic()
        self.missed = now_s - self._looked_s < LOOK_S
        if self.missed:
            return None
        self._looked_s = now_s
        head, held = self.chain.head(self.scenario), self.chain.held(self.scenario)
        if head is None:
            return None
        if held is not None and is_canary(held):
            live = self.live(held.release_id, head.release_id)
            if held.parent != head.release_id:  # nobody is served it any more, and it could not be promoted
                said = f"canary: {head.release_id} is served now, and it was made from {held.parent}"
                return self.chain.reject(self.scenario, held.release_id, "canary"), said
            if live.worse:
                return self.chain.reject(self.scenario, held.release_id, "canary"), f"canary: {words(live)}"
            if live.new_count >= self.settings.canary_reports:
                return self.chain.promote(self.scenario, held.release_id, "canary"), f"canary: {words(live)}"
        elif self.settings.auto_rollback and head.parent is not None and head.restored_from is None:
            live = self.live(head.release_id, head.parent)
            if live.worse:
                return self._leave(head.parent, live)
        return None

    def _leave(self, to: str, live: Live) -> tuple[Release, str] | None:
        with self.chain.store.files:
            try:
                self.try_serving(self.chain.rollback_target(self.scenario, to))
            except (NotFound, BadConfig, Conflict) as error:  # what cannot be served is not better
                log.warning(
                    "%s should go back to %s and cannot (%s): %s", self.scenario, to, error.message, words(live)
                )
                return None
            return self.chain.rollback(self.scenario, to, "auto_rollback"), f"auto_rollback: {words(live)}"

    def live(self, new: str, old: str) -> Live:
        """The scores of reports on calls that two releases answered, compared."""
        scores = figures.scores_by_release(self.chain.store, self.scenario)
        return compare(scores.get(new, ()), scores.get(old, ()))


def is_canary(release: Release) -> bool:
    """True for a held release that a share of the sessions is served."""
    return share_of(release.verdict) > 0


def share_of(verdict: Mapping[str, Any]) -> float:
    """The share of sessions a held release is served to, 0 for none."""
    return float((verdict.get("evidence") or {}).get("canary", 0.0))


def words(live: Live) -> str:
    """A comparison in a sentence."""
    new, old = (f"{mean:.2f} over {count}" if mean is not None else "no reports" for mean, count in
                ((live.new, live.new_count), (live.old, live.old_count)))  # fmt: skip
    return f"reports score {new}, before {old}; the difference lies between {live.low:+.2f} and {live.high:+.2f}"
