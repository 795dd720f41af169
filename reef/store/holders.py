"""Which other programs have a database open at this moment, by name and number, where the system tells.

Only reads what the system says: to open the file would drop the locks that this process has on it.
"""

from __future__ import annotations

import os
from pathlib import Path

_SHOWN = 3


def holders(database: Path) -> str:
    """`` (sqlite3, pid 7)`` for a message; empty where nobody is known."""
    found: dict[int, str] = {}
    try:
        inode = str(database.with_name(f"{database.name}-shm").stat().st_ino)
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:  # 1: POSIX  ADVISORY  READ 4711 fe:00:5514207 123 123
        words = line.split()
        if len(words) < 8 or words[1] != "POSIX" or words[5].rpartition(":")[2] != inode or int(words[6]) >= 128:
            continue  # 128 is held by everybody who has it open
        pid = int(words[4])
        if pid not in (os.getpid(), -1):
            try:
                found[pid] = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
            except OSError:
                found[pid] = "a program"
    shown = ", ".join(f"{name}, pid {pid}" for pid, name in list(found.items())[:_SHOWN])
    return f" ({shown})" if shown else ""
