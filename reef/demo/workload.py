"""The demo workload: small tasks whose replies a few lines of code can score, in several behaviours.

Knows nothing of models, HTTP or training: a behaviour is prompts, accepted answers and a checker. Called by the demo
and by benchmarks/learning.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from types import MappingProxyType
from typing import Any

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
SYMBOL = re.compile(r"[^\w\s.,;:!?'\"’“”()\[\]*-]")
GREETINGS = frozenset({"hello", "hi", "hey", "welcome", "greetings", "hiya"})
BRIEF_WORDS_MAX = 6
GREETING_WORDS_MAX = 6
REQUEST_WORDS = frozenset({"ask", "asking", "question", "questions"})
QUESTION_WORDS_MIN, QUESTION_WORDS_MAX = 4, 10


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt and the lower-case words that a right reply may hold."""

    prompt: str
    answer: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One habit to learn: its tasks (train and held-out apart), checker and sampling limits (`max_tokens` a reply)."""

    name: str
    title: str
    description: str
    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    check: Callable[[Task, str], float]
    max_tokens: int
    system: str | None

    def messages(self, task: Task) -> list[dict[str, str]]:
        """Return the chat messages that put a task to the model."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": task.prompt}]


def words(reply: str) -> list[str]:
    """Return the words of a reply in lower case."""
    return WORD.findall(reply.lower())


def size(reply: str) -> int:
    """Return the length of a reply in words; emoji and marks that stand alone count too, so padding never comes free."""
    return max(len(words(reply)) + len(SYMBOL.findall(reply)), len(reply.split()))


def answers_briefly(task: Task, reply: str) -> float:
    """Score a right answer: 1 in at most 6 words, 0.2 in more, 0 when none of the accepted words is there."""
    if not set(words(reply)) & set(task.answer):
        return 0.0
    return 1.0 if size(reply) <= BRIEF_WORDS_MAX else 0.2


def greets_by_name(task: Task, reply: str) -> float:
    """Score a greeting of 2 to 6 words by name: 2/n in n words, half unless the greeting word comes first, else 0."""
    said, n = words(reply), size(reply)
    greets = bool(GREETINGS & set(said)) and bool(set(task.answer) & set(said))
    # Long replies earn nothing: a little for the name alone is a trap where every reply of a group scores the same.
    if not greets or not 2 <= n <= GREETING_WORDS_MAX:
        return 0.0
    return (2.0 / n) * (1.0 if said[0] in GREETINGS else 0.5)


def asks_about(task: Task, reply: str) -> float:
    """Score a question on the topic: 1 for one alone of 4 to 10 words, 0.3 for any other reply that asks, else 0."""
    text, said = reply.strip(), set(words(reply))
    # Nothing for talk about the topic (a policy paid for it never went on to ask), nor for the request turned back
    # ("Can you ask me a question about cats?").
    if "?" not in text or not said & set(task.answer) or said & REQUEST_WORDS:
        return 0.0
    alone = text.endswith("?") and not re.search(r"[?.!;:\n]", text[:-1])
    return 1.0 if alone and QUESTION_WORDS_MIN <= size(text) <= QUESTION_WORDS_MAX else 0.3


CHECKS: Mapping[str, Callable[[Task, str], float]] = MappingProxyType(
    {"plural": answers_briefly, "opposite": answers_briefly, "greeting": greets_by_name, "question": asks_about}
)


def load_behaviours(text: str) -> Mapping[str, Behaviour]:
    """Read behaviours from TOML text, one table each; each name needs a checker in `CHECKS`."""
    return MappingProxyType({name: _behaviour(name, table) for name, table in tomllib.loads(text).items()})


def _behaviour(name: str, table: Mapping[str, Any]) -> Behaviour:
    def tasks(part: str) -> tuple[Task, ...]:
        return tuple(_task(table["prompt"], gap, answers) for gap, *answers in table[part])

    return Behaviour(
        name=name,
        title=table["title"],
        description=table["description"],
        train=tasks("train"),
        held_out=tasks("held_out"),
        check=CHECKS[name],
        max_tokens=table["max_tokens"],
        system=table.get("system"),
    )


def _task(template: str, gap: str, answers: list[str]) -> Task:
    """Fill the gap; a task without listed answers asks for the last word of the gap itself."""
    return Task(template.format(gap), tuple(answers) or (gap.lower().split()[-1],))


class _Shipped(Mapping[str, Behaviour]):
    """The behaviours of tasks.toml, read at the first use so that importing this module costs nothing."""

    @cached_property
    def _behaviours(self) -> Mapping[str, Behaviour]:
        return load_behaviours(resources.files("reef.demo").joinpath("tasks.toml").read_text(encoding="utf-8"))

    def __getitem__(self, name: str) -> Behaviour:
        return self._behaviours[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._behaviours)

    def __len__(self) -> int:
        return len(self._behaviours)


BEHAVIOURS: Mapping[str, Behaviour] = _Shipped()
