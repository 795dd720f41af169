"""TrainingRuntime: what executes a step and serves a release. A protocol of six methods and its values.

Called by train.loop on a scenario's training thread, so the methods are plain blocking calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from reef.core.artifacts import Candidate, Release


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime can do; compared with the recipe at boot."""

    surface: str
    loss_families: frozenset[str] = frozenset()
    base_content_id: str = "base"
    rollback: bool = True


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One update to make: rows of the batch, the signal, and the release it starts from.

    ``step_id`` is a hash of everything below it: the same request always has the same id. ``payload`` is what
    ``prepare_slime_step`` made (``loss``, ``rows``, ``advantages``...), JSON-able. ``parent`` is the release trained on.
    ``go_on`` turns false when the step's thread is wanted: a step of hours then ends with Stale and is taken up again later.
    """

    step_id: str
    scenario: str
    step: int
    parent: Release
    payload: Mapping[str, Any]
    go_on: Callable[[], bool] = field(default=lambda: True, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A validated request; nothing has changed yet."""

    request: StepRequest
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skip:
    """The step ends without a release (all groups are constant, say) and algorithm state advances; ``state`` as in Candidate."""

    reason: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stale:
    """The parent is no longer the head; prepare again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Not now (no memory, child restarting); the same step is tried again later."""

    reason: str
    retry_after_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Refused:
    """The step must not be made with these rows (non-finite gradient, log-probs do not agree): the batch is dropped."""

    reason: str
    metrics: Mapping[str, float] = field(default_factory=dict)


Outcome = Candidate | Skip | Stale | Blocked | Refused


class TrainingRuntime(Protocol):
    """Executes steps and serves releases for all scenarios of one deployment."""

    def capabilities(self) -> Capabilities:
        """What this runtime can do."""

    def prepare(self, request: StepRequest) -> Prepared:
        """Validate fully; raises BadRequest naming the row and the rule. Changes nothing."""

    def step(self, prepared: Prepared) -> Outcome:
        """Make the update. Idempotent by ``step_id``: a second call returns the first candidate. The artifact is
        durable when a candidate is returned."""

    def publish(self, release: Release) -> None:
        """Serve ``release`` for its scenario; returns when every engine has confirmed it. In-flight requests finish on
        the version they started with. Raises Unavailable when an engine cannot confirm."""

    def settle(self, step_id: str, content_id: str | None) -> None:
        """The step is over: committed as ``content_id``, or dropped (None) and its leftovers may be removed."""

    def recover(self, heads: Sequence[Release]) -> None:
        """After a start or an engine restart: serve each head again."""


@runtime_checkable
class EvolvingRuntime(Protocol):
    """A runtime whose steps take long enough that people look at them, and that keeps texts which others wrote."""

    mask: Callable[[str], str]
    """Hides the deployment's keys in a text."""

    def evolving(self, scenario: str, step: int, head: str | None) -> Mapping[str, Any]:
        """What status shows of ``scenario`` beside its state, as JSON: what the step in hand is at, and what it goes by.

        ``step`` is how many steps are committed, ``head`` the release that is served.
        """
