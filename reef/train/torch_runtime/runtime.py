"""TorchRuntime: trains and serves every scenario of a daemon with two children, one serves and one steps.

Knows nothing of records, recipes or HTTP routes. Loads no torch itself. Built by the daemon; its six protocol
methods are called on the scenarios' training threads.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reef.core.artifacts import ArtifactRef, Candidate, Release, artifact_path
from reef.errors import BadConfig, BadRequest, NotFound, ReefError, Unavailable
from reef.runtime import Blocked, Capabilities, Outcome, Prepared, Refused, Skip, StepRequest
from reef.runtime.serving import Serving, ServingTable
from reef.train.losses import loss_names
from reef.train.torch_runtime import artifacts
from reef.train.torch_runtime.engine_child import EngineChild
from reef.train.torch_runtime.modelfiles import ModelFacts, base_content_id, model_facts
from reef.train.torch_runtime.pull import usable_folder
from reef.train.torch_runtime.rows import check_payload
from reef.train.torch_runtime.settings import TrainSettings
from reef.train.torch_runtime.trainer_child import TrainerChild

OnEvent = Callable[[str, dict[str, Any]], None]
MAX_DEATHS = 3
"""How often the trainer may die in one step before its batch is dropped."""
_OTHER_BASE = "set model_path back, or start a new scenario"


class TorchRuntime:
    """Implements ``reef.runtime.TrainingRuntime`` with the embedded engine. ``start`` before anything else."""

    def __init__(
        self, home: Path, model_path: Path, settings: TrainSettings, serving: ServingTable, on_event: OnEvent
    ) -> None:
        self.home, self.model_path, self.settings, self.serving = home, model_path, settings, serving
        self._on_event = on_event
        self._lock = threading.Lock()
        self._parts: tuple[ModelFacts, str] | None = None
        self._engine: EngineChild | None = None
        self._trainer: TrainerChild | None = None
        self._deaths: dict[str, int] = {}
        self._loaded: dict[str, list[str]] = {}
        self._full_scenario: str | None = None
        self._looked_through: set[str] = set()

    # -- life

    def start(self) -> None:
        """Convert the model when it must be, start the engine and wait until it answers."""
        for module in ("torch", "transformers", "aiohttp"):
            if importlib.util.find_spec(module) is None:
                raise BadConfig(f"the embedded engine needs {module}", hint="pip install 'reefd[torch]'")
        facts, base = self._model()
        artifacts.remove_leftovers(self.home)
        logs = self.home / "logs"
        self._trainer = TrainerChild(facts.path, self.home, base, self.settings, logs / "trainer.log")
        self._engine = EngineChild(
            facts.path, self.settings, base, logs / "engine.log", self._on_event, self._serve_again
        )
        self._engine.start()

    def stop(self) -> None:
        """End both children."""
        for child in (self._trainer, self._engine):
            if child is not None:
                child.stop()

    @property
    def engine_url(self) -> str:
        """Where the engine listens; the same over restarts."""
        return self._serving_child().url

    @property
    def engine_key(self) -> str:
        """The engine's bearer key."""
        return self._serving_child().key

    @property
    def model_folder(self) -> Path:
        """The Hugging Face folder that is served (the converted one for a GGUF file)."""
        return self._model()[0].path

    def status(self) -> dict[str, Any]:
        """State of both children, and what the engine has loaded."""
        engine, trainer = self._engine, self._trainer
        shown: dict[str, Any] = {
            "engine": {"state": "stopped"} if engine is None else engine.status(),
            "trainer": {"state": "stopped"} if trainer is None else trainer.status(),
            "model": str(self.model_path),
            "mode": self.settings.mode,
        }
        if engine is not None and engine.state == "ready":
            try:
                shown["engine"]["load"] = engine.call("GET", "/v1/loads")["loads"][0]
            except Unavailable as error:
                shown["engine"]["load_error"] = error.message
        return shown

    # -- the protocol

    def capabilities(self) -> Capabilities:
        """Weights, the loss families that have a torch function, and the id of the base weights."""
        return Capabilities("weights", loss_names(), self._model()[1])

    def prepare(self, request: StepRequest) -> Prepared:
        """Check every row and number of the payload; raises BadRequest naming the row and the rule."""
        facts = self._model()[0]
        tokens = check_payload(request.payload, facts)
        return Prepared(request, {"tokens": tokens})

    def step(self, prepared: Prepared) -> Outcome:
        """Make the update in the train child; a step that was made before is returned again."""
        request = prepared.request
        made = artifacts.find_step(self.home, request.step_id)
        if made is not None:
            return self._candidate(request.step_id, made)
        blocked = self._parent_problem(request.parent)
        if blocked is not None:
            return Blocked(blocked, retry_after_s=60.0)
        try:
            result = self._train(request)
        except Unavailable as error:
            return self._after_death(request.step_id, error)
        self._deaths.pop(request.step_id, None)
        match result["outcome"]:
            case "candidate":
                manifest = artifacts.read_manifest(self.home, result["content_id"])
                return self._candidate(request.step_id, {**manifest, **result})
            case "skip":
                return Skip(result["reason"], result["metrics"])
            case "blocked":
                return Blocked(result["reason"], retry_after_s=30.0)
            case _:
                return Refused(result["reason"], result["metrics"])

    def publish(self, release: Release) -> None:
        """Load the release's weights into the engine, see that they are there, then point new calls at them."""
        with self._lock:
            try:
                adapter = self._load(release)
            except (NotFound, BadConfig) as error:
                self.serving.refuse(release.scenario, error)
                raise
            self.serving.set(release.scenario, Serving(release.release_id, release.content_id, adapter))
            self._unload_old(release.scenario, adapter)

    def settle(self, step_id: str, content_id: str | None) -> None:
        """A dropped step's artifact is removed, unless some scenario serves it."""
        if content_id is not None:
            return
        made = artifacts.find_step(self.home, step_id)
        if made is None:
            return
        served = self.serving.get(made["scenario"])
        if served is None or served.content_id != made["content_id"]:
            artifacts.remove(self.home, made["content_id"])

    def recover(self, heads: Sequence[Release]) -> None:
        """Serve every head again."""
        for head in heads:
            self.publish(head)

    def export(self, release: Release, target: Path) -> Path:
        """Write ``release`` as a plain Hugging Face folder, adapter folded in, into a new or empty ``target``."""
        if target.exists() and any(target.iterdir()):
            raise BadRequest(f"{target} is not empty", hint="give a new folder", field="target")
        content_id = release.content_id
        if content_id != self._model()[1] and not artifact_path(self.home, content_id).is_dir():
            raise NotFound(f"the files of {release.release_id} are gone")
        self._training_child().ask("export", {"content_id": content_id, "target": str(target.resolve())})
        return target

    # -- inside

    def _model(self) -> tuple[ModelFacts, str]:
        if self._parts is None:
            folder = usable_folder(self.model_path, self.home / "engine")
            self._parts = model_facts(folder), base_content_id(folder, self.home / "engine" / "weight-ids.json")
        return self._parts

    def _serving_child(self) -> EngineChild:
        if self._engine is None:
            raise Unavailable("the engine is not started")
        return self._engine

    def _training_child(self) -> TrainerChild:
        if self._trainer is None:
            raise Unavailable("the trainer is not started")
        return self._trainer

    def _train(self, request: StepRequest) -> dict[str, Any]:
        def progress(said: Any) -> None:
            self._on_event("step", {"scenario": request.scenario, "step_id": request.step_id, **said})

        fields = {
            "step_id": request.step_id,
            "scenario": request.scenario,
            "step": request.step,
            "parent": request.parent.content_id,
            "payload": dict(request.payload),
        }
        return self._training_child().ask("step", fields, progress)

    def _after_death(self, step_id: str, error: ReefError) -> Outcome:
        deaths = self._deaths.get(step_id, 0) + 1
        self._deaths[step_id] = deaths
        self._on_event("trainer", {"what": "died", "step_id": step_id, "reason": error.message, "times": deaths})
        if deaths >= MAX_DEATHS:
            return Refused(f"trainer_died: {error.message}, {deaths} times in this step ({error.hint})")
        return Blocked(f"{error.message} ({error.hint})")

    def _parent_problem(self, parent: Release) -> str | None:
        """Why the parent cannot be trained on with these settings, None when it can."""
        base = self._model()[1]
        if parent.content_id == base:
            return None
        try:
            self._whole(parent.content_id)
        except (BadConfig, NotFound) as error:
            return f"{parent.release_id}: {error.message}; roll back to a release that has its files"
        manifest = artifacts.read_manifest(self.home, parent.content_id)
        if manifest["base_content_id"] != base:
            return f"{parent.release_id} has another base model; {_OTHER_BASE}"
        was, now = manifest["settings"], self.settings.as_dict()
        names = ("mode",) if was["mode"] == "full" else ("mode", "lora_rank", "lora_alpha")
        for name in names:
            if was[name] != now[name]:
                return f"{parent.release_id} was trained with training.{name} {was[name]}, the settings say {now[name]}"
        return None

    def _candidate(self, step_id: str, made: dict[str, Any]) -> Candidate:
        content_id = str(made["content_id"])
        size = artifacts.size_bytes(artifact_path(self.home, content_id))
        return Candidate(step_id, ArtifactRef(content_id, size), made["metrics"], made["checks"])

    def _files(self, content_id: str) -> Path:
        """The folder of an artifact that this runtime can serve."""
        base = self._model()[1]
        if content_id == base:
            return self.model_folder
        self._whole(content_id)
        manifest = artifacts.read_manifest(self.home, content_id)
        if manifest["base_content_id"] != base:
            raise BadConfig(f"{content_id} was trained from another base model", hint=_OTHER_BASE)
        if manifest["mode"] != self.settings.mode:
            raise BadConfig(
                f"{content_id} was trained with training.mode {manifest['mode']}, the settings say {self.settings.mode}"
            )
        return artifact_path(self.home, content_id).resolve()

    def _whole(self, content_id: str) -> None:
        """Raise NotFound when the artifact is gone or damaged; each is looked through once."""
        if not artifact_path(self.home, content_id).is_dir():
            raise NotFound(
                f"the files of release content {content_id} are gone", hint="go back to another release: reef rollback"
            )
        if content_id in self._looked_through:
            return
        if (wrong := artifacts.damage(self.home, content_id)) is not None:
            raise NotFound(
                f"the files of release content {content_id} are damaged: {wrong}",
                hint="nothing is deleted; go back: reef rollback, or restore a backup: reef restore FILE --force",
                code="artifact_damaged",
            )
        self._looked_through.add(content_id)

    def _load(self, release: Release) -> str | None:
        """Bring the release's weights into the engine; the adapter's name, None for whole weights."""
        if self.settings.mode == "full":
            self._claim(release.scenario)
            self._swap_weights(release.content_id)
            return None
        if release.content_id == self._model()[1]:
            return None
        self._load_adapter(release.content_id)
        return release.content_id

    def _load_adapter(self, content_id: str) -> None:
        folder = self._files(content_id)
        engine = self._serving_child()
        engine.call("POST", "/load_lora_adapter", {"lora_name": content_id, "lora_path": str(folder)})
        if content_id not in engine.call("GET", "/model_info")["adapters"]:
            raise Unavailable(f"the engine did not confirm adapter {content_id}")

    def _claim(self, scenario: str) -> None:
        if self._full_scenario not in (None, scenario):
            raise BadConfig(
                f"training.mode full serves one scenario only, and {self._full_scenario!r} has it",
                hint="use training.mode lora for several scenarios",
            )
        self._full_scenario = scenario

    def _swap_weights(self, content_id: str) -> None:
        folder = self._files(content_id)
        engine = self._serving_child()
        if engine.call("GET", "/model_info")["weight_version"] == content_id:
            return
        body = {"model_path": str(folder.resolve()), "weight_version": content_id, "flush_cache": True}
        engine.call("POST", "/update_weights_from_disk", body)
        if engine.call("GET", "/model_info")["weight_version"] != content_id:
            raise Unavailable(f"the engine did not confirm weights {content_id}")

    def _unload_old(self, scenario: str, adapter: str | None) -> None:
        """Keep a scenario's present and last adapter: a call may have read the table just before it changed."""
        if adapter is None:
            return
        mine = [name for name in self._loaded.get(scenario, []) if name != adapter] + [adapter]
        self._loaded[scenario] = mine[-2:]
        wanted = {name for names in self._loaded.values() for name in names} | self.serving.adapters()
        for name in mine[:-2]:
            if name not in wanted:
                self._serving_child().call("POST", "/unload_lora_adapter", {"lora_name": name})

    def _serve_again(self) -> None:
        """After the engine was replaced: load what the table points at."""
        with self._lock:
            for content_id in self.serving.adapters():
                try:
                    self._load_adapter(content_id)
                except NotFound as error:  # the other scenarios go on
                    self._on_event(
                        "engine", {"what": "adapter_lost", "content_id": content_id, "reason": error.message}
                    )
            self._loaded = {
                scenario: [name for name in names if name in self.serving.adapters()]
                for scenario, names in self._loaded.items()
            }
            target = self.serving.get(self._full_scenario) if self._full_scenario is not None else None
            if target is not None:
                self._swap_weights(target.content_id)
