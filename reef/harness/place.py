"""Where an install lies, its lock, and writing into it: never outside, never through a link, each file in one step.

Knows nothing of agents or trees.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import platformdirs

from reef.core.reports import check_name
from reef.errors import BadRequest, Conflict, NotFound

PRIVATE = 0o600


def agents_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """``$REEF_HOME/agents``, else ``agents`` in the platform's data directory."""
    home = environ.get("REEF_HOME")
    return (Path(home).expanduser() if home else platformdirs.user_data_path("reef")).absolute() / "agents"


@dataclass(frozen=True, slots=True)
class Place:
    """The lasting folder of one agent and scenario. ``config`` is the agent's own, ``data`` takes what it keeps elsewhere."""

    agents: Path
    adapter: str
    scenario: str

    def __post_init__(self) -> None:
        """Both names are parts of a path."""
        for value, name in ((self.adapter, "adapter"), (self.scenario, "scenario")):
            if check_name(value, name) is None:
                raise BadRequest(f"{name} is empty", field=name)

    @property
    def root(self) -> Path:
        """Everything of this install."""
        return self.agents / self.adapter / self.scenario

    @property
    def config(self) -> Path:
        """The agent's configuration folder; its sessions live here or in ``data``, whatever is installed or undone."""
        return self.root / "config"

    @property
    def data(self) -> Path:
        """What an agent keeps outside its configuration folder."""
        return self.root / "data"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in this install: two runs that start at once update it one after the other."""
        self.agents.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.root.parent, self.root):
            make_folder(self.agents, folder.relative_to(self.agents).as_posix())
        with (self.root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON document of this install; None when there is none, or it cannot be read."""
        try:
            found = json.loads((self.root / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Replace a JSON document of this install; one that is the same stays untouched."""
        text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        if read_text(self.root / name) != text:
            write_text(self.root, name, text)

    def text(self, path: str) -> str | None:
        """A file of the agent's configuration folder; None when there is none."""
        return read_text(inside(self.root, f"config/{path}"))

    def put(self, path: str, text: str) -> None:
        """Write a file of the agent's configuration folder."""
        write_text(self.root, f"config/{path}", text)

    def drop(self, path: str) -> None:
        """Remove a file of the agent's configuration folder."""
        remove(self.root, f"config/{path}")


def installed(agents: Path, adapter: str) -> list[str]:
    """Scenarios that ``adapter`` is installed for, by name."""
    return sorted(path.parent.name for path in (agents / adapter).glob("*/manifest.json"))


def chosen(agents: Path, adapter: str, scenario: str | None) -> Place:
    """The install for ``scenario``, or the only one there is; raises NotFound or Conflict with what to type."""
    known = installed(agents, adapter)
    if not known or (scenario is not None and scenario not in known):
        for_whom = f" for scenario {scenario!r}" if scenario is not None and known else ""
        raise NotFound(
            f"{adapter} is not installed{for_whom}", hint=f"reef harness install {adapter}", code="not_installed"
        )
    if scenario is None and len(known) > 1:
        raise Conflict(
            f"{adapter} is installed for {', '.join(known)}", hint=f"choose: export REEF_SCENARIO={known[0]}"
        )
    return Place(agents, adapter, scenario or known[0])


def digest(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def read_text(path: Path) -> str | None:
    """A file's text, bytes that are none kept as they are; None when there is no file."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None


def inside(root: Path, relative: str) -> Path:
    """The path of ``relative`` below ``root``. Raises Conflict where it leads out, or a link stands in its way."""
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise Conflict(f"{relative!r} leads out of {root}", code="outside")
    path = root
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise Conflict(f"{path} is a link, and nothing is written through one", hint="remove it", code="link")
    return path


def make_folder(root: Path, relative: str) -> Path:
    """A folder below ``root`` for its owner only, with those above it."""
    path = inside(root, relative)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_text(root: Path, relative: str, text: str, mode: int = PRIVATE) -> None:
    """Write a file below ``root`` in one step, so that a reader or a crash meets the old one or the new one."""
    path = inside(root, relative)
    if path.parent != root:
        make_folder(root, path.parent.relative_to(root).as_posix())
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def remove(root: Path, relative: str) -> None:
    """Remove a file below ``root``, and the folders that are empty then; ``root`` itself stays."""
    path = inside(root, relative)
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == root or (folder.is_dir() and any(folder.iterdir())):
            return
        if folder.is_dir():
            folder.rmdir()


def leftovers(root: Path) -> list[str]:
    """Relative paths of what is below ``root`` and is no folder."""
    found = [path for path in root.rglob("*") if path.is_symlink() or not path.is_dir()]
    return sorted(path.relative_to(root).as_posix() for path in found)
