"""LocalTrainingBackend: a step of evolution. Failed runs become a proposal, episodes compare it, the gate decides.

A TrainingRuntime for the harness surface. Everything a step has done is in its journal before the next thing begins, so that a
killed daemon goes on with the same proposal and the same pairs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from reef import failpoints
from reef.core.artifacts import Candidate, Decision, Verdict
from reef.errors import ReefError, Unavailable
from reef.evolve import evaluate as default
from reef.evolve.drafts import FOLDER as DRAFTS
from reef.evolve.drafts import draft, drafts
from reef.evolve.episode import Result, Spec
from reef.evolve.evaluate import Evaluate, Trial, result_of
from reef.evolve.foreign import leaving, wait
from reef.evolve.journal import Journal
from reef.evolve.screens import admit, hidden, shared_names, without_credentials
from reef.evolve.settings import EvolveSettings
from reef.evolve.tasks import TaskFolder
from reef.evolve.values import (
    Invalid,
    Outage,
    Proposal,
    Propose,
    ProposeContext,
    Provoked,
    Refusal,
    Transcript,
    proposal_of,
)
from reef.gate import Pair, Rule, Slot, Task, level_of, share_of_budget, start
from reef.harness.tree import Tree
from reef.runtime import Blocked, Outcome, Prepared, Refused, Stale, StepRequest
from reef.store import Store
from reef.train.harness_runtime import HarnessRuntime, keep_tree, read_tree

log = logging.getLogger("reef.evolve")

_SIDES = ("candidate", "incumbent")
_AWAY_S = 60.0
_TEXT_KINDS = frozenset({"rules", "skill"})
_INTERRUPTED = Stale("interrupted: the step goes on later, from where it is")
_KEPT_STEPS = 10
"""Steps of this home whose episodes' folders are kept: up to a gigabyte each."""


class Machine(Protocol):
    """What steps use of where they run: the daemon, the agent's program, the executor."""

    def spec(self, episode: str, tree: Tree, task: TaskFolder, seed: int) -> Spec:
        """An episode of ``tree`` on ``task``; raises ReefError when the agent's program cannot be had."""

    def preflight(self, go_on: Callable[[], bool]) -> None:
        """Raise ReefError, in the program's own words, when the agent cannot start here."""

    def unboxed(self) -> str | None:
        """Why episodes run without a sandbox, None when they are in one."""

    def untouched(self, task: TaskFolder, go_on: Callable[[], bool]) -> Result:
        """What the task's check says when nobody has done anything; no score when ``go_on`` says no."""

    def run(self, spec: Spec, go_on: Callable[[], bool]) -> Result:
        """Run it to its end, or until ``go_on`` says no."""

    def ask(self, session: str, system: str, prompt: str) -> str:
        """The answer of the deployment's model; raises Outage when it cannot be had."""

    def transcripts(self, runs: Sequence[Mapping[str, Any]], limit: int) -> list[Transcript]:
        """Failed runs as a proposer sees them, ``limit`` characters in all."""

    def prompt(self, run: Mapping[str, Any]) -> str:
        """What the user said first in a failed run, empty when that is not kept."""


class LocalTrainingBackend(HarnessRuntime):
    """Serves trees as HarnessRuntime does, and makes steps for one scenario.

    A method of its own overrides ``make`` and builds it from the other methods and attributes without an underscore:
    ``proposed`` and ``admitted``, ``side`` with ``bound`` and ``over``, ``held`` and ``candidate``.
    """

    def __init__(
        self,
        home: Path,
        store: Store,
        seed: Tree,
        *,
        settings: EvolveSettings,
        tasks: Sequence[TaskFolder],
        machine: Machine,
        propose: Propose,
        evaluate: Evaluate,
        knobs: Mapping[str, Any],
    ) -> None:
        super().__init__(home, seed)
        self.folder, self.store, self.settings, self.machine = home, store, settings, machine
        self._propose, self._evaluate, self.knobs = propose, evaluate, knobs
        self.tasks = {task.name: task for task in tasks}
        self.texts = [text for task in tasks for text in task.texts()]
        what = [[task.name, task.graded, task.protected, task.timeout_s] for task in tasks], self.texts
        bound = [knobs[name] for name in ("adapter", "evaluate", "model")]
        self.ground = hashlib.sha256(json.dumps([what, bound]).encode()).hexdigest()[:16]
        """Tasks, agent, evaluation and model, hashed: results compare only where it is the same."""
        self.unboxed = machine.unboxed() if evaluate is default.evaluate else None
        """Why episodes run without a sandbox, None when they are in one or none is run."""
        if self.unboxed is not None:
            log.warning("episodes run without a sandbox: %s", self.unboxed)
        self._agent_starts = False
        self._given_away: dict[str, float] = {}
        self._testing = ""
        self._provoked: dict[int, int] = {}
        """Rounds in which a pair of the step in hand failed though the model answers, by its number."""
        self._budget: tuple[tuple[int, str | None, str], dict[str, Any]] = (-1, None, ""), {}
        self.doing: dict[str, Any] = {}
        """What the step in hand is at, for status."""
        self.mask: Callable[[str], str] = str
        """Hides the deployment's keys in a text; given by whoever knows them, when the scenario is opened."""

    def evolving(self, scenario: str, step: int, head: str | None) -> dict[str, Any]:
        """The step in hand, what tests have spent, how many drafts of tasks wait, and why there is no sandbox."""
        budget = self._error_budget(scenario, step, head)
        return {"error_budget": budget, "drafts": self._waiting_drafts(scenario), "unboxed": self.unboxed, **self.doing}

    def step(self, prepared: Prepared) -> Outcome:
        """Propose, screen, compare, judge. Idempotent by step id: what the journal has is not done again."""
        request, settings = prepared.request, self.settings
        journal = Journal(self.store, request.scenario, request.step_id, self.ground)
        if settings.max_steps and journal.steps() >= settings.max_steps:
            return Blocked(f"max_steps: {settings.max_steps} steps have been made", 3600.0)
        self.doing = {"phase": "proposing", "step_id": request.step_id}
        try:
            self._grow(request)
            self._check_agent(request.go_on)
            return self.make(request, journal)
        except Refusal as error:
            reason = hidden(error.message, self.mask)  # it may quote what was proposed
            journal.judged("refused", reason)
            return Refused(reason)
        except Invalid as error:
            return Blocked(f"invalid: {error.message}", _AWAY_S)
        except (Outage, Unavailable) as error:
            return Blocked(error.message, _AWAY_S) if request.go_on() else _INTERRUPTED
        finally:
            self.doing = {}

    def make(self, request: StepRequest, journal: Journal) -> Outcome:
        """The step itself; raises Refusal, Invalid or Outage for what ends it early."""
        incumbent = read_tree(self.folder, request.parent.content_id)
        rule = self._rule(request, journal)  # one that can publish nothing is refused before anything is spent
        proposal = journal.proposal() or self.new_proposal(request, incumbent, journal)
        if "REEF_FAILPOINT" in os.environ:
            failpoints.hit("evolve-proposed")
        made = self.admitted(incumbent, proposal)
        verdict = self.held(self._compared(request, journal, rule, (made, incumbent)), proposal)
        return self.candidate(request, journal, made, verdict, _metrics(verdict, journal))

    def candidate(
        self, request: StepRequest, journal: Journal, made: Tree, verdict: Verdict, metrics: Mapping[str, float],
        state: Mapping[str, Any] | None = None,
    ) -> Candidate:  # fmt: skip
        """``made``, durable, with what was found of it; ``state`` as in Candidate."""
        artifact = keep_tree(self.folder, made)
        journal.judged(_STATES[verdict.decision], verdict.reason)
        return Candidate(request.step_id, artifact, metrics, verdict=verdict, state=state or {})

    def admitted(self, tree: Tree, proposal: Proposal) -> Tree:
        """The tree that ``proposal`` makes of ``tree``; raises Refusal with the first reason against it."""
        return admit(tree, proposal, allowed=self.settings.kinds, tasks=self.texts)

    def settle(self, step_id: str, content_id: str | None) -> None:
        """What agents of older steps printed goes; scores stay in the journal."""
        self._provoked.clear()
        with contextlib.suppress(FileNotFoundError):  # another scenario's step may do the same just now
            found = [(one.stat().st_mtime, one) for one in (self.folder / "episodes").glob("*")]
            for _, old in sorted(found, reverse=True)[_KEPT_STEPS:]:
                shutil.rmtree(old, ignore_errors=True)

    # -- inside

    def _error_budget(self, scenario: str, step: int, head: str | None) -> dict[str, Any] | None:
        """What tests have spent of ``scenario``'s error budget (docs/gate.md), None for a rule that has none.

        ``step`` is how many steps are committed, ``head`` what is served: counted again only when one changes, or a test begins.
        """
        if self.settings.gate.rule != "paired-e":
            return None
        key = step, head, self._testing
        if self._budget[0] != key:
            tests, published = Journal(self.store, scenario, "").tested()
            alpha = self.settings.gate.alpha
            spent = {"alpha": alpha, "used": sum(map(share_of_budget, range(1, tests + 1)))}
            counted = {"tests": tests, "published": published, "next_level": level_of(alpha, tests + 1, published)}
            self._budget = key, {**spent, **counted}
        return self._budget[1]

    def _waiting_drafts(self, scenario: str) -> int:
        """How many tasks wait for a person to write their check."""
        return len(drafts(self._drafts(scenario))) if self.settings.grow_tasks else 0

    def _drafts(self, scenario: str) -> Path:
        return self.folder / DRAFTS / scenario

    def _grow(self, request: StepRequest) -> None:
        """Keep what failed runs were asked as drafts of tasks; nothing of a step depends on them."""
        for run in request.payload["runs"] if self.settings.grow_tasks else ():
            prompt = self.machine.prompt(run)
            try:
                found = draft(
                    self._drafts(request.scenario), prompt, run, most=self.settings.grow_tasks,
                    tasks=self.tasks.values(), mask=self.mask,
                )  # fmt: skip
            except OSError as error:
                found = str(error)
            said = f"a task is drafted and needs a check: {found}" if isinstance(found, Path) else f"no draft: {found}"
            log.info("report %s: %s", run["report_id"], said)

    def _check_agent(self, go_on: Callable[[], bool]) -> None:
        """Before anything is spent: an agent that cannot start here makes every step invalid. Asked until it could once.

        A task that scores when nothing is done says little about a harness, so it is named.
        """
        if self._agent_starts or self._evaluate is not default.evaluate:  # only that one is sure to need it
            return
        try:
            self.machine.preflight(go_on)
        except Outage:
            raise
        except ReefError as error:
            wait(0.0, go_on)
            raise Invalid(f"{error.message} ({error.hint})" if error.hint else error.message) from error
        for task in self.tasks.values():
            score = self.machine.untouched(task, go_on).score
            wait(0.0, go_on)
            if score:
                self._given_away[task.name] = score
                log.warning("task %s scores %g when nothing is done", task.name, score)
        self._agent_starts = True

    def new_proposal(self, request: StepRequest, incumbent: Tree, journal: Journal) -> Proposal:
        """A change of what is served: the one that was handed in, else the proposer's; kept in the journal."""
        asked: Mapping[str, Any] = request.payload.get("asked") or {}
        if "proposal" in asked:
            by = str(asked.get("by", "person"))
            return self._kept(journal, proposal_of(asked["proposal"]), request.parent.content_id, by, {})
        return self.proposed(
            request, journal, incumbent, self.machine.transcripts(request.payload["runs"], self.settings.prompt_chars)
        )

    def proposed(
        self, request: StepRequest, journal: Journal, tree: Tree, reports: Sequence[Transcript], *,
        tried: Sequence[Transcript] = (), target: tuple[str, str] | None = None,
    ) -> Proposal:  # fmt: skip
        """What the proposer makes of ``tree``, shown ``reports`` and what was ``tried`` on tasks; kept in the journal."""
        asked: Mapping[str, Any] = request.payload.get("asked") or {}
        seen: dict[str, Any] = {"reports": [run.report_id for run in reports], "request": asked.get("request")}
        began = time.monotonic()

        def ask(system: str, prompt: str) -> str:
            wait(0.0, request.go_on)
            if (why := self.over(journal, time.monotonic() - began)) is not None:
                raise Refusal(f"propose has used up the step's budget: {why}")
            return self.machine.ask(f"{request.step_id}-propose", system, prompt)

        context = ProposeContext(
            request.scenario,
            tree,
            [*reports, *tried],
            asked.get("request"),
            journal.rejected(),
            self.settings.kinds,
            ask,
            int(request.step_id[:8], 16),
            self.knobs,
            target,
        )
        try:
            proposal = leaving(lambda: proposal_of(self._propose(context)), request.go_on)
        except (Refusal, Outage, Unavailable):
            raise
        except BaseException as error:  # the edge to code that is not ours: its round is lost, also by sys.exit()
            log.exception("propose failed")
            said = error.message if isinstance(error, ReefError) else f"{type(error).__name__}: {error}"
            raise Refusal(f"propose failed: {said}") from error
        names: list[str] = []
        with contextlib.suppress(ReefError):  # edits that cannot be made are refused by the screens, in their words
            made = tree.edit(proposal.edits)
            names = shared_names(tree, made, self.texts, "\n".join(run.text for run in reports))
        origin = "request" if asked else "reports"
        return self._kept(journal, proposal, tree.content_id, origin, {**seen, "shared_with_tasks": names})

    def _kept(
        self, journal: Journal, proposal: Proposal, parent: str, origin: str, seen: Mapping[str, Any]
    ) -> Proposal:
        """The proposal as it is kept; a credential in it never reaches the disk, and raises Refusal when an edit has it."""
        clean, reason = without_credentials(proposal, self.mask)
        journal.keep_proposal(clean, parent, origin, seen, reason)
        if reason is not None:
            raise Refusal(reason)
        return replace(proposal, why=clean["why"])

    def _rule(self, request: StepRequest, journal: Journal) -> Rule:
        gate = self.settings.gate
        number, published = journal.tested()
        tasks = [Task(task.name, task.protected) for task in self.tasks.values()]
        return start(gate, tasks, int(request.step_id[:8], 16), level_of(gate.alpha, number + 1, published))

    def _compared(self, request: StepRequest, journal: Journal, rule: Rule, trees: tuple[Tree, Tree]) -> Verdict:
        """Run pairs of ``trees``, the candidate's first, until ``rule`` has a verdict."""
        settings = self.settings
        began, spent = time.monotonic(), journal.spent()
        self.doing = {**self.doing, "phase": "comparing", **self._estimate(journal)}
        log.info("%s: comparing, at most %d pairs", request.scenario, self.doing["pairs_at_most"])
        with ThreadPoolExecutor(settings.parallel, thread_name_prefix="reef-pair") as pool:
            while slots := rule.slots(settings.parallel):
                if slots[0].stage != "screen" and self._testing != request.step_id:
                    journal.testing()
                    self._testing = request.step_id
                if (why := self.over(journal, spent.seconds + time.monotonic() - began)) is not None:
                    rule.cut(why)
                    break
                run = partial(self._pair, journal, trees, request.go_on)
                try:
                    for pair in pool.map(run, slots):
                        if rule.verdict is None and rule.slots(1) == [pair.slot]:
                            rule.add(pair)
                            grown = {"trajectory": list(rule.trajectory), "level": rule.level}
                            self.doing = {
                                **self.doing, "phase": pair.slot.stage, "pairs": pair.slot.number + 1, **grown
                            }  # fmt: skip
                except Provoked as error:
                    rule.cut(error.message)
                    break
        assert rule.verdict is not None
        return rule.verdict

    def held(self, verdict: Verdict, proposal: Proposal) -> Verdict:
        """What the gate accepts and a person must see first, by kind and mode."""
        evidence = {**verdict.evidence, "given_away": self._given_away}
        mode = self.settings.mode
        asks = mode == "manual" or (mode == "hybrid" and not proposal.kinds <= _TEXT_KINDS)
        if verdict.decision is Decision.ACCEPT and (proposal.code or asks):
            why = proposal.code or f"mode {mode}"
            return Verdict(Decision.HOLD, verdict.rule, f"{verdict.reason}; held for a person: {why}", evidence)
        return Verdict(verdict.decision, verdict.rule, verdict.reason, evidence)

    def _pair(self, journal: Journal, trees: tuple[Tree, Tree], go_on: Callable[[], bool], slot: Slot) -> Pair:
        """Both sides, one right after the other, from the journal when they are there. What fails for another reason than
        the agent's is missing for both and run again."""
        if (known := journal.pair(slot)) is not None:
            return known
        sides = dict(zip(_SIDES, trees, strict=True))
        order = _SIDES if slot.candidate_first else _SIDES[::-1]
        last, away = "", False

        def run(side: str, *, fresh: bool = False) -> tuple[str, Result]:
            tree, known = sides[side], None
            if slot.stage == "screen" and side == "incumbent" and not fresh:
                known = journal.reusable(tree.content_id, slot.task, slot.number)
            return tree.content_id, known or self.side(journal, slot, side, tree, go_on)

        for attempt in range(self.settings.retries + 1):
            wait(self.settings.retry_s * 2 ** (attempt - 1) if attempt else 0.0, go_on)
            found = {side: run(side) for side in order}
            if found["candidate"][1].broken and found["incumbent"][1].reused:  # does what is served start here now?
                found["incumbent"] = run("incumbent", fresh=True)
            candidate, incumbent = (found[side][1] for side in _SIDES)
            if incumbent.broken:
                raise Invalid(f"task {slot.task}: {incumbent.trouble}")
            # What is served starts there: the change broke the agent, when it does so twice.
            if candidate.broken and incumbent.score is not None and attempt >= min(self.settings.retries, 1):
                found["candidate"] = (found["candidate"][0], Result(0.0, said=f"{candidate.trouble}"))
            if all(result.score is not None for _, result in found.values()):
                self._check_tokens(journal, candidate, incumbent)
                pair = journal.keep(slot, found)
                if "REEF_FAILPOINT" in os.environ:
                    failpoints.hit("evolve-pair")
                return pair
            last = candidate.trouble or incumbent.trouble or ""
            away |= any(one.score is None and not one.calls for one in (candidate, incumbent))
        if not away and go_on():  # each time an agent reached the model's server, and that failed
            self.bound(journal, slot, last)
        raise Outage(f"task {slot.task} could not be run {self.settings.retries + 1} times: {last}")

    def _check_tokens(self, journal: Journal, *sides: Result) -> None:
        """Where a saving is asked for, calls must say what they need."""
        if self.settings.gate.saving > 0 and any(one.tokens is None and not one.reused for one in sides):
            spent = journal.spent()
            if not spent.tokens_in + spent.tokens_out:
                raise Invalid("gate_saving needs the tokens of model calls, and no call of this step says them")

    def bound(self, journal: Journal, slot: Slot, last: str) -> None:
        """Count a round that failed though the model answers a plain question; raises Provoked when there were too many.

        An outage is waited for however long it takes: there the question fails too.
        """
        try:
            self.machine.ask(f"{journal.step_id}-asked", "Answer with one word.", "Are you there?")
        except Outage:
            return
        rounds = self._provoked[slot.number] = self._provoked.get(slot.number, 0) + 1
        if 0 < self.settings.outage_rounds <= rounds:
            runs = rounds * (self.settings.retries + 1)
            raise Provoked(f"task {slot.task} failed {runs} times while the model answers others: {last}")

    def side(self, journal: Journal, slot: Slot, side: str, tree: Tree, go_on: Callable[[], bool]) -> Result:
        """One side of a slot, run now; trouble is a result."""
        task = self.tasks[slot.task]
        name = f"{journal.step_id}-{slot.number}-{side}"

        def episode() -> Result:
            wait(0.0, go_on)
            try:
                return self.machine.run(self.machine.spec(name, tree, task, slot.seed), go_on)
            except (ReefError, OSError) as error:  # before the agent has begun, nothing is its doing or the tree's
                raise Outage(error.message if isinstance(error, ReefError) else str(error)) from error

        began = time.time()  # as records say it: a pair that is run again counts its last calls alone
        trial = Trial(tree, task, slot.seed, side, episode)
        result = leaving(lambda: result_of(self._evaluate, trial), go_on)
        if result.score not in (None, 0.0, 1.0) and not self.settings.gate.graded:
            raise Invalid(f"task {slot.task} scores {result.score:g}, and without gate_graded a score is 0 or 1")
        if result.score is None or result.tokens is not None:
            return result
        return replace(result, tokens=journal.tokens(name, began))

    def over(self, journal: Journal, seconds: float) -> str | None:
        """Which of the step's budgets is spent after ``seconds`` of it, in words."""
        return self.settings.over(journal.spent(), seconds)

    def _estimate(self, journal: Journal) -> dict[str, Any]:
        """What the step can cost at most: pairs, and from earlier episodes minutes and model calls."""
        gate, typical = self.settings.gate, journal.typical()
        pairs = gate.screen + gate.pairs if gate.rule == "paired-e" else gate.repeats * len(self.tasks)
        found: dict[str, Any] = {"pairs": 0, "pairs_at_most": pairs}
        if typical is not None:
            seconds, calls = typical
            found["minutes_at_most"] = round(2 * pairs * seconds / 60 / self.settings.parallel, 3)
            found["model_calls_at_most"] = round(2 * pairs * calls)
        return found


_STATES = {
    Decision.ACCEPT: "published",
    Decision.HOLD: "held",
    Decision.REJECT: "rejected",
    Decision.INCONCLUSIVE: "inconclusive",
}


def costs(journal: Journal) -> dict[str, float]:
    """What a step has used so far, as metrics."""
    spent = journal.spent()
    return {"episodes": float(spent.episodes), "model_calls": float(spent.calls),
            "tokens": float(spent.tokens_in + spent.tokens_out), "episode_seconds": round(spent.seconds, 1)}  # fmt: skip


def means(verdict: Verdict) -> dict[str, float]:
    """The mean score of both sides over the pairs of a verdict, as metrics; none without a pair."""
    pairs = verdict.evidence["pairs"]
    scores = {"candidate_mean": [pair[5] for pair in pairs], "incumbent_mean": [pair[6] for pair in pairs]}
    return {name: sum(found) / len(found) for name, found in scores.items() if found}


def _metrics(verdict: Verdict, journal: Journal) -> dict[str, float]:
    pairs = float(len(verdict.evidence["pairs"]))
    tokens = {f"{side}_tokens": mean for side, mean in journal.tokens_of_sides().items()}
    return {"pairs": pairs, **costs(journal), **means(verdict), **tokens}
