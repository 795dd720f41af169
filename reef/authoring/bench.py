"""Measures a recipe's own code: processor and preparer, without a store, a model or a network.

Each row comes as soon as it is known, so that an interrupted run has something to show. Called by ``reef recipe bench``.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from reef.authoring.samples import SCENARIO, call, report
from reef.authoring.subject import Subject, subject
from reef.config import Config
from reef.core.records_types import AgentRecord, RequestType
from reef.recipes.base import Recipe
from reef.train.processors.base import DataProcessor
from reef.train.processors.derived import DerivedProcessor, DictMemory
from reef.train.types import ProcessorContext, TrainingBatch

Progress = Callable[[str, int, int | None], None]
_TURNS_OF_A_SESSION = 10
_PREPARED = 50
_PATIENCE_S = 60.0


def bench(
    cls: type[Recipe], config: Config | None, count: int, progress: Progress, environ: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Rows of ``what``, ``value``, ``unit``, ``of``."""
    with subject(cls, config, environ) as made:
        calls, reports = _traffic(type(made.recipe), count)
        known = {one.agent_record_id: one for one in calls}
        one = _started(made, known)
        try:
            yield from _ingesting(one, calls, reports, progress)
            yield from _batches(made, one, progress)
        finally:
            one.close()
        yield from _waiting(made, calls, reports, progress)
        yield from _restarting(made, known, calls, reports, progress)


def _traffic(recipe: type[Recipe], count: int) -> tuple[list[AgentRecord], list[AgentRecord]]:
    calls = [call(number, session=f"s{number // _TURNS_OF_A_SESSION}") for number in range(count)]
    if recipe.report_schema is None:
        return calls, []
    return calls, [report(recipe, number, [one.agent_record_id]) for number, one in enumerate(calls)]


def _started(made: Subject, known: Mapping[str, AgentRecord], memory: DictMemory | None = None) -> DataProcessor:
    def resolve(record_ids: Sequence[str]) -> dict[str, AgentRecord]:
        return {one: known[one] for one in record_ids if one in known}

    settings = {**made.settings, "verdict_memory": DictMemory() if memory is None else memory}
    return made.processor(ProcessorContext(SCENARIO, settings, resolve, lambda release: 0))


def _feed(one: DataProcessor, record: AgentRecord) -> None:
    if record.request_type is RequestType.REPORT or not one.reports_only or one.waits_for(record.agent_record_id):
        one.ingest(record)


def _ingesting(
    one: DataProcessor, calls: Sequence[AgentRecord], reports: Sequence[AgentRecord], progress: Progress
) -> Iterator[dict[str, Any]]:
    """Calls and then reports, as they come."""
    records = [*calls, *reports]
    began = time.perf_counter()
    for number, record in enumerate(records):
        _feed(one, record)
        if number % 256 == 0:
            progress("ingest", number, len(records))
    took_s = time.perf_counter() - began
    yield _row("ingest", len(records) / took_s, "records/s", f"{len(records)} records")
    if isinstance(one, DerivedProcessor):
        began = time.perf_counter()
        while one.pending() and time.perf_counter() - began < _PATIENCE_S:
            progress("judge", 0, None)
            one.catch_up()
            time.sleep(0.001)
        asked = one.progress()["have"]
        yield _row("judge", time.perf_counter() - began, "s", f"{asked} accepted, {one.concurrency} at a time")


def _batches(made: Subject, one: DataProcessor, progress: Progress) -> Iterator[dict[str, Any]]:
    """From "is there a batch?" to "it is committed", and what the preparer takes of it."""
    if made.prepare is None:
        return
    built: list[float] = []
    prepared: list[float] = []
    state: Mapping[str, Any] = {}
    samples = 0
    while True:
        began = time.perf_counter()
        if not one.ready():
            break
        batch: TrainingBatch = one.build_batch()
        middle = time.perf_counter()
        signal = None
        if len(prepared) < _PREPARED:
            signal = made.prepare(batch, state=state).signal
            prepared.append(time.perf_counter() - middle)
        after = time.perf_counter()
        samples += len(one.batch_owners(batch.batch_id))
        one.acknowledge(batch.batch_id)
        one.drain_judged()
        built.append(time.perf_counter() - after + middle - began)
        state = signal.next_algorithm_state if signal is not None else state
        progress("batches", len(built), None)
    if built:
        many = f"{len(built)} batches of {samples / len(built):.3g}"
        yield _row("batch", statistics.median(built), "s", f"median of {many}")
        yield _row("batch, slowest", max(built), "s", many)
        yield _row("preparer", statistics.median(prepared), "s", f"median of {len(prepared)}")


def _waiting(
    made: Subject, calls: Sequence[AgentRecord], reports: Sequence[AgentRecord], progress: Progress
) -> Iterator[dict[str, Any]]:
    """What a report costs that waits for its call (or, without reports, a call that waits for its session)."""
    parked = reports or [one for one in calls if int(one.agent_record_id.rpartition("-")[2]) % _TURNS_OF_A_SESSION == 0]
    one = _started(made, {})
    try:
        tracemalloc.start()
        for number, record in enumerate(parked):
            _feed(one, record)
            if number % 256 == 0:
                progress("waiting", number, len(parked))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        one.close()
    what = "waiting report" if reports else "waiting call"
    yield _row(f"memory per {what}", held / max(1, len(parked)), "bytes", f"{len(parked)}, without the record itself")


def _restarting(
    made: Subject, known: Mapping[str, AgentRecord], calls: Sequence[AgentRecord], reports: Sequence[AgentRecord],
    progress: Progress,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A new processor is fed what a dead one left: everything, none of it consumed."""
    one = _started(made, known)
    rows = [*calls, *reports] if not one.reports_only else list(reports)
    try:
        began = time.perf_counter()
        for number, record in enumerate(rows):
            _feed(one, record)
            if number % 256 == 0:
                progress("restart", number, len(rows))
        one.ready()
        took_s = time.perf_counter() - began
    finally:
        one.close()
    yield _row("replay after a restart", len(rows) / took_s, "records/s", f"{len(rows)} records, {took_s:.2f} s")


def _row(what: str, value: float, unit: str, of: str) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit, "of": of}
