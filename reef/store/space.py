"""Room on the disk: what is free, and a file that reserves some, given up first when nothing is left.

A full disk cannot even delete: SQLite writes a deletion into its log first. Called by the writer on its own thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

FLOOR_BYTES = 2 * 2**20
"""Less than this is a full disk, before it is: what must still be written then finds room."""


class Room:
    """The room beside one database. ``reserve_bytes`` 0 reserves nothing."""

    def __init__(self, database: Path, reserve_bytes: int) -> None:
        self.path = database.with_name(f"{database.name}-reserve")
        self._folder = database.parent
        self._reserve_bytes = reserve_bytes
        self.enough_bytes = reserve_bytes + 2 * FLOOR_BYTES
        """With this a disk that was full is not any more."""

    def free_bytes(self) -> int:
        """What others than root may still take; endless where nobody can say."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return sys.maxsize

    def reserved(self) -> bool:
        """True where what is to be reserved is, or nobody can say."""
        try:
            return not self._reserve_bytes or self.path.exists()
        except OSError:
            return True

    def give_up(self) -> None:
        """Free what is reserved."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def reserve(self) -> None:
        """Reserve again, where as much as the floor stays free beside it."""
        if self.reserved() or self.free_bytes() < self.enough_bytes:
            return
        fresh = self.path.with_name(f"{self.path.name}-new")
        try:
            with fresh.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._reserve_bytes)
                else:
                    file.write(bytes(self._reserve_bytes))
            fresh.rename(self.path)
        except OSError:  # no room after all, or none to be had this way: the store works without
            with contextlib.suppress(OSError):
                fresh.unlink()
