"""Proves a recipe: objective, knobs, and its processor over many orders of sample records, with a crash at every point.

A failing order is made as small as it gets before it is shown. The same seed finds the same. Called by ``reef recipe check``.
"""

from __future__ import annotations

import dataclasses
import os
import random
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from reef.authoring.rules import Fault
from reef.authoring.samples import Event, order, sample, with_restarts, without_restarts
from reef.authoring.stage import UNSAID, Stage
from reef.authoring.subject import Subject, subject
from reef.config import SECTIONS, Config, Service, env_name, parse_value
from reef.config import Setting as Given
from reef.core.records_types import AgentRecord
from reef.errors import BadConfig
from reef.recipes.base import Recipe
from reef.recipes.registry import family_of
from reef.train.processors.base import DataProcessor
from reef.train.processors.derived import DerivedProcessor
from reef.train.slime_runtime.agreement import disagreement

Tick = Callable[[int, int], None]
"""``(done, total)`` examples; what it raises ends the check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``detail`` are the lines below it: the order of events, a record's story."""

    id: str
    state: Literal["ok", "warning", "failed"]
    message: str
    detail: tuple[str, ...] = ()
    hint: str = ""


@dataclass(slots=True)
class Report:
    """What a check has found."""

    target: str
    seed: int
    examples: int
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing failed."""
        return all(one.state != "failed" for one in self.findings)


def check(
    cls: type[Recipe], config: Config | None, *, seed: int, examples: int, tick: Tick = lambda done, total: None,
    environ: Mapping[str, str] = os.environ,
) -> Report:  # fmt: skip
    """Everything that can be proved of a recipe without a model."""
    report = Report(f"{cls.__module__}:{cls.__qualname__}", seed, examples)
    report.findings += [_knobs(cls)]
    try:
        with subject(cls, config, environ) as made:
            report.findings.append(_agreement(made, environ))
            report.findings += _orders(made, seed, examples, tick)
    except BadConfig as error:
        report.findings.append(Finding("made", "failed", error.message, hint=error.hint))
    return report


# -- what is said


def _knobs(cls: type[Recipe]) -> Finding:
    """Every knob can be reached, and its default is a value that it would accept."""
    wrong = [*_hidden_fields(cls)]
    hints = typing.get_type_hints(cls)
    service = {item.name for item in dataclasses.fields(Service)}
    taken = {env_name(section, item.name) for section, table in SECTIONS.items() for item in dataclasses.fields(table)}
    seen: dict[str, str] = {}
    for name, item in cls.knobs().items():
        rule = item.metadata["reef"]
        if name in service:
            wrong.append(f"{name} is a key of the service, so it never reaches the recipe: rename it")
        if rule.env is not None and rule.env in taken:
            wrong.append(f"{name} reads {rule.env}, which sets a key of the service: rename the variable")
        if rule.env is not None and rule.env in seen:
            wrong.append(f"{name} and {seen[rule.env]} both read {rule.env}")
        seen |= {rule.env: name} if rule.env is not None else {}
        if item.default is not dataclasses.MISSING:
            try:
                parse_value(Given(item.default, "its default"), hints[name], rule, name)
            except BadConfig as error:
                wrong.append(f"{error.message} ({error.hint})")
    silent = [name for name, item in cls.knobs().items() if not item.metadata["reef"].help]
    if wrong:
        return Finding("knobs", "failed", wrong[0], tuple(wrong[1:]))
    if silent:
        return Finding("knobs", "warning", f"no help: {', '.join(silent)}", hint='knob(default, "what it says")')
    return Finding("knobs", "ok", f"{len(cls.knobs())} keys, each with a default that it accepts")


def _hidden_fields(cls: type[Recipe]) -> list[str]:
    """Fields that look like settings and are none."""
    known = {*cls.knobs(), "runtime", "name"}
    return [
        f"{item.name} is a field and no knob, so no configuration can set it: {item.name}: ... = knob(...)"
        for item in dataclasses.fields(cls)
        if item.name not in known
    ]


def _agreement(made: Subject, environ: Mapping[str, str]) -> Finding:
    """Recipe, driver environment and flags name the same objective, and the two batch sizes are one."""
    family = str(getattr(made.recipe, "loss_family", ""))
    training = made.config.training if made.config is not None else None
    if made.surface != "weights":
        return Finding("agreement", "ok", f"surface {made.surface}: there is no loss to agree on")
    try:
        found = disagreement(
            family,
            environ,
            training.slime_flags if training is not None else None,
            family_of,
        )
    except BadConfig as error:
        found = error
    if found is not None:
        return Finding("agreement", "failed", found.message, hint=found.hint)
    size = getattr(made.recipe, "batch_size", None)
    if training is not None and training.global_batch_size not in (None, size):
        said = f"reef.batch_size is {size}, but training.global_batch_size is {training.global_batch_size}"
        return Finding(
            "agreement", "failed", said, hint="a Slime step takes exactly that many rollouts: make them equal"
        )
    return Finding("agreement", "ok", f"everything that names a loss says {family}")


# -- what happens


def _orders(made: Subject, seed: int, examples: int, tick: Tick) -> list[Finding]:
    """Play every example; stop at the first fault and make it small."""
    small = replace(made, settings=_small(made.settings))
    lives = batches = trained = unsaid = 0
    reasons: dict[str, int] = {}
    judge_failed = ""
    for number in range(examples):
        tick(number, examples)
        draw = random.Random(f"{seed}/{number}")
        records = sample(type(made.recipe), draw)
        derived = issubclass(made.processor, DerivedProcessor)
        events = order(records, draw, derived=derived)
        verdicts: dict[str, Any] = {}
        play = _Play(small, records, verdicts)
        for tried in (events, *with_restarts(events)):
            lives += 1
            if (fault := play.fault(tried)) is not None:
                return [_found(play, fault, tried, number, seed)]
        life = play.last
        assert life is not None
        batches, trained = batches + len(life.batches), trained + len(life.consumed)
        judge_failed = judge_failed or life.judge_failed
        for _, reason in life.states.values():
            code = reason.partition(":")[0]
            reasons[code] = reasons.get(code, 0) + 1
            unsaid += code == UNSAID
    tick(examples, examples)
    said = (
        f"{examples} examples, {lives} lives with a crash at every point, {batches} batches, {trained} records trained"
    )
    findings = [Finding("orders", "ok", said)]
    if made.processor is not DataProcessor and not batches:
        why = ", ".join(f"{count} {code}" for code, count in sorted(reasons.items(), key=lambda one: -one[1]) if code)
        findings = [
            Finding(
                "orders", "failed", f"no sample record ever became a batch, so nothing is proved: {why or 'none was judged'}",
                hint="let the recipe's example_report(number) return what its reports really hold",
            )
        ]  # fmt: skip
    if judge_failed:
        findings.append(Finding("judge", "warning", f"the judge failed on a sample: {judge_failed}"))
    if unsaid:
        findings.append(
            Finding(
                "reasons", "warning", f"{unsaid} reports were refused with no reason of the recipe's own",
                hint='answer Judgment.never("code", "sentence"): reef status counts the codes',
            )
        )  # fmt: skip
    return findings


def _small(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's settings with batches that a few records fill."""
    found = dict(settings)
    group = 2 if int(found.get("group_size") or 1) > 1 else 1
    if "group_size" in found:
        found["group_size"] = group
    if "batch_size" in found:
        found["batch_size"] = 2
    return found


@dataclass(slots=True)
class _Play:
    """Plays orders of the same records; a restart must make no difference."""

    subject: Subject
    records: Sequence[AgentRecord]
    verdicts: dict[str, Any]
    last: Stage | None = None
    _straight: dict[tuple[Event, ...], tuple[Any, Any]] = field(default_factory=dict)

    def fault(self, events: Sequence[Event]) -> Fault | None:
        """The first fault of this order, None for none."""
        straight = tuple(without_restarts(events))
        try:
            life = self._life(events, pure=straight == tuple(events))
            if straight == tuple(events):
                self.last = life
                return None
            if straight not in self._straight:
                plain = self._life(straight)
                self._straight[straight] = (plain.outcome(), plain.batches)
            return self._compared(life, *self._straight[straight])
        except Fault as fault:
            return fault

    def smallest(self, events: Sequence[Event], rule: str) -> tuple[list[Event], Fault]:
        """As few of ``events`` as still break ``rule``, dropped one by one."""
        kept, found = list(events), self.fault(events)
        shorter = True
        while shorter:
            shorter = False
            for at in reversed(range(len(kept))):
                tried = kept[:at] + kept[at + 1 :]
                fault = self.fault(tried)
                if fault is not None and fault.rule == rule:
                    kept, found, shorter = tried, fault, True
        assert found is not None
        return kept, found

    def story(self, events: Sequence[Event], record_id: str) -> list[str]:
        """What happened to a record in this order."""
        life = Stage(self.subject, self.records, self.verdicts)
        try:
            for event in events:
                life.play(event)
            life.end()
        except Fault:
            pass
        return life.story.get(record_id, [])

    def _life(self, events: Sequence[Event], *, pure: bool = False) -> Stage:
        life = Stage(self.subject, self.records, self.verdicts, pure=pure)
        for event in events:
            life.play(event)
        life.end()
        return life

    def _compared(self, life: Stage, outcome: Mapping[str, str], batches: list[tuple[str, ...]]) -> Fault | None:
        with_restart = life.outcome()
        for record_id in {**outcome, **with_restart}:
            before, after = outcome.get(record_id, "nothing"), with_restart.get(record_id, "nothing")
            if before != after:
                said = f"{record_id} ends as {before!r} without a restart, and as {after!r} with one"
                return Fault("restart_differs", said, record_id)
        derived = issubclass(self.subject.processor, DerivedProcessor)  # when judgments end is not the recipe's doing
        if not derived and batches != life.batches:
            pair = next(
                (one for one in zip(batches, life.batches, strict=False) if one[0] != one[1]), (batches, life.batches)
            )
            return Fault("restart_differs", f"without a restart a batch is {pair[0]}, with one it is {pair[1]}")
        return None


def _found(play: _Play, fault: Fault, events: Sequence[Event], number: int, seed: int) -> Finding:
    """The fault as small as it gets, with what led to it."""
    kept, small = play.smallest(events, fault.rule)
    lines = [f"the smallest order that shows it ({len(kept)} of {len(events)} events):"]
    lines += [f"  {at}. {event.words(play.records)}" for at, event in enumerate(kept, start=1)]
    lines.append("  then everything comes to its end")
    if small.record_id is not None and (told := play.story(kept, small.record_id)):
        lines.append(f"the story of {small.record_id}: {'; '.join(told)}")
    return Finding(
        fault.rule,
        "failed",
        small.message,
        tuple(lines),
        f"found in example {number + 1} of --seed {seed}: the same seed finds it again",
    )


def as_dict(report: Report) -> dict[str, Any]:
    """As JSON."""
    return {
        "target": report.target,
        "ok": report.ok,
        "seed": report.seed,
        "examples": report.examples,
        "findings": [{**dataclasses.asdict(one), "detail": list(one.detail)} for one in report.findings],
    }
