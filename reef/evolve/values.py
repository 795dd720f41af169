"""What travels through one step of evolution: failed runs, proposals, and what a proposer is shown. Values only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reef.errors import BadRequest, ReefError
from reef.harness.tree import Delete, Edit, Entry, Put, Tree, front_matter
from reef.train.types import TrainingBatch

CODE_KINDS = frozenset({"code_extension"})
"""Kinds whose text is executed: a person always looks at them first."""
_RUNS = re.compile(r"!`|```!")
"""Claude Code and OpenCode run such a command when they load a skill or a command, before the model sees it."""
_READS = re.compile(r"(?:^|\s)@[~/]")
"""Claude Code puts such a file into the prompt, also one outside of where it works."""
_TELLS = frozenset({"name", "description", "license", "metadata", "version", "argument-hint"})
"""Keys of a front matter that only say something. Others give an agent tools, hooks or another model."""


class Refusal(ReefError):
    """A proposal that is not evaluated; the message is the round's reason."""

    status, code = 409, "proposal_refused"


class Outage(ReefError):
    """Something an agent cannot help (a provider, the network): tried again, never scored."""

    status, code = 502, "outage"


class Provoked(ReefError):
    """A pair that fails at the model's server again and again while that answers others: it cannot be compared."""

    status, code = 409, "provoked"


class Invalid(ReefError):
    """A step that cannot be judged: the agent, a check or the evaluation is broken. Nothing is published or rejected."""

    status, code = 409, "step_invalid"


@dataclass(frozen=True, slots=True)
class FailedRun:
    """One report to learn from. ``references`` are the receipts of the run it judges, oldest first."""

    report_id: str
    score: float | None
    feedback: Any
    references: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "report_id": self.report_id,
            "score": self.score,
            "feedback": self.feedback,
            "references": list(self.references),
        }


@dataclass(frozen=True, slots=True)
class EvolveBatch(TrainingBatch):
    """Failed runs, or what somebody asked for: ``asked`` holds ``request`` (words) or ``proposal`` (edits and why)."""

    runs: tuple[FailedRun, ...] = ()
    asked: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of the tree and why it should help."""

    edits: tuple[Edit, ...]
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON: ``{"why", "edits": [{"action", "kind", "name", "text"?}]}``."""
        return {"why": self.why, "edits": [_edit_dict(one) for one in self.edits]}

    @property
    def code(self) -> str | None:
        """What of it does more than be read, in words; None for nothing."""
        return next((said for one in self.edits if (said := _does(one)) is not None), None)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of entries it touches."""
        return frozenset(one.entry.kind if isinstance(one, Put) else one.kind for one in self.edits)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A failed run as a proposer sees it: what was said, cut to its share of the budget, and what the report says."""

    report_id: str
    score: float | None
    feedback: str
    text: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An earlier proposal that was not published, and why."""

    why: str
    summary: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProposeContext:
    """What ``propose(context)`` is given. ``ask(system, prompt)`` asks the deployment's model, within the step's budget.

    ``allowed`` are the kinds that may be changed, ``knobs`` the recipe's settings; ``seed`` is the step's own. ``target`` is the
    kind and name of the one entry that is to be rewritten (or begun), None where the proposer chooses.
    """

    scenario: str
    tree: Tree
    runs: Sequence[Transcript]
    request: str | None
    rejected: Sequence[Rejected]
    allowed: frozenset[str]
    ask: Callable[[str, str], str]
    seed: int = 0
    knobs: Mapping[str, Any] = field(default_factory=dict)
    target: tuple[str, str] | None = None


Propose = Callable[[ProposeContext], Any]
"""Returns a Proposal, a list of edits, or the JSON form of either. Raising costs one refused round."""


def proposal_of(found: Any) -> Proposal:
    """What a proposer returned as a Proposal; raises Refusal that names what is wrong."""
    if isinstance(found, Proposal):
        return found
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"the proposal is not JSON: {error}") from None
    if isinstance(found, list | tuple):
        found = {"edits": list(found)}
    if not isinstance(found, Mapping):
        raise Refusal(f"the proposal is {type(found).__name__}, not an object with edits")
    if odd := sorted(set(found) - {"why", "edits"}, key=str):
        raise Refusal(f"the proposal has an unknown field {odd[0]!r}")
    edits, why = found.get("edits"), found.get("why", "")
    if not isinstance(edits, list | tuple) or not isinstance(why, str):
        raise Refusal("the proposal needs a list of edits, and why as text")
    try:
        return Proposal(tuple(_edit_of(one) for one in edits), why[:4000])
    except BadRequest as error:
        raise Refusal(error.message, hint=error.hint) from None


def _does(edit: Edit) -> str | None:
    kind = edit.entry.kind if isinstance(edit, Put) else edit.kind
    if kind in CODE_KINDS:
        return f"{kind} is executed"
    if isinstance(edit, Delete):
        return None
    entry, where = edit.entry, f"{kind}/{edit.entry.name}"
    if (found := _RUNS.search(entry.text)) is not None:
        return f"{where} runs a command where an agent loads it ({found[0]})"
    if (found := _READS.search(entry.text)) is not None:
        return f"{where} reads a file where an agent loads it ({found[0].strip()})"
    head = front_matter(entry.text)
    if entry.text.startswith("---") and not head:
        return f"{where} has a front matter that cannot be read"
    odd = sorted(set(map(str, head)) - _TELLS)
    return f"{where} sets {odd[0]}" if odd else None


def _edit_of(found: Any) -> Edit:
    if isinstance(found, Put | Delete):
        return found
    if not isinstance(found, Mapping):
        raise Refusal(f"an edit is {type(found).__name__}, not an object")
    action = found.get("action", "put")
    fields = {"action", "kind", "name", "text"} if action == "put" else {"action", "kind", "name"}
    if action not in ("put", "delete") or set(found) - fields or not {"kind", "name"} <= set(found):
        raise Refusal(
            f"an edit has action (put or delete), kind, name and text, not {', '.join(sorted(map(str, found)))}"[:300]
        )
    if action == "delete":
        return Delete(str(found["kind"]), str(found["name"]))
    return Put(Entry(found["kind"], found["name"], found.get("text", "")))


def _edit_dict(edit: Edit) -> dict[str, Any]:
    if isinstance(edit, Delete):
        return {"action": "delete", "kind": edit.kind, "name": edit.name}
    return {"action": "put", "kind": edit.entry.kind, "name": edit.entry.name, "text": edit.entry.text}
