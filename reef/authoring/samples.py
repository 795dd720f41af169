"""Sample records and the orders they come in, drawn from a seed: late references, duplicates, crashes, steps in between.

Knows nothing of processors. The form of reports is the recipe's own (``Recipe.example_report``).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reef.core.records_types import AgentRecord, RecordState, RequestType
from reef.recipes.base import Recipe

SCENARIO = "check"
_ODD = 2 / 3
_STATES = [RecordState.COMPLETE] * 8 + [RecordState.INCOMPLETE, RecordState.ABORTED, RecordState.FAILED]
_SAID = ("hello", "thanks", "that is wrong", "try again", "go on")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens. ``what``: arrive, again, verdict, step, refuse, restart, crash, or cut (between commit and
    acknowledgement); ``number`` is the record's, or which of the running judgments ends."""

    what: str
    number: int = 0

    def words(self, records: Sequence[AgentRecord]) -> str:
        """As a sentence."""
        match self.what:
            case "arrive":
                return f"{_described(records[self.number])} arrives"
            case "again":
                return f"{records[self.number].agent_record_id} is delivered again"
            case "verdict":
                return "a judgment ends"
            case _:
                return _WORDS[self.what]


RESTARTS = ("restart", "crash")
_WORDS = {
    "step": "a step of the next full batch is committed",
    "cut": "a step is committed, and the trainer dies before it is acknowledged",
    "refuse": "a step of the next full batch is refused",
    "restart": "the trainer stops and starts again",
    "crash": "the trainer dies before what it judged last is kept, and starts again",
}


def sample(recipe: type[Recipe], draw: random.Random) -> list[AgentRecord]:
    """Some calls, and reports on them when the recipe takes any; in a third of all samples nothing is odd about them."""
    odd = draw.random() < _ODD
    calls = [_call(number, draw, odd=odd) for number in range(draw.randint(2, 6))]
    if recipe.report_schema is None:
        return calls
    names = [call.agent_record_id for call in calls]
    count = draw.randint(2, 6) if odd else len(calls)
    return [*calls, *(_report(recipe, number, names, draw, odd=odd) for number in range(count))]


def order(records: Sequence[AgentRecord], draw: random.Random, *, derived: bool) -> list[Event]:
    """An order in which they arrive, with duplicates, judgments and steps in between; no restarts yet."""
    numbers = list(range(len(records)))
    if draw.random() < 0.7:
        draw.shuffle(numbers)
    events: list[Event] = []
    for number in numbers:
        events.append(Event("arrive", number))
        if draw.random() < 0.2:
            events.append(Event("again", draw.choice(numbers)))
        if derived and draw.random() < 0.6:
            events.append(Event("verdict", draw.randrange(3)))
        if draw.random() < 0.4:
            events.append(Event(draw.choice(("step", "step", "step", "refuse"))))
    return events


def with_restarts(events: Sequence[Event]) -> list[list[Event]]:
    """The same order with one restart or crash at every point, and each step cut off in its middle."""
    found = [
        [*events[:at], Event(what), *events[at:]]
        for at in range(1, len(events) + 1)
        for what in RESTARTS
        if what == "restart" or events[at - 1].what in ("arrive", "verdict")
    ]
    return found + [
        [*events[:at], Event("cut"), *events[at + 1 :]] for at, event in enumerate(events) if event.what == "step"
    ]


def without_restarts(events: Sequence[Event]) -> list[Event]:
    """The same with no restart and every step acknowledged."""
    return [Event("step") if event.what == "cut" else event for event in events if event.what not in RESTARTS]


def call(number: int, *, state: RecordState = RecordState.COMPLETE, session: str | None = None, said: str = "hello",
         tensors: bool = True, meta: Mapping[str, Any] | None = None) -> AgentRecord:  # fmt: skip
    """The ``number``-th call, with the tensors of a real one."""
    training = {"tokens": [number + 1, 7, 8, 9], "loss_mask": [1, 1], "rollout_log_probs": [-0.1, -0.2]}
    messages = [{"role": "user", "content": said}]
    answer = {"choices": [{"message": {"role": "assistant", "content": "an answer"}}]}
    payload = {"request": {"messages": messages}, "response": {**answer, **({"training": training} if tensors else {})}}
    return AgentRecord.create(
        SCENARIO, RequestType.INFERENCE, payload, f"call-{number}", created_at=1000.0 + number, state=state,
        session=session, meta=meta, reason=None if state is RecordState.COMPLETE else "it broke off",
    )  # fmt: skip


def report(recipe: type[Recipe], number: int, references: Sequence[str], **changed: Any) -> AgentRecord:
    """The ``number``-th report, in the recipe's own form."""
    payload = {**recipe.example_report(number), **changed, "references": list(references)}
    return AgentRecord.create(SCENARIO, RequestType.REPORT, payload, f"report-{number}", created_at=2000.0 + number)


def _call(number: int, draw: random.Random, *, odd: bool) -> AgentRecord:
    session, said = draw.choice(("one", "one", "two", None) if odd else ("one", "two")), draw.choice(_SAID)
    if not odd:
        return call(number, session=session, said=said)
    state, tensors = draw.choice(_STATES), draw.random() < 0.9
    meta = {"helper": "title"} if draw.random() < 0.05 else None
    return call(number, state=state, session=session, said=said, tensors=tensors, meta=meta)


def _report(recipe: type[Recipe], number: int, calls: Sequence[str], draw: random.Random, *, odd: bool) -> AgentRecord:
    mine = calls[number] if number < len(calls) else "call-lost"
    if not odd:
        return report(recipe, number, [mine])
    references = draw.choice(([mine], [mine], [mine], [draw.choice(calls)], [mine, draw.choice(calls)]))
    changed = draw.choice(({}, {}, {}, {}, {}, {"score": None}, {"score": float("nan")}, {"metadata": None}))
    return report(recipe, number, list(dict.fromkeys(references)), **changed)


def _described(record: AgentRecord) -> str:
    if record.request_type is RequestType.INFERENCE:
        session = f" of session {record.session}" if record.session else ""
        return f"{record.agent_record_id} ({record.state.value}{session})"
    score = record.payload.get("score")
    return f"{record.agent_record_id} (score {score}, on {', '.join(record.references)})"
