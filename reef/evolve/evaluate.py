"""The default evaluation: one episode of the deployment's agent, scored by the task's check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reef.core.texts import writable
from reef.errors import ReefError
from reef.evolve.episode import Result
from reef.evolve.tasks import TaskFolder
from reef.evolve.values import Outage
from reef.harness.tree import Tree

_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Trial:
    """What ``evaluate(trial)`` is given: a tree to try on a task. ``episode()`` runs the agent and the task's check."""

    tree: Tree
    task: TaskFolder
    seed: int
    side: str
    episode: Callable[[], Result]


Evaluate = Callable[[Trial], Result | float]
"""Returns a score in [0, 1], or a Result. Raise Outage for what the agent cannot help: it is tried again, never scored."""


def evaluate(trial: Trial) -> Result:
    """Run the agent on the task, and the task's check on what it left."""
    return trial.episode()


def result_of(evaluate: Evaluate, trial: Trial) -> Result:
    """What an operator's ``evaluate`` says, as a Result; a bug of it and a score that is none are broken trouble."""
    try:
        found = evaluate(trial)
    except Outage as error:
        return Result(None, error.message)
    except BaseException as error:  # the edge to code that is not ours: sys.exit() in it must not end our thread
        said = error.message if isinstance(error, ReefError) else f"{type(error).__name__}: {error}"
        return Result(None, f"evaluate failed: {writable(said)}", broken=True)
    if not isinstance(found, Result):
        return Result(float(found)) if _is_score(found) else _odd(found, "no score from 0 to 1")
    if found.score is not None and not _is_score(found.score):
        return _odd(found.score, "no score from 0 to 1")
    for name, kind in _FIELDS.items():
        value = getattr(found, name)
        if not isinstance(value, kind) or (isinstance(value, int | float) and not 0 <= value < math.inf):
            return _odd(value, f"no {name} of a result")
    return found if found.score is None else replace(found, score=float(found.score))


_FIELDS: Mapping[str, Any] = {
    "said": str, "transcript": str, "trouble": str | None, "broken": bool, "sandboxed": bool, "reused": bool,
    "seconds": int | float, "calls": int, "tokens": int | None,
}  # fmt: skip
"""What is kept of a result, or decided by: a field of another kind would come back to every later step."""


def _is_score(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= 1


def _odd(found: object, why: str) -> Result:
    try:
        said = repr(found)[:_SHOWN_CHARS]
    except Exception as error:  # a number of too many digits, or a class of its own
        said = f"a {type(found).__name__} ({type(error).__name__})"
    return Result(None, f"evaluate returned {writable(said)}, which is {why}", broken=True)
