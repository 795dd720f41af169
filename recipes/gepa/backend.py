"""A step of recipe gepa: one iteration of the search, on harness trees, with episodes and proposals as in recipe evolve.

The archive is algorithm state: it comes with the request and is committed with the step. What a killed step has asked and run is
in its journal, so that it goes on with the same parent, proposal and episodes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from reef import failpoints
from reef.core.artifacts import Decision, Verdict
from reef.errors import ReefError
from reef.evolve.backend import LocalTrainingBackend, costs, means
from reef.evolve.episode import Result
from reef.evolve.foreign import wait
from reef.evolve.journal import Journal
from reef.evolve.processor import prepare_evolve_step
from reef.evolve.values import Invalid, Outage, Proposal, Provoked, Refusal, Transcript
from reef.gate import GateSettings, Pair, Slot, Task, start
from reef.harness.tree import Delete, Edit, Entry, Put, Tree
from reef.releases import ReleaseChain
from reef.runtime import Blocked, Outcome, Skip, StepRequest
from reef.train.harness_runtime import read_tree
from reef.train.slime_runtime.reef_adapters.preparation import PreparedStep
from reef.train.types import TrainingBatch

from .engine import Given, Iteration, Search, Settings, Texts

log = logging.getLogger("reef.gepa")

GATE = GateSettings(rule="mean", graded=True)
"""What publishes: the mean over the validation set, strictly above that of what is served."""
BEGINS = ("rules", "skill", "agent_command")
"""The kind of the first entry of a tree that has none, the first of these that may be changed."""
_UNREAD = 32
"""Most reports that wait for a step that asks the proposer."""
_HELD_S = 3600.0


class Cut(ReefError):
    """A budget of the step is spent."""

    status, code = 409, "step_cut"


def prepare_gepa_step(batch: TrainingBatch, state: Mapping[str, Any]) -> PreparedStep:
    """As for evolve, with the archive, and with reports that earlier steps have shown nobody."""
    made = prepare_evolve_step(batch, state)
    runs = [*state.get("unread", ()), *made.payload["runs"]][-_UNREAD:]
    return replace(made, payload={**made.payload, "runs": runs, "archive": state.get("gepa")})


class GEPABackend(LocalTrainingBackend):
    """Serves trees, and makes steps of the search for one scenario."""

    def make(self, request: StepRequest, journal: Journal) -> Outcome:
        """One iteration; a child that is kept is published when it is better than what is served."""
        held = ReleaseChain(self.store).held(request.scenario)
        if held is not None and held.parent == request.parent.release_id:
            return Blocked(f"{held.release_id} waits for review: the archive goes on with it, or without it", _HELD_S)
        step = _Step(self, request, journal, read_tree(self.folder, request.parent.content_id))
        try:
            head = step.place_of_head()
            found = step.search.iterate(step, self._given(step, head))
        except (Cut, Provoked) as end:
            return step.skip("inconclusive", end.message)
        return self._ended(step, head, found)

    def _given(self, step: _Step, head: int) -> Given | None:
        """A finished change that was handed in: of what is served."""
        if "proposal" not in (step.request.payload.get("asked") or {}):
            return None
        proposal = step.journal.proposal() or self.new_proposal(step.request, step.head, step.journal)
        return Given(head, texts_of(self.admitted(step.head, proposal)))

    def _ended(self, step: _Step, head: int, found: Iteration) -> Outcome:
        count, parents = len(found.sample), " and ".join(f"program {one}" for one in found.parents)
        if found.end == "perfect":
            return step.skip(
                "perfect", f"{parents} passed all {count} tasks of the minibatch: there is nothing to mend"
            )
        *before, after = found.sums
        sums = f"{after:g} of {count} against {' and '.join(f'{one:g}' for one in before)} of {parents}"
        if found.kept is None:
            return step.skip("rejected", f"{'a merge' if found.merged else 'the child'} has {sums}", found)
        made = tree_of(step.search.programs[found.kept].texts)
        change = Proposal(tuple(edits_between(step.head, made)), self._why(step, found))
        if found.merged:
            step.journal.keep_proposal(
                change.as_dict(), step.head.content_id, "merge", {"parents": list(found.parents)}, None
            )
        verdict = step.verdict(head, found)
        if verdict.decision is not Decision.ACCEPT:
            said = f"program {found.kept} ({sums}) is in the archive and not published: {verdict.reason}"
            return step.skip("kept", said, found, verdict)
        verdict = self.held(verdict, change)
        metrics = step.metrics(found, verdict)
        return self.candidate(step.request, step.journal, made, verdict, metrics, step.state())

    def _why(self, step: _Step, found: Iteration) -> str:
        if found.merged:
            return "merges " + " and ".join(f"program {one}" for one in found.parents)
        proposal = step.journal.proposal()
        return proposal.why if proposal is not None else ""

    def measured(self, step: _Step, slot: Slot, side: str, tree: Tree) -> Result:
        """One episode that says something of the tree, tried again while it does not; raises Outage, Provoked or Invalid.

        A tree that breaks the agent twice fails the task, if what is served does not break it as well.
        """
        go_on, last, away = step.request.go_on, "", False
        for attempt in range(self.settings.retries + 1):
            wait(self.settings.retry_s * 2 ** (attempt - 1) if attempt else 0.0, go_on)
            result = self.side(step.journal, slot, side, tree, go_on)
            if result.score is not None:
                return result
            last = result.trouble or ""
            away |= not result.calls
            if result.broken and side == "incumbent":
                raise Invalid(f"task {slot.task}: {last}")
            if result.broken and attempt >= min(self.settings.retries, 1):
                other = self.side(
                    step.journal, replace(slot, number=slot.number + step.slots_end), "incumbent", step.head, go_on
                )
                if other.broken:
                    raise Invalid(f"task {slot.task}: {other.trouble}")
                if other.score is not None:
                    return Result(0.0, said=last)
        if not away and go_on():  # each time the agent reached the model's server, and that failed
            self.bound(step.journal, slot, last)
        raise Outage(f"task {slot.task} could not be run {self.settings.retries + 1} times: {last}")


class _Step:
    """One step as the search sees it: its World."""

    def __init__(self, backend: GEPABackend, request: StepRequest, journal: Journal, head: Tree) -> None:
        self.backend, self.request, self.journal, self.head = backend, request, journal, head
        self.reflected = False
        knobs, tasks = backend.knobs, list(backend.tasks.values())
        names = [task.name for task in tasks]
        settings = Settings(knobs["minibatch"], knobs["merges"], knobs["merge_overlap"])
        kept = request.payload["archive"]
        if kept is not None and kept["ground"] == backend.ground:
            self.search = Search.of(kept, settings)
        else:
            if kept is not None:
                log.warning(
                    "%s: tasks, agent or model are others than before: its archive begins anew", request.scenario
                )
            self.search = Search(names, names, settings, random.Random(knobs["random_seed"]))
        seed = hashlib.sha256(f"{knobs['random_seed']}/{request.scenario}/{backend.ground}".encode()).hexdigest()
        self._seed = int(seed[:8], 16)
        self._rule = start(GATE, [Task(task.name, task.protected) for task in tasks], self._seed)
        self._slots = {slot.task: slot for slot in self._rule.slots(len(tasks))}
        self.slots_end = len(tasks) + settings.minibatch
        """More than the number of any slot."""
        self._began, self._spent_s, self._run = time.monotonic(), journal.spent().seconds, 0

    def place_of_head(self) -> int:
        """Where what is served stands in the archive; a tree that is not there yet (the seed, a person's) is validated first."""
        texts = texts_of(self.head)
        for at, program in enumerate(self.search.programs):
            if program.texts == texts:
                return at
        return self.search.add(texts, (), self.validate(texts, self.search.valid))

    # -- the World

    def components(self, texts: Texts) -> Sequence[str]:
        """The entries of the kinds that may be changed; of a tree without any the first that there will be."""
        allowed = self.backend.settings.kinds
        found = [name for name in sorted(texts) if name.partition("/")[0] in allowed]
        return found or [f"{next(kind for kind in BEGINS if kind in allowed)}/learned"]

    def practise(self, texts: Texts, tasks: Sequence[str], *, child: bool) -> Sequence[float]:
        """Each place of the minibatch has a seed of its own, the same for parent and child."""
        return self._scores("practising", tree_of(texts), self._practice(tasks), "candidate" if child else "incumbent")

    def validate(self, texts: Texts, tasks: Sequence[str]) -> Sequence[float]:
        """Each task has one seed, the same for all programs: a tree is run on it once."""
        tree, names = tree_of(texts), list(dict.fromkeys(tasks))
        side = "incumbent" if tree == self.head else "candidate"
        found = self._scores("validating", tree, [self._slots[name] for name in names], side)
        scores = dict(zip(names, found, strict=True))
        return [scores[task] for task in tasks]

    def reflect(self, texts: Texts, component: str, tasks: Sequence[str], scores: Sequence[float]) -> Texts | None:
        """Ask the proposer for a new text of ``component``; raises Refusal for one that may not be."""
        backend, tree = self.backend, tree_of(texts)
        kind, name = _key(component)
        backend.doing = {**backend.doing, "phase": "proposing"}
        proposal = self.journal.proposal()
        if proposal is None:
            chars = backend.settings.prompt_chars
            reports = backend.machine.transcripts(self.request.payload["runs"], chars // 2)
            tried = self._tried(tree, tasks, scores, chars - chars // 2)
            proposal = backend.proposed(self.request, self.journal, tree, reports, tried=tried, target=(kind, name))
        if "REEF_FAILPOINT" in os.environ:
            failpoints.hit("evolve-proposed")
        touched = [one.entry if isinstance(one, Put) else one for one in proposal.edits]
        if odd := [f"{one.kind}/{one.name}" for one in touched if (one.kind, one.name) != (kind, name)]:
            raise Refusal(f"the proposal changes {odd[0]}, and it was {component}'s turn")
        if any(isinstance(one, Delete) for one in proposal.edits):
            raise Refusal(f"the proposal deletes {component}: a component is rewritten")
        made = backend.admitted(tree, proposal)
        self.reflected = True
        return texts_of(made)

    # -- how it ends

    def verdict(self, head: int, found: Iteration) -> Verdict:
        """By the gate's rule, from the scores on the validation set of the child and of what is served."""
        assert found.kept is not None
        child, served = self.search.programs[found.kept], self.search.programs[head]
        for slot in self._slots.values():
            self._rule.add(Pair(slot, child.scores[slot.task], served.scores[slot.task]))
        verdict = self._rule.verdict
        assert verdict is not None
        about = {"program": found.kept, "parents": found.parents, "sample": found.sample, "sums": found.sums,
                 "merged": found.merged, "archive": len(self.search.programs)}  # fmt: skip
        return replace(verdict, evidence={**verdict.evidence, "gepa": json.loads(json.dumps(about))})

    def skip(self, word: str, said: str, found: Iteration | None = None, verdict: Verdict | None = None) -> Skip:
        """The step ends without a release, and the archive goes on."""
        self.journal.judged(word, said)
        return Skip(f"{word}: {said}", self.metrics(found, verdict), self.state())

    def state(self) -> dict[str, Any]:
        """The algorithm state that the step leads to."""
        unread = [] if self.reflected else self.request.payload["runs"]
        return {"gepa": {"ground": self.backend.ground, **self.search.as_dict()}, "unread": unread}

    def metrics(self, found: Iteration | None, verdict: Verdict | None) -> dict[str, float]:
        """Costs, sums of the minibatch, means of the validation, size of the archive."""
        made = {**costs(self.journal), "archive": float(len(self.search.programs))}
        if found is not None and found.sums:
            made |= {"sample_before": max(found.sums[:-1]), "sample_after": found.sums[-1]}
        if verdict is not None:
            made |= means(verdict)
        return made

    # -- inside

    def _practice(self, tasks: Sequence[str]) -> list[Slot]:
        number = self.search.number
        draws = [random.Random(f"{self._seed}/practice/{number}/{at}") for at in range(len(tasks))]
        return [
            Slot(len(self._slots) + at, "practice", task, draws[at].getrandbits(31), False)
            for at, task in enumerate(tasks)
        ]

    def _scores(self, phase: str, tree: Tree, slots: Sequence[Slot], side: str) -> list[float]:
        backend, found = self.backend, list[float]()
        parallel = backend.settings.parallel
        with ThreadPoolExecutor(parallel, thread_name_prefix="reef-episode") as pool:
            while todo := slots[len(found) : len(found) + parallel]:
                backend.doing = {**backend.doing, "phase": phase, "episodes": self._run}
                seconds = self._spent_s + time.monotonic() - self._began
                if (why := backend.over(self.journal, seconds)) is not None:
                    raise Cut(f"cut short after {self._run} episodes: {why}")
                found += pool.map(partial(self._score, tree, side), todo)
                self._run += len(todo)
        return found

    def _score(self, tree: Tree, side: str, slot: Slot) -> float:
        """The same tree, task and seed is the same episode, of whichever step."""
        known = self.journal.same(tree.content_id, slot.task, slot.seed)
        if known is None:
            result = self.backend.measured(self, slot, side, tree)
            self.journal.keep_side(slot, side, tree.content_id, result)
            if "REEF_FAILPOINT" in os.environ:
                failpoints.hit("evolve-episode")
        else:
            result = known[1]
        assert result.score is not None
        return result.score

    def _tried(self, tree: Tree, tasks: Sequence[str], scores: Sequence[float], chars: int) -> list[Transcript]:
        """What the episodes of the minibatch said: the check's output, and the agent's conversation where there was one."""
        found: list[Transcript] = []
        for slot, score in zip(self._practice(tasks), scores, strict=True):
            known = self.journal.same(tree.content_id, slot.task, slot.seed)
            assert known is not None
            episode, result = known
            name, share = f"task {slot.task}", chars // len(tasks)
            if calls := self.journal.calls(episode):
                run = {"report_id": name, "score": score, "feedback": result.said, "references": calls}
                found += self.backend.machine.transcripts([run], share)
            else:
                found.append(Transcript(name, score, result.said[:share], "(it made no model call)"))
        return found


def texts_of(tree: Tree) -> Texts:
    """A tree as the search sees it: ``kind/name`` to text."""
    return {f"{one.kind}/{one.name}": one.text for one in tree}


def tree_of(texts: Texts) -> Tree:
    """The tree that ``texts_of`` was asked for."""
    return Tree.of(Entry(*_key(name), text) for name, text in texts.items())


def edits_between(old: Tree, new: Tree) -> list[Edit]:
    """What makes ``new`` of ``old``."""
    before, after = texts_of(old), texts_of(new)
    gone = [Delete(*_key(name)) for name in before if name not in after]
    return [*(Put(one) for one in new if before.get(f"{one.kind}/{one.name}") != one.text), *gone]


def _key(component: str) -> tuple[str, str]:
    kind, _, name = component.partition("/")
    return kind, name
