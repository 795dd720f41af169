"""The stable JSON shapes of records, releases, steps and status. Pure reads; called by admin and events."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from reef import __version__
from reef.core.artifacts import Release
from reef.core.records_types import RequestType
from reef.daemon.services import Services
from reef.inference.base import ROUTES
from reef.records import Row, figures
from reef.releases import ScenarioRow, StepRow
from reef.runtime import EvolvingRuntime
from reef.train.thread import TrainerThread

API_VERSION = 1


def record_view(services: Services, row: Row, *, bodies: bool) -> dict[str, Any]:
    """One record; bodies and lineage only when asked for, so that lists stay cheap."""
    record = row.record
    code, _, sentence = (record.reason or "").partition(": ")
    view: dict[str, Any] = {
        "agent_record_id": record.agent_record_id,
        "seq": row.seq,
        "scenario": record.scenario,
        "request_type": record.request_type.value,
        "state": record.state.value,
        "reason": {"code": code, "message": sentence} if record.reason else None,
        "created_at": record.created_at,
        "release_id": record.release_id,
        "session": record.session,
        "usage": record.meta.get("usage"),
        "meta": {key: value for key, value in record.meta.items() if key != "kind"},
        "purged_at": row.purged_at,
    }
    payload = dict(record.payload.items()) if bodies or record.request_type is not RequestType.INFERENCE else {}
    if record.request_type is not RequestType.INFERENCE:
        view |= {"score": payload.get("score"), "references": payload.get("references", [])}
        if bodies:
            view |= {"feedback": payload.get("feedback"), "metadata": payload.get("metadata") or {}}
    if bodies:
        step = services.chain.step_of(row.consumed_step) if row.consumed_step is not None else None
        view["consumed_by"] = None if step is None else {"step": step.number, "release_id": step.release_id}
        if step is not None and step.reason is not None:  # of a step that ended without a release
            view["consumed_by"]["reason"] = step.reason
        if record.request_type is RequestType.INFERENCE:
            view |= {"request": payload["request"], "response": payload["response"]}
            view["reports"] = services.records.referencing(record.agent_record_id)
        elif record.request_type is RequestType.TRAINING:
            view["request"] = payload or None
    else:
        view["consumed_step"] = row.consumed_step
    return view


def release_view(release: Release) -> dict[str, Any]:
    """One release."""
    return {
        "release_id": release.release_id,
        "content_id": release.content_id,
        "scenario": release.scenario,
        "parent": release.parent,
        "step": release.step,
        "step_id": release.step_id,
        "state": release.state.value,
        "created_at": release.created_at,
        "restored_from": release.restored_from,
        "size_bytes": release.size_bytes,
        "verdict": dict(release.verdict),
        "metrics": dict(release.metrics),
    }


def step_view(step: StepRow) -> dict[str, Any]:
    """One step."""
    return {
        "step": step.number,
        "step_id": step.step_id,
        "batch_id": step.batch_id,
        "outcome": step.outcome,
        "reason": step.reason,
        "release_id": step.release_id,
        "created_at": step.created_at,
        "metrics": dict(step.metrics),
        "verdict": dict(step.verdict),
    }


def scenario_view(services: Services, row: ScenarioRow) -> dict[str, Any]:
    """One scenario: where it stands, how full the next batch is, and why it is idle."""
    scenario = services.scenarios.opened.get(row.name)
    thread = scenario.thread if scenario is not None else None
    progress = dict(thread.trainer.progress()) if thread is not None else {}
    store, scenario_id = services.records.store, services.records.known(row.name)
    counts = figures.counts(store, scenario_id)
    reports = counts.get("report", {})
    state = thread.state if thread is not None else "idle"
    evolving = _evolving(row, thread)
    return {
        "name": row.name,
        "recipe": row.recipe if thread is None else services.scenarios.recipe.name,
        "surface": row.surface,
        "created_at": row.created_at,
        "release_id": row.head,
        "step": row.step,
        "state": "paused" if row.paused else state,
        "detail": thread.detail or _doing(evolving) if thread is not None else "",
        "evolving": evolving,
        "batch": {"have": progress.get("have", 0), "need": progress.get("need", 0)},
        "waiting_for": _waiting(services, row, thread, progress, reports),
        "pending_receipts": progress.get("waiting_for", []),
        "counts": counts,
        "reasons": figures.reasons(store, scenario_id),
        "bytes": figures.body_bytes(store, scenario_id),
    }


def _evolving(row: ScenarioRow, thread: TrainerThread | None) -> Mapping[str, Any]:
    """What a scenario that evolves says of itself; empty for others."""
    runtime = thread.trainer.runtime if thread is not None else None
    return runtime.evolving(row.name, row.step, row.head) if isinstance(runtime, EvolvingRuntime) else {}


def _doing(evolving: Mapping[str, Any]) -> str:
    """What a step of evolution is at, in words."""
    if "pairs" not in evolving:
        return str(evolving.get("phase", ""))
    left = f", at most {evolving['minutes_at_most']:,.1f} minutes" if "minutes_at_most" in evolving else ""
    return f"{evolving['phase']}: {evolving['pairs']} pairs of at most {evolving['pairs_at_most']}{left}"


def _waiting(
    services: Services,
    row: ScenarioRow,
    thread: TrainerThread | None,
    progress: dict[str, Any],
    reports: dict[str, int],
) -> str:
    """One sentence: what has to happen before the next release."""
    if row.surface == "nothing":
        return "nothing: this recipe only records"
    if thread is None:
        return f"a recipe that trains: this daemon runs {services.scenarios.recipe.name}, which only records"
    if row.paused:
        return f"someone to resume it: reef resume -s {row.name}"
    if thread.state in ("training", "held", "blocked", "failed"):
        return {"training": "the step that is running", "held": "a person to promote or reject the held release"}.get(
            thread.state, "the trouble above to pass"
        )
    if row.surface == "harness" and not progress.get("need"):
        return "nothing: this recipe changes no harness; recipe evolve does"
    missing = progress.get("need", 0) - progress.get("have", 0)
    if not sum(reports.values()):
        return f"reports: none has come yet, a batch needs {progress.get('need', 0)}"
    if progress.get("in_groups"):
        return f"{missing} more accepted samples; {progress['in_groups']} are in groups that are not complete"
    return f"{missing} more accepted report{'s' * (missing != 1)}"


def status_view(services: Services) -> dict[str, Any]:
    """The whole daemon in one document."""
    store = services.records.store
    engine = services.engine.status() if services.engine is not None else None
    health = getattr(services.backend, "health", None)  # an engine has a status instead
    return {
        "version": API_VERSION,
        "daemon": {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.time() - services.started_at, 1),
            "home": str(services.home),
            "url": services.url,
            "ready": services.ready,
            "recipe": services.scenarios.recipe.name,
        },
        "inference": {
            "backend": "engine" if services.engine is not None else "provider",
            "model": _model(services),
            "speaks": list(getattr(services.backend, "speaks", ROUTES.values())),  # most backends speak all
            "ready": services.ready and (engine is None or engine["engine"]["state"] == "ready"),
            "engine": engine,
            "upstream": None if health is None else health.as_dict(),
        },
        "store": {
            "records": figures.total(store),
            "bytes": store.size_bytes(),
            "queue": store.waiting,
            "commits": store.commits,
            "fsync_ms": round(store.fsync_ms, 2),
            "unrecorded": services.unrecorded,
            "degraded": services.degraded,
        },
        "scenarios": [scenario_view(services, row) for row in services.chain.scenarios()],
    }


def _model(services: Services) -> str | None:
    service = services.config.service
    if services.engine is not None and service.model_path is not None:
        return service.model_path.name
    return service.upstream_model
