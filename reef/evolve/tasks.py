"""Task folders: what agents are compared on. Reads and checks them; runs nothing.

    tasks/<name>/prompt.md     what the agent is asked
    tasks/<name>/setup/        files its work folder begins with (may be left out)
    tasks/<name>/check.py      or check.sh: run afterwards in the work folder, out of the agent's reach; its standard
                               input is what the agent printed, its answer
    tasks/<name>/task.toml     protected = true, timeout_s = 300, graded = true (may be left out)

A check exits with 0 for passed and 1 for failed; a graded one exits with 0 and prints the score, 0 to 1, as its last line.
Anything else is a broken check and no score.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reef.errors import BadConfig

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
_KEYS: dict[str, type] = {"protected": bool, "timeout_s": int, "graded": bool}
_READ_BYTES = 256 * 1024
_CHECKS = ("check.py", "check.sh")


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """One task. ``folder`` holds check and, where there is one, ``setup``; an agent sees the prompt and a copy of the setup."""

    name: str
    folder: Path
    prompt: str
    check: str
    protected: bool = False
    graded: bool = False
    timeout_s: int = 300
    setup: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the folder as it is called from everywhere."""
        return {**asdict(self), "folder": str(self.folder.resolve())}

    def texts(self) -> list[str]:
        """Every text of the task, which no proposal may copy: the prompt, the check, the setup."""
        found = [self.prompt]
        for file in sorted(self.folder.rglob("*")):
            if file.is_file() and file.stat().st_size <= _READ_BYTES:
                found.append(file.read_bytes().decode("utf-8", "replace"))
        return found


def read_tasks(folder: Path) -> tuple[TaskFolder, ...]:
    """All tasks below ``folder``, by name; raises BadConfig with the file that is wrong."""
    if not folder.is_dir():
        raise BadConfig(
            f"there is no folder of tasks at {folder.absolute()}",
            hint="a folder with a folder for each task, as examples/harness_evolve/tasks of a checkout has",
        )
    tasks = tuple(_read(one) for one in sorted(folder.iterdir()) if one.is_dir() and not one.name.startswith("."))
    if not tasks:
        raise BadConfig(f"{folder} holds no tasks", hint="a task is a folder with prompt.md and check.py or check.sh")
    return tasks


def _read(folder: Path) -> TaskFolder:
    if not _NAME.match(folder.name):
        raise BadConfig(f"{folder}: a task's name is lower-case letters, digits and hyphens")
    if links := [str(one) for one in folder.rglob("*") if one.is_symlink()]:
        raise BadConfig(f"{links[0]} is a link, and a task is copied", hint="put the file itself there")
    checks = [name for name in _CHECKS if (folder / name).is_file()]
    if len(checks) != 1:
        raise BadConfig(f"{folder} needs one of {' and '.join(_CHECKS)}, it has {len(checks)}")
    try:
        prompt = (folder / "prompt.md").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(
            f"{folder / 'prompt.md'} cannot be read: {error}", hint="write what the agent is asked"
        ) from None
    if not prompt:
        raise BadConfig(f"{folder / 'prompt.md'} is empty", hint="write what the agent is asked")
    given = _settings(folder / "task.toml")
    return TaskFolder(folder.name, folder, prompt, checks[0], setup=(folder / "setup").is_dir(), **given)


def _settings(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"{file}: {error}") from None
    for key, value in given.items():
        if key not in _KEYS:
            raise BadConfig(f"{file}: unknown key {key!r}", hint=f"known: {', '.join(_KEYS)}")
        if type(value) is not _KEYS[key] or (value == 0 and key == "timeout_s"):
            raise BadConfig(f"{file}: {key} = {value!r} is no {_KEYS[key].__name__} that can be used")
    return given
