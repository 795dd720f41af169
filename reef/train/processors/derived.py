"""DerivedProcessor: for recipes that ask a model to judge. Four verbs, an async judge on a private worker.

The recipe writes ``ingest`` from ``track``, ``dispatch`` and ``retire``; ``catch_up`` turns finished judgments into units.
A judgment may take minutes: the worker has its own event loop, so neither serving nor the trainer's lock waits. Verdicts are
durable through the context, so a restart does not pay for them again.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from reef.core.records_types import AgentRecord, RecordState
from reef.errors import ReefError
from reef.train.processors.base import DataProcessor, Judged, RecipeBug, RetentionDecision
from reef.train.processors.pairing import Judgment
from reef.train.processors.units import Accepted, Group, Unit, UnitPool
from reef.train.types import ProcessorContext, TrainingBatch

log = logging.getLogger("reef.derived")


class VerdictMemory(Protocol):
    """Where finished verdicts outlive the process; the trainer gives one backed by the store."""

    def get(self, key: str) -> Any | None:
        """The JSON value kept for ``key``, None for none."""

    def put(self, key: str, value: Any) -> None:
        """Keep a JSON value."""


class DictMemory(dict[str, Any]):
    """A VerdictMemory that lasts as long as the process (smoke tests)."""

    def put(self, key: str, value: Any) -> None:
        """Keep a value."""
        self[key] = value


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to judge: a name that is the same after a restart, and the records behind it."""

    key: str
    records: tuple[AgentRecord, ...]

    @property
    def record_ids(self) -> tuple[str, ...]:
        """Ids of the records behind it."""
        return tuple(record.agent_record_id for record in self.records)


class DerivedProcessor(DataProcessor):
    """Subclass with ``ingest``, ``judge`` (async), ``accept`` and ``make_batch``."""

    reports_only: ClassVar[bool] = False
    concurrency: ClassVar[int] = 4
    """How many judgments run at once."""
    ordered_groups: ClassVar[bool] = False

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._pool = UnitPool(context.config, self.group_ready, ordered_groups=self.ordered_groups, reopen_groups=False)
        self.batch_size = self._pool.batch_size
        memory = context.config.get("verdict_memory")
        self._memory: VerdictMemory = DictMemory() if memory is None else memory
        self._tracked: dict[str, AgentRecord] = {}
        self._items: dict[str, tuple[Item, int]] = {}
        self._releasable: set[str] = set()
        self._judged: list[Judged] = []
        self._order = 0
        self._finished: queue.SimpleQueue[tuple[Item, Any, str | None]] = queue.SimpleQueue()
        self._worker: _Worker | None = None

    # -- the recipe's part

    async def judge(self, item: Item) -> Any:
        """Ask whoever judges; return a JSON-able verdict. An exception retires the item with its message."""
        raise NotImplementedError

    def accept(self, item: Item, verdict: Any) -> Judgment:
        """Turn a verdict into TRAIN or NEVER; runs under the trainer's lock."""
        raise NotImplementedError

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> TrainingBatch:
        """Shape accepted units into ``output_schema``."""
        raise NotImplementedError

    def group_ready(self, key: Hashable, members: Sequence[Accepted]) -> bool | Group:
        """As in PairingProcessor."""
        return len(members) >= int(self.context.config.get("group_size", 1))

    # -- the four verbs

    def track(self, record: AgentRecord) -> bool:
        """Hold a record for a later item; False when it is already held, or has been retired or trained."""
        if record.agent_record_id in self._tracked or record.agent_record_id in self._releasable:
            return False
        self._tracked[record.agent_record_id] = record
        return True

    def dispatch(self, item: Item) -> None:
        """Have ``item`` judged once; a verdict kept from before a restart is used instead of a new one."""
        if item.key in self._items:
            return
        self._order += 1
        self._items[item.key] = (item, self._order)
        kept = self._memory.get(item.key)
        if kept is not None:
            self._finished.put((item, kept, None))
            return
        if self._worker is None:
            self._worker = _Worker(self.concurrency, type(self).__name__)
        self._worker.run(partial(self._ask, item))

    def retire(self, record_id: str, reason: str) -> None:
        """Release a record that will not train, for ``reason`` (code and sentence)."""
        if self._tracked.pop(record_id, None) is not None:
            self._releasable.add(record_id)
            self._judged.append(Judged(record_id, RecordState.REFUSED, reason))

    def catch_up(self) -> None:
        """Take in every judgment that has finished since the last call."""
        while True:
            try:
                item, verdict, failed = self._finished.get_nowait()
            except queue.Empty:
                return
            _, order = self._items.pop(item.key)
            if failed is not None:
                self._retire_item(item, f"judge_failed: {failed}")
                continue
            try:
                judgment = self.accept(item, verdict)
                if judgment.verdict == "wait":
                    raise RecipeBug(f"{type(self).__name__}.accept answered WAIT", hint="answer TRAIN or NEVER")
            except (
                Exception
            ) as error:  # the edge to the recipe's code: it is told, and the item does not hang in the air
                code = "recipe_bug" if isinstance(error, RecipeBug) else "recipe_error"
                self._retire_item(item, f"{code}: {type(error).__name__}: {error}")
                raise
            if judgment.verdict == "never":
                self._retire_item(item, judgment.reason or "not_accepted")
                continue
            releases = tuple(record.release_id for record in item.records if record.release_id is not None)
            accepted = Accepted(order, item.key, item.record_ids, judgment.value, judgment.slot, releases)
            refusal, discarded = self._pool.add(accepted, judgment.group_key)
            if refusal is not None:
                self._retire_item(item, refusal)
            for member in discarded:
                for record_id in member.record_ids:
                    self.retire(record_id, "group_discarded")

    # -- the engine's part

    def pending(self) -> int:
        """Items that are being judged or wait to be taken in."""
        return len(self._items)

    def ready(self) -> bool:
        """True when a batch can be built from what has been judged so far."""
        self.catch_up()
        return self._pool.reserved is not None or self._pool.full()

    def flush(self) -> None:
        """Let the next batch be made of whatever is complete."""
        self._pool.partial = True

    def build_batch(self) -> TrainingBatch:
        """The next batch; the same one until it is acknowledged."""
        reservation = self._pool.reserve(self.make_batch)
        if reservation is None:
            raise RecipeBug(f"{type(self).__name__}: no full batch", hint="ask ready() first")
        return reservation.batch

    def batch_records(self, batch_id: str) -> tuple[str, ...]:
        """The records of the reserved batch."""
        units = self._pool.holds(batch_id).units
        used = (record_id for unit in units for one in unit.candidates for record_id in one.record_ids)
        return tuple(dict.fromkeys(used))

    def batch_owners(self, batch_id: str) -> tuple[str, ...]:
        """Keys of the items in the reserved batch."""
        return self._pool.holds(batch_id).owners

    def acknowledge(self, batch_id: str) -> None:
        """The batch trained: its records are released."""
        for record_id in self._settle(batch_id):
            self._tracked.pop(record_id, None)
            self._releasable.add(record_id)

    def discard(self, batch_id: str, reason: str) -> None:
        """The step was refused: its records are retired with ``reason``."""
        for record_id in self._settle(batch_id):
            self.retire(record_id, reason)

    def retention_decision(self) -> RetentionDecision:
        """Everything retired or trained."""
        return RetentionDecision(frozenset(self._releasable))

    def drain_judged(self) -> list[Judged]:
        """Judgments since the last call."""
        judged, self._judged = self._judged, []
        return judged

    def progress(self) -> Mapping[str, Any]:
        """Fill of the next batch and how many items are with the judge."""
        return {
            "have": self._pool.have(),
            "need": self.batch_size,
            "in_groups": self._pool.pending(),
            "judging": len(self._items),
            "waiting_for": [],
        }

    def close(self) -> None:
        """Cancel running judgments and end the worker."""
        if self._worker is not None:
            self._worker.close()

    # -- inside

    async def _ask(self, item: Item) -> None:
        try:
            verdict = await self.judge(item)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the edge: a judge is the recipe's code and may fail in any way
            log.warning("judge of %s failed on %s: %s", type(self).__name__, item.key, error)
            self._finish(item, None, f"{type(error).__name__}: {error}")
            return
        try:
            self._memory.put(item.key, verdict)
        except ReefError as error:  # it counts all the same; only after a restart it is asked for again
            log.warning("the verdict on %s is not kept: %s", item.key, error)
        self._finish(item, verdict, None)

    def _finish(self, item: Item, verdict: Any, failed: str | None) -> None:
        self._finished.put((item, verdict, failed))
        if self.context.wake is not None:
            self.context.wake()

    def _retire_item(self, item: Item, reason: str) -> None:
        for record_id in item.record_ids:
            self.retire(record_id, reason)

    def _settle(self, batch_id: str) -> tuple[str, ...]:
        used = self.batch_records(batch_id)
        self._pool.settle(batch_id)
        return used


class _Worker:
    """A thread with an event loop and a bounded number of running coroutines."""

    def __init__(self, concurrency: int, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._limit = asyncio.Semaphore(concurrency)
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"judge-{name}", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start ``work`` when there is room."""

        async def limited() -> None:
            async with self._limit:
                await work()

        asyncio.run_coroutine_threadsafe(limited(), self._loop)

    def close(self) -> None:
        """Cancel everything, stop the loop, join the thread."""

        async def cancel() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
