"""Drafts of tasks from failed runs: a prompt that people really had, kept for a person to write a check for.

A draft is never used by itself. What a report says cannot be executed, so only a person can say what would have been right.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from reef.core.texts import writable
from reef.evolve.screens import HIDDEN, Mask, hidden
from reef.evolve.tasks import TaskFolder

FOLDER = "drafts"
MAX_PROMPT_CHARS = 20_000
_WORD = re.compile(r"\w+")
_SKELETON = '''"""Rename this to check.py when it tells work that is done from work that is not.

It runs in the folder the agent worked in, after it. Exit with 0 for done and 1 for not done.
"""

raise SystemExit("write what has to be so afterwards")
'''


def draft(
    folder: Path, prompt: str, run: Mapping[str, Any], *, most: int, tasks: Iterable[TaskFolder], mask: Mask
) -> Path | str:
    """Write a draft of a task below ``folder``, from a failed run's first prompt; returns where, or why there is none."""
    prompt = writable(prompt).strip()
    if not prompt:
        return "the run begins with no text of a user"
    if len(prompt) > MAX_PROMPT_CHARS:
        return f"its prompt has {len(prompt)} characters, at most {MAX_PROMPT_CHARS}"
    if HIDDEN in prompt or hidden(prompt, mask) != prompt:
        return "its prompt holds what looks like a credential"
    name, same = _name(prompt), _normal(prompt)
    if any(one.name == name or _normal(one.prompt) == same for one in tasks):
        return "there is a task with this prompt"
    there = drafts(folder)
    if name in there:
        return "there is a draft with this prompt"
    if len(there) >= most:
        return f"there are {len(there)} drafts, at most grow_tasks"
    report = hidden(writable(json.dumps(run, indent=2, ensure_ascii=False)), mask)
    made = folder / f".{name}"  # it has its name when it is whole
    made.mkdir(parents=True, exist_ok=True)
    (made / "prompt.md").write_text(prompt + "\n", encoding="utf-8")
    (made / "check.py.draft").write_text(_SKELETON, encoding="utf-8")
    (made / "report.txt").write_text(report + "\n", encoding="utf-8")
    return made.rename(folder / name)


def drafts(folder: Path) -> list[str]:
    """The names of the drafts below ``folder``."""
    return [one.name for one in folder.iterdir() if not one.name.startswith(".")] if folder.is_dir() else []


def first_prompt(request: Mapping[str, Any], text_of: Callable[[Any], str]) -> str:
    """What the user says first in a request of any of the three formats, empty for nothing."""
    messages = request.get("messages") or request.get("input") or ()
    if isinstance(messages, str):
        return messages
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            return text_of(message)
    return ""


def _normal(prompt: str) -> list[str]:
    return _WORD.findall(prompt.casefold())


def _name(prompt: str) -> str:
    """The prompt's first words, and what tells it from others that begin so."""
    words = re.findall(r"[a-z0-9]+", prompt.lower())
    digest = hashlib.sha256(" ".join(_normal(prompt)).encode()).hexdigest()[:8]
    return "-".join(["-".join(words[:6])[:40].strip("-") or "task", digest])
