"""A harness becomes better without a key: the embedded model answers, Reef's own agent does the tasks, reports make it better.

The whole story is examples/harness_local/run.py, run as its README says, with SmolLM2-135M-Instruct on this machine's cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from examples.harness_local.propose import propose
from examples.harness_local.run import right
from reef.cli.pick import EMBEDDED_MODEL, models_folder
from reef.evolve.screens import admit
from reef.evolve.tasks import read_tasks
from reef.evolve.values import ProposeContext, Refusal, Transcript, proposal_of
from reef.harness.tree import Tree
from reef.launch import stop
from tests.faults.world import ROOT

EXAMPLE = ROOT / "examples" / "harness_local"
QUESTIONS = tomllib.loads((EXAMPLE / "questions.toml").read_text(encoding="utf-8"))
LIST = "Answer in bullet points."
MARKS = "Use the markdown bullets such as: * This is a point."


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The folder of the embedded model, fetched where it is not there yet."""
    folder = models_folder() / EMBEDDED_MODEL
    if not (folder / "config.json").exists():
        pull = [sys.executable, "-m", "reef.cli.main", "model", "pull", "--yes"]
        ran = subprocess.run(pull, capture_output=True, text=True, timeout=300, check=False)
        if ran.returncode:
            pytest.skip(f"the embedded model cannot be had: {ran.stderr.strip()[-300:]}")
    return folder


@pytest.mark.slow
def test_reports_raise_a_held_out_score_and_a_useless_change_is_not_published(
    embedded_model: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "examples.harness_local.run", "--model", str(embedded_model)]
    command += ["--folder", str(tmp_path)]
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)
    finally:
        stop(tmp_path / "reef", 60)  # where the example was killed, its daemon was not
    print(ran.stderr, ran.stdout)
    assert ran.returncode == 0
    found = json.loads(ran.stdout)
    learned, useless, held_out = found["learned"], found["useless"], found["held_out"]
    assert learned["decision"] == "accept" and learned["won"] >= 8, learned
    assert held_out["questions"] >= 20 and held_out["after"] - held_out["before"] >= 10, found
    assert found["p"] < 0.001, "a sign test on the pairs of the same question before and after"
    said = "\n".join(found["why"])
    assert all(one["feedback"] in said for one in QUESTIONS["reported"]), said
    assert useless["decision"] in ("reject", "inconclusive") and useless["state"] == "rejected", useless
    assert found["serving"] == learned["release_id"] and "rules/care" not in found["harness"]
    assert LIST in found["harness"]["agent_command/answer"]
    # Greedy answers to the same prompts; what is computed beside a call may move the last bits of a sum, and with them a tie.
    assert abs(held_out["at_last"] - held_out["after"]) <= 2


# -- the parts of the example


def context(*feedback: str, tree: Tree | None = None) -> ProposeContext:
    """What the proposer is given for runs of which this was said."""
    runs = [Transcript(f"report-{number}", 0.0, said, "...") for number, said in enumerate(feedback)]
    seed = tree or Tree.from_folder(EXAMPLE / "seed")
    return ProposeContext("board", seed, runs, None, [], frozenset({"agent_command"}), lambda system, prompt: "")


def proposed(given: ProposeContext) -> Tree:
    """The tree after the proposal, as the screens of a step let it pass."""
    tasks = [text for task in read_tasks(EXAMPLE / "tasks") for text in task.texts()]
    return admit(given.tree, proposal_of(propose(given)), allowed=given.allowed, tasks=tasks)


def test_what_two_reports_ask_for_becomes_the_command() -> None:
    made = proposed(context(*(one["feedback"] for one in QUESTIONS["reported"])))
    assert made.get("agent_command", "answer").text == f"$ARGUMENTS {LIST} {MARKS}\n"


@pytest.mark.parametrize("feedback", [(), ("No.",), (LIST, "Too long."), (f"{LIST} {LIST}", MARKS)])
def test_what_one_report_asks_for_does_not(feedback: tuple[str, ...]) -> None:
    with pytest.raises(Refusal, match="no two reports"):
        propose(context(*feedback))


def test_what_the_command_asks_for_is_not_asked_twice() -> None:
    made = proposed(context(LIST, LIST))
    with pytest.raises(Refusal, match="no two reports"):
        propose(context(LIST, LIST, MARKS, tree=made))
    assert proposed(context(LIST, MARKS, MARKS, tree=made)).get("agent_command", "answer").text.endswith(f"{MARKS}\n")


def test_no_question_is_in_two_places() -> None:
    tasks = [task.prompt.removeprefix("/answer ") for task in read_tasks(EXAMPLE / "tasks")]
    held_out = [one["question"] for one in QUESTIONS["held_out"]]
    reported = [one["question"] for one in QUESTIONS["reported"]]
    assert (len(tasks) >= 12, len(held_out) >= 20, len(reported) >= 6) == (True, True, True)
    assert len({*tasks, *held_out, *reported}) == len(tasks) + len(held_out) + len(reported)


ANSWERS = ("", "\n", "Bees make honey.\n", "* Honey\n\n* Wax\n", "- they make\n- HONEY\n*\n", "* wax\n* flowers\n",
           "Bees:\n* honey\n", "1. honey\n2. wax\n", "  * honey", "*honey*\n")  # fmt: skip


def test_the_checks_and_the_measurement_agree() -> None:
    task = next(one for one in read_tasks(EXAMPLE / "tasks") if one.name == "bees")
    for answer in ANSWERS:
        check = subprocess.run(["sh", str(task.folder / task.check)], input=answer, text=True, check=False)
        assert check.returncode == (0 if right(answer, "honey") else 1), answer
    assert [right(answer, "honey") for answer in ANSWERS].count(True) == 3
