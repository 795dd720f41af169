"""The default evaluation: one episode of the deployment's agent, scored by the task's check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reef.errors import ReefError
from reef.evolve.episode import Result
from reef.evolve.tasks import TaskFolder
from reef.evolve.values import Outage
from reef.harness.tree import Tree


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
    except Exception as error:  # the edge to code that is not ours
        said = error.message if isinstance(error, ReefError) else f"{type(error).__name__}: {error}"
        return Result(None, f"evaluate failed: {said}", broken=True)
    score: object = found.score if isinstance(found, Result) else found
    if isinstance(found, Result) and score is None:
        return found
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        return Result(None, f"evaluate returned {score!r}, which is no score from 0 to 1", broken=True)
    return found if isinstance(found, Result) else Result(float(score))
