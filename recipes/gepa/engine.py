"""The search of GEPA (arXiv 2507.19457): an archive of programs, whose turn it is, what is kept. Pure; knows nothing of Reef.

A program is a mapping of component names to texts. ``Search.iterate`` makes one iteration in a World, which runs programs and
writes texts; ``as_dict`` and ``Search.of`` are its state as JSON. Every draw comes from one generator, in the order of package
gepa 0.1.4, so that the same seed makes the same decisions (tests/recipes/test_gepa_engine.py runs both).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Texts = Mapping[str, str]
_PERFECT = 1.0
_TRIES = 10
"""How often a pair of programs to merge is looked for, and a pair with an ancestor in each of these."""
_SUBSAMPLE = 5


@dataclass(slots=True)
class Program:
    """A member of the archive: its texts, where it comes from, its score on each task of the validation, whose turn is next."""

    texts: Texts
    parents: tuple[int, ...]
    scores: Mapping[str, float]
    turn: int = 0

    @property
    def mean(self) -> float:
        """Over the whole validation set."""
        return sum(self.scores.values()) / len(self.scores)


@dataclass(frozen=True, slots=True)
class Settings:
    """``minibatch`` tasks a reflection; ``merges`` at most, 0 for none, of programs that share ``overlap`` validation tasks."""

    minibatch: int = 3
    merges: int = 0
    overlap: int = 5


@dataclass(frozen=True, slots=True)
class Given:
    """A child that somebody made by hand, of the program at ``parent``: it is compared and kept as any other."""

    parent: int
    texts: Texts


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one iteration came to. ``end``: ``perfect`` (nothing to learn), ``nothing`` (no new text), ``worse`` or ``kept``.

    ``sums`` are those of the parents, then the child's, on ``sample`` (the minibatch, or a merge's subsample); ``kept`` is the
    child's place.
    """

    end: str
    parents: tuple[int, ...]
    sample: tuple[str, ...]
    sums: tuple[float, ...] = ()
    kept: int | None = None
    merged: bool = False


class World(Protocol):
    """What a search needs of where it runs."""

    def components(self, texts: Texts) -> Sequence[str]:
        """The components of a program that may be rewritten, at least one; a name that it has no text for can be begun."""

    def practise(self, texts: Texts, tasks: Sequence[str], *, child: bool) -> Sequence[float]:
        """Scores of a program on a minibatch."""

    def validate(self, texts: Texts, tasks: Sequence[str]) -> Sequence[float]:
        """Scores of a program on tasks of the validation set."""

    def reflect(self, texts: Texts, component: str, tasks: Sequence[str], scores: Sequence[float]) -> Texts | None:
        """The program with ``component`` rewritten after what it did on ``tasks``; None for no new text."""


@dataclass(slots=True)
class Search:
    """Archive, generator and cursors. ``train`` and ``valid`` are names of tasks, in order."""

    train: Sequence[str]
    valid: Sequence[str]
    settings: Settings
    rng: random.Random
    programs: list[Program] = field(default_factory=list)
    number: int = -1
    epoch: int = -1
    shuffled: list[str] = field(default_factory=list)
    merges_due: int = 0
    merges_made: int = 0
    found_new: bool = False
    merged: list[tuple[int, int, int]] = field(default_factory=list)
    mixed: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)

    def add(self, texts: Texts, parents: tuple[int, ...], scores: Sequence[float]) -> int:
        """Take a validated program into the archive; returns its place."""
        turn = max((self.programs[one].turn for one in parents), default=0)
        self.programs.append(Program(dict(texts), parents, dict(zip(self.valid, scores, strict=True)), turn))
        return len(self.programs) - 1

    def iterate(self, world: World, given: Given | None = None) -> Iteration:
        """One iteration: a merge where one is due and possible, else a reflection on a minibatch."""
        self.number += 1
        if given is None and self.found_new:
            self.found_new = False
            if self.merges_due > 0 and (pair := self._merge()) is not None:
                return self._try_merge(world, *pair)
        parent = self._parent() if given is None else given.parent
        program, tasks = self.programs[parent], self._minibatch()
        before = world.practise(program.texts, tasks, child=False)
        if all(score >= _PERFECT for score in before):
            return Iteration("perfect", (parent,), tuple(tasks), (sum(before),))
        texts: Texts | None
        if given is None:
            names = world.components(program.texts)
            component = names[program.turn % len(names)]
            program.turn = (program.turn + 1) % len(names)
            texts = world.reflect(program.texts, component, tasks, before)
        else:
            texts = given.texts
        if texts is None:
            return Iteration("nothing", (parent,), tuple(tasks), (sum(before),))
        after = world.practise(texts, tasks, child=True)
        sums = sum(before), sum(after)
        if sums[1] <= sums[0]:
            return Iteration("worse", (parent,), tuple(tasks), sums)
        kept = self.add(texts, (parent,), world.validate(texts, self.valid))
        self.found_new = True
        if self.merges_made < self.settings.merges:
            self.merges_due += 1
        return Iteration("kept", (parent,), tuple(tasks), sums, kept)

    # -- whose turn it is

    def fronts(self) -> dict[str, set[int]]:
        """The programs that no other beats on a task, for each task of the validation.

        Sets, built in the order in which the programs came: drawing goes through them in their own order, as the package's does.
        """
        best: dict[str, float] = {}
        found: dict[str, set[int]] = {}
        for at, program in enumerate(self.programs):
            for task, score in program.scores.items():
                if score > best.get(task, -math.inf):
                    best[task], found[task] = score, {at}
                elif score == best[task]:
                    found[task].add(at)
        return {task: set(front) for task, front in found.items()}

    def undominated(self) -> dict[str, set[int]]:
        """The fronts without programs of which each front has another: the lowest means are the first to go."""
        fronts = self.fronts()
        left = sorted(dict.fromkeys(one for front in fronts.values() for one in front), key=self._mean)
        while (gone := next((one for one in left if _dominated(one, left, fronts)), None)) is not None:
            left.remove(gone)
        return {task: {one for one in front if one in left} for task, front in fronts.items()}

    def _parent(self) -> int:
        """Drawn with as many tickets as a program leads fronts."""
        leads = Counter(one for front in self.undominated().values() for one in front)
        return self.rng.choice([one for one, count in leads.items() for _ in range(count)])

    def _minibatch(self) -> list[str]:
        """The next tasks of the epoch's order. Each epoch has a new one, filled up with the tasks that are in it least."""
        size = self.settings.minibatch
        at = self.number * size
        epoch = 0 if self.epoch == -1 else at // max(len(self.shuffled), 1)
        if not self.shuffled or epoch > self.epoch:
            self.epoch, self.shuffled = epoch, list(self.train)
            self.rng.shuffle(self.shuffled)
            counts = Counter(self.shuffled)
            while len(self.shuffled) % size:
                least = counts.most_common()[-1][0]
                self.shuffled.append(least)
                counts[least] += 1
        at %= len(self.shuffled)
        return self.shuffled[at : at + size]

    def _mean(self, at: int) -> float:
        return self.programs[at].mean

    # -- merges

    def _try_merge(self, world: World, texts: Texts, one: int, two: int) -> Iteration:
        tasks = self._subsample(self.programs[one].scores, self.programs[two].scores)
        before = [sum(self.programs[at].scores[task] for task in tasks) for at in (one, two)]
        after = sum(world.validate(texts, tasks))
        sums = (*before, after)
        if after < max(before):
            return Iteration("worse", (one, two), tuple(tasks), sums, merged=True)
        kept = self.add(texts, (one, two), world.validate(texts, self.valid))
        self.merges_due -= 1
        self.merges_made += 1
        return Iteration("kept", (one, two), tuple(tasks), sums, kept, merged=True)

    def _merge(self) -> tuple[Texts, int, int] | None:
        """A program made of two that nothing dominates and that come from one ancestor, and those two; None for none."""
        leads = list({one for front in self.undominated().values() for one in front})
        if len(leads) < 2 or len(self.programs) < 3:
            return None
        for _ in range(_TRIES):
            if (found := self._pair(leads)) is None:
                continue
            one, two, ancestor = found
            texts, taken = self._mix(one, two, ancestor)
            if (one, two, taken) in self.mixed or len(self.valid) < self.settings.overlap:
                continue
            self.mixed.append((one, two, taken))
            self.merged.append(found)
            return texts, one, two
        return None

    def _pair(self, leads: Sequence[int]) -> tuple[int, int, int] | None:
        for _ in range(_TRIES):
            one, two = sorted(self.rng.sample(leads, 2))
            above = self._above(one, set()), self._above(two, set())
            if two in above[0] or one in above[1]:
                continue
            shared = [at for at in set(above[0]) & set(above[1]) if self._may_merge(one, two, at)]
            if shared:
                weights = [self._mean(at) for at in shared]
                # the package cannot draw where every ancestor failed everywhere; here each is as likely then
                ancestor = self.rng.choices(shared, weights if any(weights) else None)[0]
                return one, two, ancestor
        return None

    def _above(self, at: int, found: set[int]) -> list[int]:
        for parent in self.programs[at].parents:
            if parent not in found:
                found.add(parent)
                self._above(parent, found)
        return list(found)

    def _may_merge(self, one: int, two: int, ancestor: int) -> bool:
        """Not done before, not better than both, and one side left a component alone that the other has changed."""
        if (one, two, ancestor) in self.merged:
            return False
        if self._mean(ancestor) > min(self._mean(one), self._mean(two)):
            return False
        old, left, right = (self.programs[at].texts for at in (ancestor, one, two))
        return any(
            left.get(name) != right.get(name) and old.get(name) in (left.get(name), right.get(name))
            for name in _names(old, left, right)
        )

    def _mix(self, one: int, two: int, ancestor: int) -> tuple[Texts, tuple[int, ...]]:
        """Of each component the side that has changed it; of two changes the better program's, or either."""
        old, left, right = (self.programs[at].texts for at in (ancestor, one, two))
        made: dict[str, str] = {}
        taken: list[int] = []
        for name in _names(old, left, right):
            was, a, b = old.get(name), left.get(name), right.get(name)
            if was not in (a, b):
                means = self._mean(one), self._mean(two)
                side = self.rng.choice([one, two]) if means[0] == means[1] else one if means[0] > means[1] else two
            else:
                side = two if a == was and a != b else one
            taken.append(side)
            if (text := self.programs[side].texts.get(name)) is not None:
                made[name] = text
        return made, tuple(taken)

    def _subsample(self, left: Mapping[str, float], right: Mapping[str, float]) -> list[str]:
        """Validation tasks where the one is better, the other is, neither is: as evenly as there are some."""
        buckets = (
            [task for task in self.valid if left[task] > right[task]],
            [task for task in self.valid if left[task] < right[task]],
            [task for task in self.valid if left[task] == right[task]],
        )
        found: list[str] = []
        for bucket in buckets:
            count = min(len(bucket), math.ceil(_SUBSAMPLE / len(buckets)), _SUBSAMPLE - len(found))
            if count > 0:
                found += self.rng.sample(bucket, count)
        if (missing := _SUBSAMPLE - len(found)) > 0:
            unused = [task for task in self.valid if task not in found]
            if len(unused) >= missing:
                found += self.rng.sample(unused, missing)
            else:
                found += self.rng.choices(self.valid, k=missing)
        return found

    # -- as JSON

    def as_dict(self) -> dict[str, Any]:
        """The state, each text once: most programs share most of them."""
        texts: list[str] = list(dict.fromkeys(text for one in self.programs for text in one.texts.values()))
        place = {text: at for at, text in enumerate(texts)}
        version, state, gauss = self.rng.getstate()
        return {
            "train": list(self.train),
            "valid": list(self.valid),
            "texts": texts,
            "programs": [
                {
                    "texts": {name: place[text] for name, text in one.texts.items()},
                    "parents": list(one.parents),
                    "scores": list(one.scores.values()),
                    "turn": one.turn,
                }
                for one in self.programs
            ],
            "rng": [version, list(state), gauss],
            "number": self.number,
            "epoch": self.epoch,
            "shuffled": list(self.shuffled),
            "merges": [self.merges_due, self.merges_made, self.found_new],
            "merged": [list(one) for one in self.merged],
            "mixed": [[one, two, list(taken)] for one, two, taken in self.mixed],
        }

    @classmethod
    def of(cls, kept: Mapping[str, Any], settings: Settings) -> Search:
        """The search that ``as_dict`` was asked for."""
        rng = random.Random()
        version, state, gauss = kept["rng"]
        rng.setstate((version, tuple(state), gauss))
        due, made, found_new = kept["merges"]
        found = cls(
            kept["train"], kept["valid"], settings, rng, [], kept["number"], kept["epoch"], list(kept["shuffled"]),
            due, made, found_new, [(a, b, c) for a, b, c in kept["merged"]],
            [(one, two, tuple(taken)) for one, two, taken in kept["mixed"]],
        )  # fmt: skip
        for one in kept["programs"]:
            texts = {name: kept["texts"][at] for name, at in one["texts"].items()}
            scores = dict(zip(found.valid, one["scores"], strict=True))
            found.programs.append(Program(texts, tuple(one["parents"]), scores, one["turn"]))
        return found


def _dominated(one: int, left: Sequence[int], fronts: Mapping[str, set[int]]) -> bool:
    return all(any(other in left for other in front if other != one) for front in fronts.values() if one in front)


def _names(*programs: Iterable[str]) -> list[str]:
    return sorted({name for program in programs for name in program})
