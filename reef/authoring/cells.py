"""The grid of recipe shapes: what is updated, how work arrives, whether algorithm state is carried; in words and choices.

Knows nothing of files. Read by the scaffold and by the questions of ``reef recipe new``.
"""

from __future__ import annotations

from dataclasses import dataclass

SURFACES = {
    "weights": "the model is trained (the embedded one, with no GPU)",
    "harness": "the model stays; rules and skills of an agent get better",
    "nothing": "only record: prove the wiring first",
}
WORKS = {
    "stream": "a stream of tasks: one piece of work, one report with a score",
    "chat": "chat sessions: no reports, a judge reads how it went",
    "research": "autoresearch: a problem, worked on in rounds of rollouts",
}
STATES = {
    "no": "each step looks at its own batch",
    "yes": "a step remembers something of those before it",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the grid."""

    surface: str = "weights"
    work: str = "stream"
    stateful: bool = False

    @property
    def words(self) -> str:
        """As ``reef recipe list`` has it."""
        kinds = {"stream": "stream of tasks", "chat": "chat session", "research": "autoresearch"}
        state = f", {'stateful' if self.stateful else 'stateless'}" if self.surface != "nothing" else ""
        return f"{self.surface}, {kinds[self.work]}{state}"


SUMMARY = {
    ("weights", "stream"): "trains on scored answers",
    ("weights", "chat"): "trains on sessions that a judge has read",
    ("weights", "research"): "trains on finished rounds of rollouts",
    ("harness", "stream"): "makes rules of what is said of failed runs",
    ("harness", "chat"): "makes rules of what sessions object to",
    ("harness", "research"): "makes rules of finished rounds of runs",
    ("nothing", "stream"): "records calls and scored reports",
    ("nothing", "chat"): "records sessions",
    ("nothing", "research"): "records rollouts and their scores",
}

WHAT = {
    "weights": "A recipe that updates model weights. `processor.py` says which traffic trains, `preparer.py` what a batch means, "
    "`recipe.py` binds the two.",
    "harness": "A recipe that updates the harness of an agent: failed runs become a proposal, proposal and what is served are "
    "tried on tasks, and what wins is released.",
    "nothing": "A recipe that updates nothing. Calls and reports are kept, so that the wiring is proved before there is an "
    "objective.",
}

USE = {
    ("weights", "stream"): (
        'reef call "Say hello."',
        "reef report --score 1             # or 0; eight such pairs, not all with the same score, make a step",
    ),
    ("weights", "chat"): (
        'reef call --session one "Say hello."',
        'reef call --session one "Thanks. And in French?"   # two calls of a session are judged; eight such pairs make a step',
    ),
    ("weights", "research"): (
        'reef call "Say hello."',
        "reef report --score 1 --metadata group=round-1     # four of these are a round; two rounds make a step",
    ),
    ("harness", "stream"): (
        "reef harness install minimal",
        'reef-minimal -p "What is 2 and 2?"',
        'reef-minimal report --score 0 --feedback "Answer with the number alone."   # starts a step; then: reef why r1',
    ),
    ("harness", "chat"): (
        'reef call --session one "What is 2 and 2?"',
        'reef call --session one "That is wrong."           # the pair is judged, and a step begins: reef why r1',
    ),
    ("harness", "research"): (
        'reef call "What is 2 and 2?"',
        'reef report --score 0 --feedback "Answer with the number alone." --metadata group=round-1   # four are a round',
    ),
    ("nothing", "stream"): ('reef call "Say hello."', "reef report --score 1", "reef records"),
    ("nothing", "chat"): ('reef call --session one "Say hello."', "reef records --session one"),
    ("nothing", "research"): (
        'reef call "Say hello."',
        "reef report --score 1 --metadata group=round-1",
        "reef records",
    ),
}

EDIT = {
    "weights": (
        "`processor.py`, at EDIT: which traffic trains. `recipe.py` gets a knob for each number there.",
        "`preparer.py`, at EDIT: what a sample is worth. A family without advantages is `sft`; then name it in both files.",
    ),
    "harness": (
        "`tasks/`: folders of your own, each with a prompt and a check. Look at them: `reef harness tasks $name/tasks`.",
        "`propose.py`, at EDIT: how a change is made.",
        "`serve.yaml`: the agent, and the gate that decides: `reef gate plan` says what a verdict costs.",
    ),
    "nothing": (
        "`recipe.py`: what a report must hold, so that it can be learned from later.",
        "Use it for a while, look at `reef records` and `reef export`, and choose an objective then: `reef recipe new --help`.",
    ),
}
