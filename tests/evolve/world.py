"""Answers of a proposer, tasks in a folder, and evaluations that need no agent. Used by tests/evolve."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from reef.client import ReefClient, content_text
from reef.evolve.episode import Result
from reef.evolve.evaluate import Trial
from reef.evolve.propose import read_answer
from reef.evolve.values import Outage, ProposeContext


def prompt_of(body: Mapping[str, Any]) -> str:
    """All text of a request."""
    return json.dumps(body["messages"], ensure_ascii=False)


def is_proposer(body: Mapping[str, Any]) -> bool:
    return "You improve the harness" in prompt_of(body)


def edits(*put: tuple[str, str, str], why: str = "it helps") -> dict[str, Any]:
    """An answer of the proposer."""
    made = [{"action": "put", "kind": kind, "name": name, "text": text} for kind, name, text in put]
    return {"content": json.dumps({"why": why, "edits": made})}


def make_tasks(folder: Path, *names: str, protected: str = "") -> Path:
    """Task folders: "write yes into answer.txt"; the check looks for it."""
    for name in names:
        task = folder / name
        (task / "setup").mkdir(parents=True)
        (task / "prompt.md").write_text(f"Job {name}: write yes into answer.txt", encoding="utf-8")
        (task / "setup" / "notes.txt").write_text("nothing here\n", encoding="utf-8")
        (task / "check.py").write_text(_CHECK, encoding="utf-8")
        if name == protected:
            (task / "task.toml").write_text("protected = true\n", encoding="utf-8")
    return folder


_CHECK = """import pathlib, sys
file = pathlib.Path('answer.txt')
sys.exit(0 if file.exists() and file.read_text().strip() == 'yes' else 1)
"""

# -- named in settings of daemons under test


def by_words(trial: Trial) -> float:
    """A tree that says "carefully" passes; others are right now and then."""
    good = any("carefully" in one.text for one in trial.tree)
    return 1.0 if good else float(random.Random(f"{trial.seed}/{trial.side}").random() < 0.3)


def by_length(trial: Trial) -> Result:
    """Right whatever the tree says; a longer one costs more tokens."""
    return Result(1.0, tokens=100 + sum(len(one.text) for one in trial.tree))


def strictly(trial: Trial) -> float:
    """A tree that says "carefully" passes; others never do."""
    return float(any("carefully" in one.text for one in trial.tree))


def half(trial: Trial) -> float:
    return 0.5


def seven(trial: Trial) -> Result:
    return Result(7.0)


def coin(trial: Trial) -> float:
    """Right with probability 0.5 whatever the harness says."""
    return float(random.Random(f"{trial.seed}/{trial.side}").random() < 0.5)


def asked(trial: Trial) -> float:
    """What the scripted model says to the task, with the tree before it: $REEF_TEST_HOME names the daemon's home."""
    words = "\n".join([*(one.text for one in trial.tree), trial.task.prompt])
    body = {"model": "thinker", "messages": [{"role": "user", "content": words}]}
    answer = _client(Path(os.environ["REEF_TEST_HOME"])).call(body, session=f"episode-{trial.seed}")
    return float(content_text(answer.json()) == "yes")


@cache
def _client(home: Path) -> ReefClient:
    url = json.loads((home / "daemon.json").read_text(encoding="utf-8"))["url"]
    return ReefClient(url, (home / "token").read_text(encoding="utf-8").strip(), scenario="s")


def crash(context: ProposeContext) -> Any:
    raise RuntimeError("the proposer crashed")


def switched(trial: Trial) -> float:
    """As ``by_words``, with trouble while a file is there: $REEF_TEST_SWITCH holds outage or broken."""
    said = Path(os.environ["REEF_TEST_SWITCH"])
    if said.exists():
        word = said.read_text(encoding="utf-8")
        if word == "outage":
            raise Outage("the provider is down")
        if word == "broken":
            raise ValueError("the evaluator is broken")
        if word == "candidate" and trial.side == "candidate":
            raise ValueError("this tree breaks the agent")
        if word == "once" and trial.side == "candidate":
            said.unlink()
            raise ValueError("the machine had no memory for it")
    return by_words(trial)


NO_SCORES: dict[str, Any] = {
    "nan": Result(float("nan")), "too much": Result(2.0), "a word": Result("passed"), "half": Result(0.5),  # type: ignore[arg-type]
    "no time": Result(1.0, seconds=float("nan")), "bytes": Result(1.0, said=b"x"), "tokens": Result(1.0, tokens="many"),  # type: ignore[arg-type]
    "less than none": Result(1.0, calls=-1), "half of it": 0.5, "huge": 10**5000, "nothing": None,
}  # fmt: skip
"""What an evaluation must not return."""


def foreign(given: Trial | ProposeContext) -> Any:
    """Code that is not ours, evaluation and proposer: a file ($REEF_TEST_SWITCH) says what it does; without one it is good."""
    switch = Path(os.environ["REEF_TEST_SWITCH"])
    word = switch.read_text(encoding="utf-8") if switch.exists() else ""
    if word in NO_SCORES:
        return NO_SCORES[word]
    if word == "hang":
        threading.Event().wait()
    if word == "exit":
        sys.exit("it is over")
    if word == "half a sign":
        raise ValueError("\ud800")
    if isinstance(given, Trial):
        return strictly(given)
    if word == "half a name":
        return [{"action": "delete", "kind": "rules", "name": "\ud800"}]
    return _put("care", "carefully")


LOOKS_LIKE_A_KEY, UPSTREAM_KEY = "sk-canary-proposal-0123456789", "canary-upstream-61"


def _put(name: str, text: str, why: str = "") -> dict[str, Any]:
    return {"why": why, "edits": [{"action": "put", "kind": "rules", "name": name, "text": text}]}


LEAKS: tuple[Any, ...] = (
    _put("x", "carefully", f"because {LOOKS_LIKE_A_KEY} and {UPSTREAM_KEY} say so"),
    _put("x", f"carefully use {LOOKS_LIKE_A_KEY}"),
    _put("x", f"carefully use {UPSTREAM_KEY}"),
    _put(LOOKS_LIKE_A_KEY, "carefully"),
    {"edits": [{"action": "delete", "kind": "rules", "name": UPSTREAM_KEY}]},
    f"carefully: {LOOKS_LIKE_A_KEY}, {UPSTREAM_KEY}",
)
SAID_ONLY = 0
"""The one whose edits hold no key."""


def leaks(context: ProposeContext) -> Any:
    """A proposer that has come by keys."""
    found = LEAKS[int(os.environ["REEF_TEST_LEAK"])]
    return read_answer(found) if isinstance(found, str) else found


def nothing(context: ProposeContext) -> Any:
    return []


def insatiable(context: ProposeContext) -> Any:
    """Never has enough of asking."""
    while True:
        context.ask("You improve the harness", "What else?")
