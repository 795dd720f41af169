"""What SQLite's errors mean to whoever asked: one place that turns them into ours, with what to do next.

Pure functions. Called where a statement of ours may fail: the writer, readers, and whatever opens a file.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from reef.errors import ReefError, StoreFull, Unavailable
from reef.store.holders import holders

_KEPT = "nothing is deleted; stop the daemon, keep a copy of the file, and restore a backup: reef restore FILE --force"


def store_error(error: sqlite3.Error | MemoryError, path: Path | None, *, act: str = "write") -> ReefError:
    """The error a caller sees for what SQLite said while it was to ``act`` on ``path``."""
    name, where = getattr(error, "sqlite_errorname", ""), path or "memory"
    kind = "_".join(name.split("_")[:2])  # SQLITE_IOERR_FSYNC is a kind of SQLITE_IOERR
    match kind:
        case "SQLITE_FULL":
            return StoreFull("the disk is full", hint="free some space; recording resumes by itself")
        case "SQLITE_CORRUPT" | "SQLITE_NOTADB":
            return damaged(path, str(error))
        case "SQLITE_BUSY" | "SQLITE_LOCKED":
            return Unavailable(
                f"another program{holders(path) if path is not None else ''} holds {where} for itself",
                hint="end its transaction, or close it: for example a database shell",
                code="store_busy",
            )
        case "SQLITE_IOERR" | "SQLITE_READONLY" | "SQLITE_PERM" | "SQLITE_CANTOPEN" | "SQLITE_PROTOCOL":
            if kind == "SQLITE_READONLY" or (act == "write" and _read_only(path)):
                return Unavailable(
                    f"{where}, or its file system, is read-only",
                    hint="see why with: ls -l, dmesg; make it writable again, writes go on by themselves",
                    code="store_read_only",
                )
            if kind == "SQLITE_CANTOPEN":
                return Unavailable(
                    f"{where} cannot be opened: {error}",
                    hint="see its permissions, and how many files a process may open: ulimit -n",
                    code="store_unopenable",
                )
            return Unavailable(
                f"the disk reports an error on {where}: {error} ({name})",
                hint="see: dmesg, quota, ulimit -f; the file is opened anew and checked before anything is written again",
                code="store_io_error",
            )
    code = "store_unwritable" if act == "write" else "store_unreadable"
    return Unavailable(f"the store cannot {act}: {error}", hint="see: reef doctor", code=code)


def damaged(path: Path | None, what: str) -> Unavailable:
    """The refusal of a file that is not whole."""
    return Unavailable(f"{path} is damaged: {what}", hint=_KEPT, code="store_damaged")


def needs_reopening(error: ReefError) -> bool:
    """True when what the connection holds cannot be trusted any more: no commit is tried again on it."""
    return error.code in ("store_damaged", "store_io_error", "store_read_only", "store_unopenable")


def again(error: ReefError) -> ReefError:
    """The same error for another caller: one that is raised twice would collect both traces."""
    return type(error)(error.message, hint=error.hint, code=error.code)


def _read_only(path: Path | None) -> bool:
    """True when the file system says so itself."""
    try:
        return path is not None and bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    except OSError:
        return False
