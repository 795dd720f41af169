"""evolve: failed runs become a better harness. A batch of reports, a proposal, episodes of both, a verdict, a release."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from reef.config import knob
from reef.core.artifacts import Candidate, Verdict
from reef.dotted import imported
from reef.errors import BadConfig
from reef.evolve.backend import LocalTrainingBackend
from reef.evolve.executors import Executor, LocalExecutor, RayExecutor
from reef.evolve.machine import DaemonMachine
from reef.evolve.processor import EvolveProcessor, prepare_evolve_step
from reef.evolve.sandbox import wants_bubblewrap
from reef.evolve.settings import EvolveSettings
from reef.evolve.tasks import read_tasks
from reef.gate import GateSettings, Task, level_of, start
from reef.harness.adapters import adapter
from reef.harness.tree import KINDS
from reef.recipes.harness import HarnessRecipe
from reef.recipes.registry import register_kind
from reef.records import RecordStore
from reef.train.loop import Prepare, Trainer
from reef.train.processors.base import DataProcessor

_GATE = GateSettings()


@dataclass(frozen=True, kw_only=True)
class EvolvingRecipe(HarnessRecipe):
    """What every recipe has that evolves a harness by trying it on tasks; a method binds a backend, a preparer and a gate."""

    tasks: Path | None = knob(None, "folder of tasks that proposals are compared on", env="REEF_TASKS")
    adapter: str = knob("minimal", "agent of the episodes: minimal, pi, claude, codex, opencode", env="REEF_ADAPTER")
    batch_size: int = knob(1, "failed reports per step", env="REEF_EVOLVE_BATCH_SIZE", gt=0)
    fail_below: float = knob(0.5, "a report with a score under this is a failed run")
    learn_from: str = knob("failed", "failed: only failed runs; all: every report", choices=("failed", "all"))
    kinds: str = knob("rules skill agent_command", "kinds of entries a proposal may change")
    mode: str = knob(
        "auto", "auto: the gate publishes; hybrid: only rules and skills; manual: a person does",
        choices=("auto", "hybrid", "manual"),
    )  # fmt: skip
    propose: str = knob("reef.evolve.propose:propose", "what makes a proposal: package.module:function")
    evaluate: str = knob("reef.evolve.evaluate:evaluate", "what scores a tree on a task: package.module:function")
    sandbox: str = knob("auto", "auto, bwrap (or no start) or none", choices=("auto", "bwrap", "none"))
    executor: str = knob("local", "where episodes run", choices=("local", "ray"))
    executor_address: str | None = knob(None, "address of the Ray cluster; none starts one here")
    parallel: int = knob(1, "pairs that run at the same time", gt=0)
    episode_calls: int = knob(50, "most model calls of an episode", gt=0)
    retries: int = knob(3, "how often a pair is run again that failed for another reason than the agent's", ge=0)
    retry_s: float = knob(5.0, "seconds before the first time, doubled each time", ge=0)
    outage_rounds: int = knob(
        5, "rounds of retries after which a pair ends its step that fails while the model answers others; "
        "0 for never", ge=0,
    )  # fmt: skip
    max_steps: int = knob(0, "most steps of a scenario, 0 for no limit", ge=0)
    max_calls: int = knob(0, "most model calls of a step, 0 for no limit", ge=0)
    max_minutes: float = knob(0.0, "most minutes of a step, 0 for no limit", ge=0)
    max_step_tokens: int = knob(0, "most tokens of a step, 0 for no limit", ge=0)
    max_cost: float = knob(0.0, "most a step may cost at the prices below, 0 for no limit", ge=0)
    price_in: float = knob(0.0, "price of a million prompt tokens", ge=0)
    price_out: float = knob(0.0, "price of a million answer tokens", ge=0)
    prompt_chars: int = knob(60_000, "most characters of failed runs that a proposer is shown", gt=0)
    grow_tasks: int = knob(0, "most drafts of tasks that are kept of what failed runs were asked, 0 for none", ge=0)
    model: str | None = knob(None, "model of proposals and episodes; none: the deployment's")
    takes_requests: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("reports", "tasks")
    processor: ClassVar[type[DataProcessor]] = EvolveProcessor
    """What makes batches of failed runs (EvolveBatch)."""
    backend: ClassVar[type[LocalTrainingBackend]] = LocalTrainingBackend
    prepare_step: ClassVar[Prepare] = staticmethod(prepare_evolve_step)

    def __post_init__(self) -> None:
        """Everything that can be wrong is wrong before the first report."""
        super().__post_init__()
        adapter(self.adapter)
        wants_bubblewrap(self.sandbox)
        self.allowed_kinds()
        for path in (self.propose, self.evaluate):
            if not callable(imported(path, "recipe", "recipe")):
                raise BadConfig(f"{path} is no function", hint="package.module:function")
        gate, tasks = self.gate_settings(), read_tasks(self._tasks_folder())
        if not gate.graded and (odd := [task.name for task in tasks if task.graded]):
            raise BadConfig(f"task {odd[0]} is graded, and the gate is not", hint="set reef.gate_graded: true")
        start(gate, [Task(task.name) for task in tasks], 0, level_of(gate.alpha, 1, 0))

    def gate_settings(self) -> GateSettings:
        """The rule that decides about a proposal."""
        return _GATE

    def build(self, scenario: str, records: RecordStore) -> Trainer:
        """A trainer whose steps are made by the recipe's backend."""
        if records.store.path is None:
            raise BadConfig(f"{self.name} needs a home on disk: episodes and trees lie there")
        home = records.store.path.parent
        executor: Executor = RayExecutor(self.executor_address) if self.executor == "ray" else LocalExecutor()
        machine = DaemonMachine(
            home, scenario, self.adapter, executor, sandbox=self.sandbox, calls=self.episode_calls, model=self.model
        )
        given = {"kinds", "gate"}
        same = {one.name: getattr(self, one.name) for one in fields(EvolveSettings) if one.name not in given}
        backend = self.backend(
            home,
            records.store,
            self.seed_tree(),
            settings=EvolveSettings(kinds=self.allowed_kinds(), gate=self.gate_settings(), **same),
            tasks=read_tasks(self._tasks_folder()),
            machine=machine,
            propose=imported(self.propose, "recipe", "recipe"),
            evaluate=imported(self.evaluate, "recipe", "recipe"),
            knobs={name: getattr(self, name) for name in self.knobs()},
        )
        return Trainer(
            scenario,
            records,
            runtime=backend,
            processor=self.processor,
            config={name: getattr(self, name) for name in self.knobs()},
            prepare=self.prepare_step,
            gate=_compared,
            recipe=self.name,
        )

    def _tasks_folder(self) -> Path:
        if self.tasks is None:
            raise BadConfig(
                f"recipe {self.name} needs tasks to compare proposals on",
                hint="name their folder: --reef.tasks FOLDER; see docs/harness.md",
                field="reef.tasks",
            )
        return self.tasks

    def allowed_kinds(self) -> frozenset[str]:
        """Kinds of entries that a proposal may change."""
        kinds = frozenset(self.kinds.replace(",", " ").split())
        if odd := sorted(kinds - set(KINDS)) or ([] if kinds else ["(none)"]):
            raise BadConfig(
                f"reef.kinds: {odd[0]!r} is no kind of entry", hint=f"kinds: {', '.join(KINDS)}", field="reef.kinds"
            )
        return kinds


@register_kind("evolve")
@dataclass(frozen=True, kw_only=True)
class EvolveRecipe(EvolvingRecipe):
    """Improve the harness of an agent from reports of failed runs, by comparing proposals on tasks."""

    gate: str = knob("paired-e", "rule: paired-e, wins or floor", choices=("paired-e", "wins", "floor"))
    gate_alpha: float = knob(_GATE.alpha, "share of published releases that may be no improvement", gt=0)
    gate_screen: int = knob(_GATE.screen, "pairs of the screen, which is no evidence", ge=0)
    gate_pairs: int = knob(_GATE.pairs, "most pairs of the test", gt=0)
    gate_graded: bool = knob(_GATE.graded, "scores may lie between 0 and 1")
    gate_margin: float = knob(_GATE.margin, "above 0: a proposal must only be not worse by more", ge=0)
    gate_saving: float = knob(_GATE.saving, "with gate_margin: share of the tokens that a proposal must save", ge=0)
    gate_repeats: int = knob(_GATE.repeats, "how often wins and floor run each task", gt=0)
    gate_floor: float = knob(0.5, "what floor asks for", ge=0)
    name: str = "evolve"
    summary: ClassVar[str] = "failed runs become better rules and skills, if they win"

    def gate_settings(self) -> GateSettings:
        """The gate that the knobs say."""
        given = {name.removeprefix("gate_"): getattr(self, name) for name in self.knobs() if name.startswith("gate_")}
        return GateSettings(rule=self.gate, **given)


def _compared(candidate: Candidate) -> Verdict:
    """The gate of a candidate that was compared while it was made."""
    assert candidate.verdict is not None
    return candidate.verdict
