"""Scenario and the registry: one get() finds what a request needs. A new name makes a new scenario.

Knows nothing of HTTP. Built by daemon.app.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from reef.core.artifacts import Release
from reef.core.reports import check_name, secret_name
from reef.errors import Conflict, NotFound
from reef.events import Bus
from reef.inference.base import InferenceBackend
from reef.recipes.base import Recipe
from reef.records import RecordStore
from reef.releases import ReleaseChain
from reef.runtime import EvolvingRuntime
from reef.train.loop import Trainer
from reef.train.thread import TrainerThread
from reef.train.watch import Watch, WatchSettings


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload: what answers its calls, what judges its reports. ``thread`` is None where nothing is trained."""

    name: str
    backend: InferenceBackend
    thread: TrainerThread | None
    surface: str = "nothing"
    known_releases: set[str] = field(default_factory=set, compare=False)
    """Releases of the chain that calls have named: looked up once."""

    def answered(self) -> None:
        """An inference became final; the trainer is only woken when it may wait for one."""
        if self.thread is not None and self.thread.trainer.wants_inferences:
            self.thread.wake()


class Scenarios:
    """All scenarios of the deployment, by name."""

    def __init__(
        self,
        records: RecordStore,
        chain: ReleaseChain,
        bus: Bus,
        recipe: Recipe,
        backend: InferenceBackend,
        *,
        create: bool,
        review: bool,
        watch: WatchSettings,
        park_timeout_s: float,
    ) -> None:
        self.records, self.chain, self.bus = records, chain, bus
        self.recipe, self.backend = recipe, backend
        self._create, self._review, self._park_timeout_s = create, review, park_timeout_s
        self._watch = watch
        self.opened: dict[str, Scenario] = {}
        """The path of a request looks here first: one dict look-up."""
        self.secrets: tuple[bytes, ...] = ()
        """No new name holds one of these."""
        self.mask: Callable[[str], str] = str
        """Hides them in a text."""
        self._lock = threading.Lock()

    async def open(self, name: str) -> Scenario:
        """The scenario, made when it is new; raises NotFound when new names are switched off."""
        found = self.opened.get(name)
        return found if found is not None else await asyncio.to_thread(self.open_now, name)

    def open_now(self, name: str, create: bool | None = None) -> Scenario:
        """As ``open``, blocking. ``create`` overrides the deployment's setting (an explicit POST may always create)."""
        with self._lock:
            found = self.opened.get(name)
            if found is not None:
                return found
            self.check(name, create)
            made = self._make(name)
            self.opened[name] = made
            self.bus.publish("scenario", name, recipe=self.recipe.name)
            return made

    def check(self, name: str, create: bool | None = None) -> None:
        """Raise what ``open_now`` would raise, and open nothing."""
        check_name(name, "x-reef-scenario")
        allowed = self._create if create is None else create
        secret = any(one in name.encode() for one in self.secrets)
        if (allowed and not secret) or any(row.name == name for row in self.chain.scenarios()):
            return
        if secret:
            raise secret_name("x-reef-scenario")
        raise NotFound(
            f"no scenario {name!r}, and new names are switched off",
            hint=f"create it with: reef scenarios new {name}",
            code="no_scenario",
        )

    def start(self) -> None:
        """After a start: serve each committed head and go on with what was not judged or trained yet."""
        for row in self.chain.scenarios():
            scenario = self.open_now(row.name, create=True)
            if scenario.thread is not None:
                if self.backend.serving(row.name) is None:  # opened before there was an engine
                    scenario.thread.trainer.recover()
                scenario.thread.wake()

    def hurry(self) -> None:
        """Begin to stop, without waiting."""
        for scenario in list(self.opened.values()):
            if scenario.thread is not None:
                scenario.thread.hurry()

    def stop(self) -> None:
        """Let every trainer finish the step in hand."""
        self.hurry()
        for scenario in list(self.opened.values()):
            if scenario.thread is not None:
                scenario.thread.stop()

    def names(self) -> list[str]:
        """Open scenarios, oldest first."""
        return list(self.opened)

    # -- what people do

    def pause(self, name: str, paused: bool, actor: str) -> None:
        """Stop or go on training one scenario; it is kept over restarts."""
        thread = self._trained(name)
        self.chain.pause(name, paused, actor)
        thread.paused = paused
        thread.retry()

    def step(self, name: str) -> Mapping[str, Any]:
        """Make a step of whatever is complete, without waiting for a full batch."""
        thread = self._trained(name)
        if thread.paused:
            raise Conflict(f"training of {name!r} is paused", hint=f"go on with: reef resume -s {name}", code="paused")
        with thread.between_steps() as trainer:
            trainer.catch_up()  # a report that has just come counts, although nobody has looked yet
            progress = trainer.progress()
            if not progress["have"]:
                raise Conflict(
                    f"scenario {name!r} has nothing to train on yet",
                    hint="see why: reef status",
                    code="nothing_to_train",
                )
            trainer.flush()
        thread.retry()
        return progress

    def rollback(self, name: str, to: str | None, actor: str) -> Release:
        """Serve an earlier release again; it becomes a new one at the end of the chain. Raises when it cannot be served."""

        def change(trainer: Trainer) -> Release:
            with self.chain.store.files:
                target = self.chain.rollback_target(name, to)
                trainer.try_serving(target)  # its files may be gone: before anything is changed
                return self.chain.rollback(name, to, actor)

        return self._serve(name, change)

    def promote(self, name: str, release_id: str, actor: str) -> Release:
        """Serve a held release."""
        return self._serve(name, lambda _: self.chain.promote(name, release_id, actor))

    def reject(self, name: str, release_id: str, actor: str) -> Release:
        """Refuse a held release."""
        release = self.chain.reject(name, release_id, actor)
        self._trained(name).retry()
        self.bus.publish("release", name, release=release.release_id, state=release.state.value)
        return release

    def take(self, recipe: Recipe) -> None:
        """Go on with other knobs: between two steps each trainer is made again, as after a restart. Raises, and changes
        nothing, when the recipe cannot be built."""
        with self._lock, ExitStack() as held:
            threads = {name: one.thread for name, one in self.opened.items() if one.thread is not None}
            for thread in threads.values():
                held.enter_context(thread.between_steps())
            built = {name: self._built(name, recipe) for name in threads}
            for name, trainer in built.items():
                if trainer is not None:
                    threads[name].take(trainer)
            self.recipe = recipe
        for thread in threads.values():
            thread.retry()

    def _serve(self, name: str, change: Callable[[Trainer], Release]) -> Release:
        thread = self._trained(name)
        with thread.between_steps() as trainer:
            try:
                release = change(trainer)
            finally:
                trainer.recover()
        thread.retry()
        release = self.chain.get(name, release.release_id)
        self.bus.publish("release", name, release=release.release_id, state=release.state.value)
        return release

    def _trained(self, name: str) -> TrainerThread:
        thread = self.open_now(name, create=False).thread
        if thread is None:
            raise Conflict(
                f"scenario {name!r} updates nothing (recipe {self.recipe.name})",
                hint="a recipe that trains is chosen at the start, e.g. reef up --recipe pg",
                code="nothing_to_train",
            )
        return thread

    def _make(self, name: str) -> Scenario:
        surface = self.recipe.build_surface().kind
        built = self._built(name, self.recipe)
        self.records.known(name)
        if built is None:
            return Scenario(name, self.backend, None, surface)
        return Scenario(
            name, self.backend, TrainerThread(built, self.bus, paused=self.chain.scenario(name).paused), surface
        )

    def _built(self, name: str, recipe: Recipe) -> Trainer | None:
        """What trains the scenario, as its row in the store has it; None where nothing is trained."""
        built = recipe.build(name, self.records)
        if not isinstance(built, Trainer):
            self.chain.create(name, recipe.name, recipe.build_surface().kind, None)
            return None
        built.review, built.park_timeout_s = self._review, self._park_timeout_s
        if self._watch != WatchSettings():
            built.watch = Watch(self.chain, name, self._watch, built.try_serving)
        if isinstance(built.runtime, EvolvingRuntime):
            built.runtime.mask = self.mask
        if self.chain.head(name) is not None and self.backend.serving(name) is None:
            built.recover()
        return built
