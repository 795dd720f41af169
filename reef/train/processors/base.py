"""DataProcessor: the surface every recipe's processor shares with the trainer.

``ingest -> ready -> build_batch -> acknowledge``, plus what the trainer asks to persist. The bare class ingests for audit
and never becomes ready; that is the processor of a recipe that updates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from reef.core.records_types import AgentRecord, RecordState
from reef.errors import ReefError
from reef.train.types import ProcessorContext, TrainingBatch


class RecipeBug(ReefError):
    """A recipe broke the contract; the message names the recipe's class and the rule."""

    code = "recipe_bug"


@dataclass(frozen=True, slots=True)
class Judged:
    """The durable state of one report after judging: parked (with what it waits for), accepted or refused."""

    record_id: str
    state: RecordState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """Records nobody needs for training any more. Their bodies stay until retention by age and size removes them."""

    releasable_agent_record_ids: frozenset[str] = field(default_factory=frozenset)


class DataProcessor:
    """Base of all processors; its methods run under the trainer's lock, so subclasses need none."""

    output_schema: ClassVar[type[TrainingBatch]] = TrainingBatch
    """What ``build_batch`` returns; checked against the preparer's needs."""
    reports_only: ClassVar[bool] = False
    """True: the trainer feeds reports, and inferences only when one is waited for."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self.scenario = context.scenario

    def ingest(self, record: AgentRecord) -> None:
        """Take one final record. Called once per record, in the order in which records became final."""

    def ready(self) -> bool:
        """True when a full batch can be built."""
        return False

    def build_batch(self) -> TrainingBatch:
        """The next batch; the same one until it is acknowledged."""
        raise RecipeBug(f"{type(self).__name__} makes no batches", hint="ask ready() first")

    def batch_records(self, batch_id: str) -> tuple[str, ...]:
        """Ids of the reports and inferences that the reserved batch uses up."""
        raise RecipeBug(f"no batch {batch_id!r} is reserved")

    def batch_owners(self, batch_id: str) -> tuple[str, ...]:
        """What names the reserved batch's values over a restart: its reports, or its derived items."""
        raise RecipeBug(f"no batch {batch_id!r} is reserved")

    def acknowledge(self, batch_id: str) -> None:
        """The batch's step is committed: its records are consumed."""
        raise RecipeBug(f"no batch {batch_id!r} is reserved")

    def discard(self, batch_id: str, reason: str) -> None:
        """The batch's step was refused: its reports will never train, for ``reason``."""
        raise RecipeBug(f"no batch {batch_id!r} is reserved")

    def flush(self) -> None:
        """Let the next batch be smaller than the recipe's batch size."""

    def recall(self, record: AgentRecord) -> None:
        """After a restart: see a record that was judged for good before, to rebuild a judge's memory."""

    def waits_for(self, record_id: str) -> bool:
        """True when this inference must be ingested although ``reports_only`` is set."""
        return False

    def retention_decision(self) -> RetentionDecision:
        """A pure read of what may go."""
        return RetentionDecision()

    def drain_judged(self) -> list[Judged]:
        """Judgments made since the last call, for the trainer to keep."""
        return []

    def expire(self, before_s: float) -> None:
        """Refuse reports that were created before ``before_s`` (epoch seconds) and still wait."""

    def progress(self) -> Mapping[str, Any]:
        """``have`` and ``need`` of the next batch, and what parked reports wait for."""
        return {"have": 0, "need": 0, "waiting_for": []}

    def close(self) -> None:
        """End private workers."""
