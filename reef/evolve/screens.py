"""Admission: what a proposal must be before anything is spent on it. Every refusal is a sentence; pure functions.

These keep accidents and clumsy attacks out. What gets past them is still compared in a sandbox, and code is shown to a person.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reef.errors import BadRequest, NotFound
from reef.evolve.values import Proposal, Refusal
from reef.harness.tree import Entry, Put, Tree

MAX_EDITS = 8
MAX_TEXT_BYTES = 64 * 1024
HIDDEN = "[redacted]"
"""What stands for a credential in everything that is kept."""
COPIED_WORDS = 8
"""So many words in a row that stand in a task are no coincidence."""

_SHORTEST_TASK = 5

_SECRETS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bsk-[A-Za-z0-9_-]{16,}",
        r"\b(?:ghp|gho|ghs|github_pat|glpat|xox[abps])[-_][A-Za-z0-9_-]{16,}",
        r"\bA(?:KIA|SIA)[0-9A-Z]{16}\b",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
        r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}",
        r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{20,}",
        r"(?i)\b(?:api[_-]?key|secret|password|token)\s*[:=]\s*['\"]?[A-Za-z0-9._~+/-]{12,}",
        r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]+@",
    )
)
_OVERRIDES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:ignore|disregard|forget|override)\b[^.\n]{0,30}\b(?:previous|prior|above|earlier|system|all|other)\b[^.\n]{0,20}\b(?:instruction|prompt|rule|message)s?",
        r"\b(?:reveal|print|repeat|send|leak)\b[^.\n]{0,30}\b(?:system prompt|api key|token|password|credential|secret)s?",
        r"\bdo not (?:tell|inform|warn|ask)\b[^.\n]{0,20}\b(?:user|human|person|operator)",
        r"\b(?:curl|wget)\b[^\n|]{0,200}\|\s*(?:ba|z|da)?sh\b",
        r"<\|(?:im_start|im_end|system|endoftext)\|>",
    )
)
_WORD = re.compile(r"\w+(?:[-.]\w+)*")

Mask = Callable[[str], str]
"""Replaces the deployment's own keys in a text."""


def hidden(text: str, mask: Mask) -> str:
    """``text`` without credentials: the deployment's own, and what looks like somebody's."""
    text = mask(text)
    for pattern in _SECRETS:
        text = pattern.sub(HIDDEN, text)
    return text


def without_credentials(proposal: Proposal, mask: Mask) -> tuple[dict[str, Any], str | None]:
    """A proposal as JSON that may be kept, and the reason to refuse it when an edit of it held a credential."""
    found = proposal.as_dict()
    clean = [{name: hidden(value, mask) for name, value in one.items()} for one in found["edits"]]
    where = next((_where(after) for before, after in zip(found["edits"], clean, strict=True) if before != after), None)
    reason = f"{where} holds what looks like a credential" if where is not None else None
    return {"why": hidden(found["why"], mask), "edits": clean}, reason


def admit(tree: Tree, proposal: Proposal, *, allowed: frozenset[str], tasks: Sequence[str]) -> Tree:
    """The tree that ``proposal`` makes of ``tree``; raises Refusal with the first reason against it.

    ``tasks`` are all texts of the tasks that agents are compared on. Credentials were looked for before it was kept.
    """
    edits = proposal.edits
    if not edits:
        raise Refusal("the proposal changes nothing")
    if len(edits) > MAX_EDITS:
        raise Refusal(f"the proposal has {len(edits)} edits, at most {MAX_EDITS}")
    if odd := sorted(proposal.kinds - allowed):
        raise Refusal(f"the proposal changes {odd[0]}, and only {', '.join(sorted(allowed))} may be changed")
    new = [one.entry for one in edits if isinstance(one, Put)]
    if (size := sum(len(one.text.encode()) for one in new)) > MAX_TEXT_BYTES:
        raise Refusal(f"the proposal has {size} bytes of text, at most {MAX_TEXT_BYTES}")
    old = "\n".join(one.text for one in tree)
    for entry in new:
        _screen(entry, old, tasks)
    try:
        made = tree.edit(edits)
    except (BadRequest, NotFound) as error:
        raise Refusal(error.message, hint=error.hint) from None
    if made == tree:
        raise Refusal("the proposal changes nothing")
    return made


def _where(edit: Mapping[str, Any]) -> str:
    return f"{edit['kind']}/{edit['name']}"


def _screen(entry: Entry, old: str, tasks: Sequence[str]) -> None:
    where, text = f"{entry.kind}/{entry.name}", entry.text
    for pattern in _OVERRIDES:
        if (found := pattern.search(text)) is not None and found[0] not in old:
            raise Refusal(f"{where} tries to override instructions: {found[0][:80]!r}")
    if (copied := copied_from(text, tasks)) is not None:
        raise Refusal(f"{where} holds text of a task that agents are compared on: {copied[:120]!r}")


def copied_from(text: str, tasks: Sequence[str]) -> str | None:
    """The first run of words that stands in a task too, None for none. A short task counts when it is there as a whole."""
    words = _WORD.findall(text.lower())
    for task in tasks:
        theirs = _WORD.findall(task.lower())
        size = min(COPIED_WORDS, len(theirs))
        if size < _SHORTEST_TASK:
            continue
        runs = {tuple(theirs[at : at + size]) for at in range(len(theirs) - size + 1)}
        for at in range(len(words) - size + 1):
            if (run := tuple(words[at : at + size])) in runs:
                return " ".join(run)
    return None


def shared_names(tree: Tree, made: Tree, tasks: Sequence[str], seen: str) -> list[str]:
    """Distinctive words (with a digit or a hyphen) that are new in ``made``, stand in a task, and were in nothing that the
    proposer was shown: a reviewer should see them."""
    old = set(_WORD.findall("\n".join(one.text for one in tree).lower())) | set(_WORD.findall(seen.lower()))
    theirs = {word for task in tasks for word in _WORD.findall(task.lower())}
    new = set(_WORD.findall("\n".join(one.text for one in made).lower())) - old
    return sorted(word for word in new & theirs if len(word) >= 5 and re.search(r"[\d-]", word))
