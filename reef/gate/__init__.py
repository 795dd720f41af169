"""Decides about candidates: named rules, verdicts that can be replayed from their receipts, what an effect costs to see."""

from reef.gate.checks import checks_pass
from reef.gate.evidence import level_of, share_of_budget
from reef.gate.receipt import replay, start
from reef.gate.rule import GateSettings, Pair, Rule, Slot, Task

__all__ = [
    "GateSettings",
    "Pair",
    "Rule",
    "Slot",
    "Task",
    "checks_pass",
    "level_of",
    "replay",
    "share_of_budget",
    "start",
]
