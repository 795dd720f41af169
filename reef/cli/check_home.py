"""What doctor finds in the state directory and in what lies around it, and how to mend it. Knows no daemon."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from reef.cli.check import Check, State
from reef.cli.common import size

_SLOW_FSYNC_MS = 100.0
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 5e9, 1e9
_BIG_LOG_BYTES, _KEPT_LOG_BYTES = 50 * 2**20, 2**20
_BIG_WAL_BYTES = 256 * 2**20
_AHEAD_S, _EARLIEST = 60.0, 1_700_000_000.0
_PROBE = ".doctor"
_PRIVATE = (
    "token",
    "daemon.json",
    "reef.db",
    "reef.db-wal",
    "reef.db-shm",
    "last_call.json",
    "last_start.json",
    "logs",
    "artifacts",
    "engine",
    "episodes",
    "drafts",
)


def home_checks(home: Path) -> Iterator[Check]:
    """Every finding about ``home``, in the order in which they are shown."""
    yield _home(home)
    if home.is_dir():
        yield _permissions(home)
        yield from _disk(home)
        yield _database(home)
        yield _logs(home / "logs")
    yield _leftovers({home.parent, home, Path.cwd()})
    yield _clock(home)


def _home(home: Path) -> Check:
    if (home.exists() or home.is_symlink()) and not home.is_dir():
        said = f"a link to {os.readlink(home)}, which is not there" if home.is_symlink() else "not a directory"
        return Check("home", "error", f"{home} is {said}", "choose another with --home")
    nearest = next((one for one in (home, *home.absolute().parents) if one.exists()), home)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Check(
            "home",
            "error",
            f"{nearest} is not writable",
            f"make it writable, or choose another than {home} with --home",
        )
    if home.exists() and hasattr(os, "getuid") and home.stat().st_uid != os.getuid():
        return Check("home", "warning", f"{home} belongs to another user", "run Reef as its owner")
    return Check("home", "ok", str(home) if home.exists() else f"{home} (made at the first start)")


def _permissions(home: Path) -> Check:
    wrong = [path for name in _PRIVATE if (path := home / name).exists() and path.stat().st_mode & 0o077]
    wrong = [home, *wrong] if home.stat().st_mode & 0o077 else wrong
    if not wrong:
        return Check("permissions", "ok", "for your eyes only")

    def repair() -> str:
        for path in wrong:
            path.chmod(0o700 if path.is_dir() else 0o600)
        return f"changed {len(wrong)}"

    shown = ", ".join(
        f"{path.name if path != home else path} {stat.S_IMODE(path.stat().st_mode):o}" for path in wrong[:4]
    )
    fix = "chmod -R go= " + str(home)
    return Check("permissions", "warning", f"others may read {shown}", fix, repair)


def _disk(home: Path) -> Iterator[Check]:
    free = shutil.disk_usage(home).free
    state: State = "ok" if free > _LITTLE_BYTES else "warning" if free > _TOO_LITTLE_BYTES else "error"
    hint = "" if state == "ok" else "free some space, or lower reef.retention_gb and reef.keep_releases"
    yield Check("disk", state, f"{size(free)} free", hint)
    path, times = home / _PROBE, list[float]()
    try:
        with path.open("wb") as file:
            for _ in range(15):
                file.write(b"x" * 4096)
                file.flush()
                start = time.perf_counter()
                os.fsync(file.fileno())
                times.append((time.perf_counter() - start) * 1000)
    except OSError as error:
        yield Check("fsync", "error", f"{home} cannot be written: {error.strerror}", "see: reef doctor's lines above")
        return
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    median_ms = sorted(times)[len(times) // 2]
    said = f"{median_ms:.1f} ms, at worst {max(times):.1f} ms: what each answer waits for"
    slow = median_ms > _SLOW_FSYNC_MS
    yield Check("fsync", "warning" if slow else "ok", said, "put --home on a faster disk" if slow else "")


def _database(home: Path) -> Check:
    path, wal = home / "reef.db", home / "reef.db-wal"
    if not path.exists():
        return Check("database", "ok", "none yet")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(connection):
            said = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        fix = "keep a copy of the directory, then: reef restore FILE --force (moves this one aside)"
        return Check("database", "error", f"damaged: {said}", fix)
    log_bytes = wal.stat().st_size if wal.exists() else 0
    if log_bytes > _BIG_WAL_BYTES:
        said = f"sound, but its log is {size(log_bytes)}: a program that reads it has stayed open"
        return Check("database", "warning", said, "close it; the daemon then shrinks the log by itself")
    return Check("database", "ok", f"sound, {size(path.stat().st_size + log_bytes)}")


def _logs(folder: Path) -> Check:
    big = [path for path in sorted(folder.glob("*.log")) if path.stat().st_size > _BIG_LOG_BYTES]
    if not big:
        total = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
        return Check("logs", "ok", size(total))

    def repair() -> str:
        for path in big:  # cut in place: the program that writes it keeps it open
            with path.open("rb+") as file:
                file.seek(-_KEPT_LOG_BYTES, os.SEEK_END)
                kept = file.read()
                file.seek(0)
                file.truncate()
                file.write(kept.partition(b"\n")[2])
        return "cut " + ", ".join(path.name for path in big)

    shown = ", ".join(f"{path.name} {size(path.stat().st_size)}" for path in big)
    return Check("logs", "warning", shown, f"cut {folder} to the last {size(_KEPT_LOG_BYTES)} of each", repair)


def _leftovers(folders: set[Path]) -> Check:
    """What a killed backup or restore left where such things are made."""
    from reef.daemon.workplace import clear_leftovers, leftovers

    found = [path for folder in sorted(folders) for path in leftovers(folder)]
    if not found:
        return Check("leftovers", "ok", "none")

    def repair() -> str:
        for folder in folders:
            clear_leftovers(folder)
        return f"removed {len(found)}"

    shown = ", ".join(map(str, found[:3]))
    said = f"a backup or restore that was killed left prompts and answers in {shown}"
    return Check("leftovers", "warning", said, f"rm -r {' '.join(map(shlex.quote, map(str, found)))}", repair)


def _clock(home: Path) -> Check:
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.05)
    drift_s = abs((time.time() - wall) - (time.monotonic() - steady))
    if wall < _EARLIEST:
        return Check("clock", "error", f"it says {time.strftime('%Y-%m-%d', time.gmtime(wall))}", "set the clock")
    if drift_s > 0.05:
        return Check(
            "clock", "warning", f"it jumped by {drift_s:.2f} s just now", "see that only one program sets the clock"
        )
    newest = (
        max((path.stat().st_mtime for path in home.glob("*") if path.exists()), default=0.0) if home.is_dir() else 0.0
    )
    if newest > wall + _AHEAD_S:
        said = f"files in {home} are {newest - wall:.0f} s ahead of it: it was set back, or the disk's server has another time"
        return Check(
            "clock", "warning", said, "set the clock; order and receipts do not depend on it, retention by age does"
        )
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))
