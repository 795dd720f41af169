"""The demo workload: tasks that never leak from train to held-out, and checkers that cannot be had cheaply."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.demo.workload import BEHAVIOURS, Behaviour, Task, load_behaviours

ALL = [pytest.param(behaviour, id=name) for name, behaviour in BEHAVIOURS.items()]
TASKS = [(behaviour, task) for behaviour in BEHAVIOURS.values() for task in (*behaviour.train, *behaviour.held_out)]

GOOD_REPLIES = {
    "plural": ("cat", "The plural of cat is cats."),
    "opposite": ("hot", "The opposite is cold."),
    "greeting": ("Anna", "Hello, Anna!"),
    "question": ("cats", "Do you like cats?"),
}


def task_about(behaviour: Behaviour, gap: str) -> Task:
    return next(task for task in (*behaviour.train, *behaviour.held_out) if gap in task.prompt)


def score(name: str, gap: str, reply: str) -> float:
    behaviour = BEHAVIOURS[name]
    return behaviour.check(task_about(behaviour, gap), reply)


@pytest.mark.parametrize("behaviour", ALL)
def test_train_and_held_out_never_meet(behaviour: Behaviour) -> None:
    train = {task.prompt.casefold() for task in behaviour.train}
    held_out = {task.prompt.casefold() for task in behaviour.held_out}
    assert not train & held_out
    assert len(train) == len(behaviour.train) and len(held_out) == len(behaviour.held_out), "a task is listed twice"
    assert len(held_out) >= 40, "fewer tasks than this give an interval too wide to show a gain"


@pytest.mark.parametrize("name", ["plural", "greeting", "question"])
def test_no_held_out_answer_was_a_train_answer(name: str) -> None:
    train = {word for task in BEHAVIOURS[name].train for word in task.answer}
    assert not train & {word for task in BEHAVIOURS[name].held_out for word in task.answer}


def test_no_prompt_is_shared_between_behaviours() -> None:
    prompts = [task.prompt for _, task in TASKS]
    assert len(prompts) == len(set(prompts))


@pytest.mark.parametrize("behaviour", ALL)
def test_every_task_can_be_answered_and_its_answer_is_lower_case(behaviour: Behaviour) -> None:
    for task in (*behaviour.train, *behaviour.held_out):
        assert task.answer and all(word and word == word.lower() for word in task.answer)
        assert "{" not in task.prompt
    assert behaviour.max_tokens > 0 and behaviour.title and behaviour.description


@pytest.mark.parametrize("name", list(BEHAVIOURS))
def test_a_good_reply_scores_one(name: str) -> None:
    gap, reply = GOOD_REPLIES[name]
    assert score(name, gap, reply) == 1.0


@pytest.mark.parametrize("reply", ["", " ", "\n\t", ".", "!", "?", "...", '""', "👋", "a", "1"])
def test_empty_and_one_character_replies_score_zero_on_every_task(reply: str) -> None:
    assert {behaviour.check(task, reply) for behaviour, task in TASKS} == {0.0}


def test_repeating_the_prompt_pays_nothing() -> None:
    assert {behaviour.check(task, task.prompt) for behaviour, task in TASKS} == {0.0}
    assert {behaviour.check(task, task.prompt.rstrip(".") + "?") for behaviour, task in TASKS} == {0.0}


@pytest.mark.parametrize("behaviour", ALL)
def test_one_reply_does_not_fit_all_tasks(behaviour: Behaviour) -> None:
    """The good reply to one task is worth nothing on most others, so a policy that ignores the prompt cannot win."""
    _, reply = GOOD_REPLIES[behaviour.name]
    scores = [behaviour.check(task, reply) for task in behaviour.held_out]
    assert sum(scores) / len(scores) < 0.1


@given(st.text(max_size=200), st.integers(min_value=0, max_value=len(TASKS) - 1))
def test_scores_stay_between_zero_and_one(reply: str, index: int) -> None:
    behaviour, task = TASKS[index]
    assert 0.0 <= behaviour.check(task, reply) <= 1.0
    assert behaviour.check(task, reply) == behaviour.check(task, reply)


@pytest.mark.parametrize(
    ("name", "gap", "reply", "expected"),
    [
        ("plural", "cat", "CATS", 1.0),
        ("plural", "cat", "The plural of cat is, as everybody knows, cats.", 0.2),
        ("plural", "cat", "The plural of cat is catses.", 0.0),
        ("plural", "cat", "cats - - - - - -", 0.2),
        ("opposite", "hot", "cool", 1.0),
        ("opposite", "hot", "The opposite of hot is warm.", 0.0),
        ("greeting", "Anna", "hi anna", 1.0),
        ("greeting", "Anna", "Anna: hello", 0.5),
        ("greeting", "Anna", "Greet Anna.", 0.0),
        ("greeting", "Anna", "Anna", 0.0),
        ("greeting", "Anna", "Hello, Tom!", 0.0),
        ("greeting", "Anna", "Hello Anna, how are you?", 2 / 5),
        ("greeting", "Anna", "Hello Anna, how are you today, friend?", 0.0),
        ("greeting", "Anna", "Hello Anna 😃🌈", 2 / 4),
        ("question", "cats", "What are cats", 0.0),
        ("question", "cats", "Why cats?", 0.3),
        ("question", "cats", "I like cats. Do you?", 0.3),
        ("question", "cats", "Do you like dogs?", 0.0),
        ("question", "cats", "Can you ask me a question about cats?", 0.0),
    ],
)
def test_scores_of_known_replies(name: str, gap: str, reply: str, expected: float) -> None:
    assert score(name, gap, reply) == pytest.approx(expected)


def test_messages_carry_the_system_text_before_the_prompt() -> None:
    behaviour = BEHAVIOURS["greeting"]
    assert behaviour.messages(behaviour.train[0]) == [
        {"role": "system", "content": behaviour.system},
        {"role": "user", "content": behaviour.train[0].prompt},
    ]


def test_loading_without_a_system_text_leaves_it_out() -> None:
    text = """
    [greeting]
    title = "t"
    description = "d"
    prompt = "Greet {}"
    max_tokens = 4
    train = [["Ada"]]
    held_out = [["Bo"]]
    """
    behaviour = load_behaviours(text)["greeting"]
    assert behaviour.system is None
    assert behaviour.messages(behaviour.train[0]) == [{"role": "user", "content": "Greet Ada"}]


def test_the_workload_imports_no_model_library_and_nothing_else_of_reef() -> None:
    code = "import sys, reef.demo.workload; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "transformers", "numpy", "httpx"} & set(loaded)
    assert {name for name in loaded if name.startswith("reef.")} <= {"reef.demo", "reef.demo.workload"}
