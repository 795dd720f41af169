"""Puts a conversation in the order every dialect accepts: tool results right behind their calls. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from reef.inference.dialects.fields import refuse
from reef.inference.dialects.prompt import Result, ToolCall, Turn


def arrange(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Each tool result behind its call, results in the order of the calls, everything else in its own order.

    Nothing is dropped and nothing is made up for a call without a result; a result that no earlier turn calls for is refused.
    """
    pending: list[tuple[str, list[Turn]]] = []
    placed: list[list[Turn]] = []
    for turn in turns:
        if turn.role == "tool":
            _place(pending, turn)
            continue
        placed.append([turn])
        for part in turn.parts:
            if isinstance(part, ToolCall):
                slot: list[Turn] = []
                pending.append((part.call_id, slot))
                placed.append(slot)
    return tuple(turn for group in placed for turn in group)


def _place(pending: list[tuple[str, list[Turn]]], turn: Turn) -> None:
    """Put a result behind the newest earlier call of its id, one that has none yet first."""
    result = turn.parts[0]
    assert isinstance(result, Result)
    fits = [slot for call_id, slot in pending if call_id == result.call_id]
    if not fits:
        refuse(result.at, f"a tool result for {result.call_id!r}, which no earlier message calls")
    for slot in reversed(fits):
        if not slot:
            slot.append(turn)
            return
    fits[-1].append(turn)


def leading(turns: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
    """The system turns before anything else, and the rest."""
    first = list(takewhile(lambda turn: turn.role == "system", turns))
    return first, list(turns[len(first) :])
