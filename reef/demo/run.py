"""The demo: a daemon in its own home, calls and reports over HTTP as any client makes them, steps, releases, a result.

Knows only the client and the launcher. Called by ``reef demo`` and benchmarks/learning.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from reef.client import ReefClient, content_text
from reef.demo.workload import BEHAVIOURS, Behaviour, Task
from reef.errors import Conflict, NotFound, Unavailable
from reef.launch import running, spawn, wait_ready

SCENARIO = "demo"
GROUPS, GROUP_SIZE = 4, 8
LEARNING_RATE = 6e-4
STEPS = 14
EVALUATIONS = 120
IN_FLIGHT = 16
_TRIES = 8
GOOD_ENOUGH = 0.97
"""Two batches in a row at this mean score have nothing more to teach."""
STEP_TIMEOUT_S, START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 180.0, 60.0
BARS = "▁▂▃▄▅▆▇█"

Score = Callable[[Task, str], float]


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean score of ``n`` sampled answers with its 95% Wilson interval (conservative for scores between 0 and 1)."""

    score: float
    n: int
    low: float
    high: float


def measured(scores: Sequence[float]) -> Measured:
    """Mean and interval of scores in [0, 1]."""
    n, mean, z = len(scores), sum(scores) / len(scores), 1.96
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Measured(mean, n, max(0.0, centre - half), min(1.0, centre + half))


class Demo:
    """One run. ``rescore`` may replace a batch's scores before they are reported (the benchmark's null control)."""

    def __init__(
        self,
        behaviour: str,
        model: Path,
        home: Path | None,
        *,
        steps: int | None = None,
        seed: int = 0,
        as_json: bool = False,
        rescore: Callable[[list[float], random.Random], list[float]] = lambda scores, _: scores,
    ) -> None:
        if behaviour not in BEHAVIOURS:
            raise NotFound(f"no behaviour {behaviour!r}", hint=f"choose one of: {', '.join(BEHAVIOURS)}")
        self.behaviour: Behaviour = BEHAVIOURS[behaviour]
        self.model, self.home, self.seed = model, home, seed
        self.steps = STEPS if steps is None else steps
        self._rescore = rescore
        self._random = random.Random(seed)
        self._say = Console(stderr=as_json, highlight=False)
        self._samples = 0

    def run(self) -> dict[str, Any]:
        """Everything, from an empty home to the result document."""
        started = time.monotonic()
        with self._home() as home, self._daemon(home) as client, ThreadPoolExecutor(IN_FLIGHT) as pool:
            self._say.print(Text(f"Teaching: {self.behaviour.title}. {self.behaviour.description}"))
            base = self._evaluate(client, pool, "before: held-out tasks")
            curve = self._train(client, pool)
            final = self._evaluate(client, pool, "after: held-out tasks")
            chain = client.releases(SCENARIO)
            examples = self._examples(client)
        result = {
            "behaviour": self.behaviour.name,
            "seed": self.seed,
            "base": asdict(base),
            "final": asdict(final),
            "seconds": round(time.monotonic() - started, 1),
            "releases": sum(row["state"] != "rejected" for row in chain),
            "steps": len(curve),
            "train_scores": [round(score, 4) for score in curve],
        }
        self._show(result, base, final, curve, chain, examples, home)
        return result

    # -- parts

    @contextlib.contextmanager
    def _home(self) -> Iterator[Path]:
        if self.home is not None:
            yield self.home
            return
        with tempfile.TemporaryDirectory(prefix="reef-demo-") as folder:
            yield Path(folder)

    @contextlib.contextmanager
    def _daemon(self, home: Path) -> Iterator[ReefClient]:
        settings = {
            "reef.port": "0",
            "reef.recipe": "grpo",
            "reef.batch_size": str(GROUPS * GROUP_SIZE),
            "reef.group_size": str(GROUP_SIZE),
            "reef.model_path": str(self.model),
            "training.learning_rate": str(LEARNING_RATE),
            "training.slots": str(IN_FLIGHT),
            # Asking and training take turns here, so a step may have every core.
            "training.train_threads": str(os.cpu_count() or 1),
            "training.seed": str(self.seed),
        }
        if running(home) is not None:
            raise Conflict(
                f"a daemon uses {home} already", hint="stop it with: reef down, or give the demo another --home"
            )
        child = spawn(home, settings)
        try:
            with self._bar("starting a daemon with the model", 1) as tick:
                wait_ready(child, home, START_TIMEOUT_S)
                tick()
            with ReefClient.from_home(home, scenario=SCENARIO, actor="demo") as client:
                yield client
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait(STOP_TIMEOUT_S)

    def _ask(self, client: ReefClient, task: Task, seed: int) -> tuple[str, str]:
        """One sampled answer with something in it (an empty one never trains); returns its text and its receipt."""
        for again in range(_TRIES):
            body = {
                "model": self.model.name,
                "messages": self.behaviour.messages(task),
                "max_tokens": self.behaviour.max_tokens,
                "temperature": 1.0,
                "seed": seed + again * 1_000_000_007,
            }
            response = client.call(body)
            if text := content_text(response.json()):
                return text, response.headers["x-reef-agent-record-id"]
        raise Conflict(f"the model has answered nothing {_TRIES} times", hint="run it again with another --seed")

    def _many(
        self, client: ReefClient, pool: ThreadPoolExecutor, tasks: Sequence[Task], tick: Callable[[], None]
    ) -> list[tuple[Task, str, str]]:
        """Answers to ``tasks``, several at once, in the order of the tasks."""
        seeds = range(self._samples, self._samples + len(tasks))
        self._samples += len(tasks)

        def one(task: Task, seed: int) -> tuple[Task, str, str]:
            text, receipt = self._ask(client, task, self.seed * 1_000_003 + seed)
            tick()
            return task, text, receipt

        return list(pool.map(one, tasks, seeds))

    def _evaluate(self, client: ReefClient, pool: ThreadPoolExecutor, title: str) -> Measured:
        """Held-out tasks in turn until there are enough samples; nothing is reported, so nothing of this trains."""
        tasks = self.behaviour.held_out
        wanted = [tasks[index % len(tasks)] for index in range(max(EVALUATIONS, len(tasks)))]
        with self._bar(title, len(wanted)) as tick:
            answers = self._many(client, pool, wanted, tick)
        return measured([self.behaviour.check(task, text) for task, text, _ in answers])

    def _train(self, client: ReefClient, pool: ThreadPoolExecutor) -> list[float]:
        """Steps until they are used up or the answers are good; returns each batch's mean score."""
        curve: list[float] = []
        order: list[Task] = []
        with self._bar("learning from scored use", self.steps * GROUPS * GROUP_SIZE) as tick:
            while len(curve) < self.steps:
                if len(order) < GROUPS:
                    order += self._random.sample(self.behaviour.train, len(self.behaviour.train))
                tasks = [order.pop(0) for _ in range(GROUPS)]
                before = client.get(f"/reef/scenarios/{SCENARIO}")["step"]
                answers = self._many(client, pool, [task for task in tasks for _ in range(GROUP_SIZE)], tick)
                scores = [self.behaviour.check(task, text) for task, text, _ in answers]
                reported = self._rescore(scores, self._random)
                for (_, _, receipt), score in zip(answers, reported, strict=True):
                    client.report(score=score, references=[receipt])
                self._step_done(client, before)
                curve.append(sum(scores) / len(scores))
                if len(curve) > 1 and min(curve[-2:]) >= GOOD_ENOUGH:
                    break
        return curve

    def _step_done(self, client: ReefClient, before: int) -> None:
        """Wait until the step of the batch just reported is committed (made, skipped or refused)."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while True:
            found = client.get(f"/reef/scenarios/{SCENARIO}")
            if found["step"] > before:
                return
            if found["state"] == "failed" or time.monotonic() > deadline:
                raise Unavailable(
                    f"the training step did not end: {found['state']} {found['detail']}", hint="see: reef logs"
                )
            time.sleep(0.1)

    def _examples(self, client: ReefClient) -> list[tuple[str, str]]:
        found = []
        for task in self.behaviour.held_out[:3]:
            text, _ = self._ask(client, task, 7)
            found.append((task.prompt, text))
        return found

    # -- showing

    @contextlib.contextmanager
    def _bar(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        columns = (TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task(title, total=total)
            yield lambda: progress.advance(task)
        if not console.is_terminal:
            sys.stderr.write(f"{title}: done\n")

    def _show(
        self,
        result: Mapping[str, Any],
        base: Measured,
        final: Measured,
        curve: Sequence[float],
        chain: Sequence[Mapping[str, Any]],
        examples: Sequence[tuple[str, str]],
        home: Path,
    ) -> None:
        table = Table(box=None, pad_edge=False)
        for column in ("held-out tasks", "score", "95% interval", "samples"):
            table.add_column(column)
        serving = next((row["release_id"] for row in chain if row["state"] == "serving"), "the last release")
        for name, one in (("r0, the base model", base), (f"{serving}, after {result['steps']} steps", final)):
            table.add_row(name, f"{one.score:.2f}", f"{one.low:.2f} to {one.high:.2f}", str(one.n))
        say = self._say.print
        say()
        say(table)
        say(Text(f"\ntraining score by step  {sparkline(curve)}  {curve[0]:.2f} -> {curve[-1]:.2f}"))
        say(Text("chain  " + " -> ".join(row["release_id"] for row in reversed(chain) if row["state"] != "rejected")))
        for prompt, text in examples:
            say(Text(f"  {prompt}\n    {json.dumps(text, ensure_ascii=False)}", style="dim"))
        say(Text(f"\n{result['seconds']:.0f} s. Next: reef up, then reef call and reef report with your own prompts;"))
        say(Text("or your own recipe: docs/write-a-recipe.md" + (f"; state kept in {home}" if self.home else "")))


def sparkline(values: Sequence[float]) -> str:
    """Scores in [0, 1] as one character each."""
    return "".join(BARS[min(len(BARS) - 1, int(max(0.0, value) * len(BARS)))] for value in values)
