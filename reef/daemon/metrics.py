"""GET /metrics: what the daemon counts and what its store holds, as Prometheus text. docs/operate.md names each figure.

Everything is read at the scrape; nothing is called on the path of a request, where two histograms are counted in line.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef import __version__
from reef.core.histogram import BOUNDS_S, Histogram
from reef.daemon.services import Services
from reef.records.figures import figures

_REASONS = 50
"""Reason codes of one scenario that are shown by name: a recipe may make up any number of them."""

if TYPE_CHECKING:
    from prometheus_client import Metric


async def metrics(request: Request) -> Response:
    """The figures of now."""
    services: Services = request.app.state.services
    raw, kind = await asyncio.to_thread(_text, services)
    return Response(raw, headers={"content-type": kind})


def _text(services: Services) -> tuple[bytes, str]:
    # Imported at the first scrape: it costs a sixth of a second, and most daemons are never scraped.
    from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.registry import Collector

    class Everything(Collector):
        def collect(self) -> Iterable[Metric]:
            yield from _daemon(services)
            yield from _scenarios(services)

    registry = CollectorRegistry()
    registry.register(Everything())
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def _daemon(services: Services) -> Iterator[Metric]:
    """The process, the gateway and the store."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    store = services.records.store
    engine = services.engine.status() if services.engine is not None else None
    info = {
        "version": __version__,
        "recipe": services.scenarios.recipe.name,
        "backend": "provider" if engine is None else "engine",
    }
    yield InfoMetricFamily("reef_daemon", "What runs.", info)
    yield GaugeMetricFamily("reef_ready", "1 when calls are answered.", int(services.ready))
    yield _histogram(
        "reef_gateway_overhead_seconds",
        "Time of a model call in Reef, without the time of what answers it.",
        services.overhead,
    )
    yield _histogram("reef_commit_seconds", "Time until a transaction is on disk.", store.commit_times)
    yield GaugeMetricFamily("reef_store_queue_depth", "Writes that wait for the next transaction.", store.waiting)
    yield GaugeMetricFamily("reef_store_bytes", "Size of the database and its log.", store.size_bytes())
    yield GaugeMetricFamily(
        "reef_store_degraded", "1 while answers go out without a receipt.", int(services.degraded is not None)
    )
    yield CounterMetricFamily(
        "reef_unrecorded_answers", "Answers that went out without a receipt.", services.unrecorded
    )
    if engine is not None:
        up = int(engine["engine"]["state"] == "ready")
        yield GaugeMetricFamily("reef_engine_up", "1 while the embedded engine answers.", up)


def _scenarios(services: Services) -> Iterator[Metric]:
    """What each scenario holds and waits for."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found, now_s = figures(services.records.store), time.time()
    records = GaugeMetricFamily(
        "reef_records", "Records kept, by type and state.", labels=("scenario", "type", "state")
    )
    parked = GaugeMetricFamily(
        "reef_reports_parked", "Reports that wait for an inference, or whose recipe only records.", labels=("scenario",)
    )
    for scenario, kind, state, count in found.records:
        records.add_metric((scenario, kind, state), count)
        if (kind, state) == ("report", "parked"):
            parked.add_metric((scenario,), count)
    reasons = GaugeMetricFamily(
        "reef_report_reasons", "Reports that do not train, by reason.", labels=("scenario", "reason")
    )
    named: Counter[str] = Counter()
    rest: Counter[str] = Counter()
    for scenario, reason, count in found.reasons:
        named[scenario] += 1
        if named[scenario] <= _REASONS:
            reasons.add_metric((scenario, reason), count)
        else:
            rest[scenario] += count
    for scenario, count in rest.items():
        reasons.add_metric((scenario, "other"), count)
    oldest = GaugeMetricFamily(
        "reef_reports_parked_oldest_seconds", "Age of the oldest parked report.", labels=("scenario",)
    )
    for scenario, since_s in found.parked:
        oldest.add_metric((scenario,), max(0.0, now_s - since_s))
    lags: dict[str, int] = {}
    for scenario, release_id in found.waiting:
        lags[scenario] = max(lags.get(scenario, 0), services.chain.published_after(scenario, release_id))
    steps = CounterMetricFamily("reef_steps", "Steps made, by outcome.", labels=("scenario", "outcome"))
    for scenario, outcome, count in found.steps:
        steps.add_metric((scenario, outcome), count)
    yield from (records, parked, reasons, oldest, steps)
    yield from _chains(services, lags)


def _chains(services: Services, lags: dict[str, int]) -> Iterator[Metric]:
    """Batches, staleness and the release that serves."""
    from prometheus_client.core import GaugeMetricFamily

    names = {
        "reef_batch_have": "Accepted samples that wait for the next step.",
        "reef_batch_need": "Samples of a whole batch.",
        "reef_staleness_releases": "Releases published since the oldest waiting sample was generated.",
        "reef_release": "Number of the head release.",
        "reef_training_paused": "1 while training is paused.",
    }
    families = {name: GaugeMetricFamily(name, said, labels=("scenario",)) for name, said in names.items()}
    for row in services.chain.scenarios():
        opened = services.scenarios.opened.get(row.name)
        thread = opened.thread if opened is not None else None
        if thread is None:
            continue
        progress = thread.trainer.progress()
        values = {
            "reef_batch_have": progress.get("have", 0),
            "reef_batch_need": progress.get("need", 0),
            "reef_staleness_releases": lags.get(row.name, 0),
            "reef_training_paused": int(row.paused),
        }
        if row.head is not None:
            values["reef_release"] = int(row.head[1:])
        for name, value in values.items():
            families[name].add_metric((row.name,), float(value))
    yield from families.values()


def _histogram(name: str, said: str, times: Histogram) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    total, buckets = 0, []
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), times.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(name, said, buckets=buckets, sum_value=times.total_s)


routes = [Route("/metrics", metrics)]
