"""``reef verify``: what a state directory promises, tried and looked at on its own disk.

Kills are tried in a scratch folder beside the database, which itself is only read, also while a daemon uses it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from reef.core.artifacts import artifact_path
from reef.records.trial import kill_loops
from reef.store.damage import read_only, torn
from reef.store.trouble import damaged, store_error
from reef.store.verify import bodies, integrity, sync_times_ms
from reef.train.torch_runtime import artifacts

Progress = Callable[[str, int, int | None], None]
"""``(stage, done, total)``."""

_KILL_S, _FILE_S, _BODIES_S = 12.0, 8.0, 5.0
"""How long the parts may take by default, together well under half a minute."""
_ROOM_BYTES = 64 * 2**20
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Part:
    """One finding: ``checked`` things were acknowledged or looked at, ``lost`` of them are gone or damaged.

    ``state`` is ``ok``, ``lost`` or ``skipped``; ``message`` says how it was found out.
    """

    id: str
    state: str
    checked: int
    lost: int
    message: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "id": self.id,
            "state": self.state,
            "checked": self.checked,
            "lost": self.lost,
            "message": self.message,
            "fix": self.fix,
        }


def verify(home: Path, *, loops: int, everything: bool, seed: int, progress: Progress) -> Iterator[Part]:
    """The findings, one part after the other. ``everything`` takes as long as it takes; ``loops`` 0 kills nothing."""
    with _scratch(home) as folder:
        if shutil.disk_usage(folder).free < _ROOM_BYTES:
            yield Part("disk", "skipped", 0, 0, "fewer than 64 MB are free", "free some space")
        else:
            progress("writing", 0, None)
            yield _disk(folder)
            if loops:
                yield _kills(folder, loops, everything, seed, progress)
    database = home / "reef.db"
    if not database.exists():
        yield Part("database", "skipped", 0, 0, f"there is none at {database} yet")
        return
    progress("reading the database", 0, None)
    yield _file(home, database, _until(everything, _FILE_S))
    yield _bodies(database, _until(everything, _BODIES_S), progress)
    yield _artifacts(home, database, everything, progress)


@contextlib.contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """A folder below ``home``, which it shares the disk with; gone in the end, as are those of a verify that was killed."""
    for old in home.glob(".verify-*"):
        if not _lives(old.name.rpartition("-")[2]):
            shutil.rmtree(old, ignore_errors=True)
    folder = home / f".verify-{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _until(everything: bool, seconds: float) -> float:
    return time.monotonic() + (1e9 if everything else seconds)


def _disk(folder: Path) -> Part:
    times = sync_times_ms(folder)
    middle, slow = times[len(times) // 2], times[len(times) * 99 // 100]
    said = f"a write is on disk after {middle:.1f} ms (99 of 100 within {slow:.1f} ms): {1000 / middle:.0f} commits a second"
    return Part("disk", "ok", len(times), 0, said)


def _kills(folder: Path, loops: int, everything: bool, seed: int, progress: Progress) -> Part:
    database = folder / "trial.db"
    trial = kill_loops(
        database,
        loops,
        until=_until(everything, _KILL_S),
        seed=seed,
        tell=lambda done: progress("kill -9", done, loops),
    )
    wrong = integrity(database, _until(everything, _FILE_S))
    said = f"{trial.kills} writers were killed, {trial.at_points} of them inside a commit"
    if wrong not in ("ok", None):
        said += f"; the database they shared: {wrong}"
    lost = trial.lost > 0 or wrong not in ("ok", None)
    fix = "report it, with the seed; no such disk or file system should be trusted" if lost else ""
    return Part("kills", "lost" if lost else "ok", trial.acknowledged, trial.lost, said, fix)


def _file(home: Path, database: Path, until: float) -> Part:
    """The whole file; its log too, when no daemon has it open."""
    restore = (
        "nothing was changed; stop the daemon, keep a copy of the file, and restore a backup: reef restore FILE --force"
    )
    size_bytes = database.stat().st_size
    try:
        with FileLock(home / "lock").acquire(timeout=0):
            wrong = torn(database)
    except Timeout:
        wrong = None
    try:
        said = wrong or integrity(database, until)
    except sqlite3.Error as error:
        told = store_error(error, database, act="read")
        return Part("database", "lost", 1, 1, told.message, told.hint)
    if said is None:
        return Part(
            "database", "skipped", 0, 0, f"{size_bytes / 1e6:.0f} MB take longer than this", "reef verify --all"
        )
    if said != "ok":
        return Part("database", "lost", 1, 1, damaged(database, said).message, restore)
    return Part("database", "ok", 1, 0, f"{size_bytes / 1e6:.1f} MB, integrity_check ok")


def _bodies(database: Path, until: float, progress: Progress) -> Part:
    try:
        found = bodies(database, until, lambda done, total: progress("reading bodies", done, total))
    except sqlite3.Error as error:
        told = store_error(error, database, act="read")
        return Part("records", "lost", 0, 0, told.message, told.hint)
    said = f"all bodies of {found.checked} records can be read"
    if found.damaged:
        more = f" and {len(found.damaged) - _SHOWN} more" if len(found.damaged) > _SHOWN else ""
        said = f"bodies are damaged of {', '.join(found.damaged[:_SHOWN])}{more}"
    if found.checked < found.total:
        said += f" (the newest of {found.total}; all with: reef verify --all)"
    fix = "the other records can be read; restore a backup: reef restore FILE --force" if found.damaged else ""
    return Part("records", "lost" if found.damaged else "ok", found.checked, len(found.damaged), said, fix)


def _artifacts(home: Path, database: Path, everything: bool, progress: Progress) -> Part:
    """Every artifact that is there against its manifest, and whether those that are served are there."""
    heads: list[tuple[str, str, str]] = []
    with contextlib.suppress(sqlite3.Error), contextlib.closing(read_only(database)) as connection:  # told already
        heads = connection.execute(
            "SELECT s.name, r.release_id, r.content_id FROM scenarios s JOIN releases r ON r.scenario_id = s.id"
            " AND r.release_id = s.head WHERE r.content_id NOT LIKE 'base-%'"
        ).fetchall()
    folders = sorted(path.name for path in (home / "artifacts").glob("[!.]*") if path.is_dir())
    wrong = [
        f"{release} of {scenario} is gone ({content_id})"
        for scenario, release, content_id in heads
        if not artifact_path(home, content_id).is_dir()
    ]
    for done, content_id in enumerate(folders, start=1):
        progress("reading artifacts", done, len(folders))
        if (harm := artifacts.damage(home, content_id, everything=everything)) is not None:
            wrong.append(f"{content_id}: {harm}")
    if not folders and not wrong:
        return Part("artifacts", "ok", 0, 0, "none yet")
    said = "; ".join(wrong) if wrong else f"{len(folders)} match their manifests"
    fix = (
        "nothing was changed; go back to another release: reef rollback, or restore a backup: reef restore FILE --force"
    )
    return Part("artifacts", "lost" if wrong else "ok", len(folders), len(wrong), said, fix if wrong else "")
