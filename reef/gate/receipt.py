"""Rules by their names, and a verdict again from its receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reef.core.artifacts import Verdict
from reef.errors import BadConfig
from reef.gate.fixed import FixedTest
from reef.gate.paired import PairedTest
from reef.gate.rule import PAIRED, GateSettings, Pair, Rule, Slot, Task


def start(settings: GateSettings, tasks: Sequence[Task], seed: int, level: float | None = None) -> Rule:
    """The rule that ``settings`` name, at ``level`` (default: their alpha); raises BadConfig when it can never publish."""
    rule = PairedTest if settings.rule == PAIRED else FixedTest
    return rule(settings, tasks, seed, settings.alpha if level is None else level)


def replay(evidence: Mapping[str, Any]) -> Verdict:
    """The verdict again, from a stored receipt alone; raises BadConfig when the receipt is not one a rule gave.

    Every slot is drawn anew and compared, so that neither the order nor a seed can have been chosen after the fact.
    """
    try:
        settings = GateSettings(**evidence["settings"])
        tasks = [Task(name, protected) for name, protected in evidence["tasks"]]
        rule = start(settings, tasks, evidence["seed"], evidence["level"])
        for number, stage, task, seed, first, candidate, incumbent, *tokens in evidence["pairs"]:
            slot = Slot(number, stage, task, seed, first)
            if rule.slots(1) != [slot]:
                raise BadConfig(f"the receipt's pair {number} is not the one that was to be run then")
            rule.add(Pair(slot, candidate, incumbent, *tokens))
        if rule.verdict is None and str(evidence["stopped"]).startswith("cut: "):
            rule.cut(evidence["stopped"].removeprefix("cut: "))
    except (KeyError, TypeError, ValueError) as error:
        raise BadConfig(f"this is no receipt of a gate: {error}", hint="see: reef gate show") from error
    if rule.verdict is None:
        raise BadConfig("the receipt ends before a verdict", hint="the evaluation was interrupted: reef status")
    return rule.verdict
