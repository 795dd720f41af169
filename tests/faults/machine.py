"""Faults of the machine itself: disks that can be cut off, filled and made read-only, and system calls that fail.

What this machine does not allow skips the test and says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.world import ROOT

_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
"""ioctl of ext4: from now on nothing reaches the disk, and what its journal holds in memory is lost."""
ERRNOS = ("EIO", "ENOSPC", "EINTR")


class Disk:
    """A file system of its own at ``path``. ``cut`` pulls the plug; what had not reached the disk is gone."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self.path = folder / "disk"
        self._image = folder / "image"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size_mb * 2**20)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))

    def mount(self, options: str = "loop") -> None:
        _run("mount", "-o", options, str(self._image), str(self.path))

    def remount(self, options: str) -> None:
        _run("mount", "-o", f"remount,{options}", str(self.path))

    def unmount(self) -> None:
        for _ in range(50):  # what was killed a moment ago may still be on its way out
            if subprocess.run(["umount", str(self.path)], capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        _run("umount", str(self.path))

    def cut(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def fill(self, leave_bytes: int = 0) -> Path:
        """Take all that is free but ``leave_bytes``; the file to remove again."""
        filler = self.path / "filler"
        with filler.open("ab", buffering=0) as file:
            while (free := shutil.disk_usage(self.path).free - leave_bytes) > 0:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, max(4096, free // 2))
                except OSError:
                    if free <= 65536:
                        break
        return filler


@contextlib.contextmanager
def disk(folder: Path, size_mb: int = 48) -> Iterator[Disk]:
    """A mounted ext4 in a file; skips where it cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    if shutil.which("mkfs.ext4") is None or shutil.which("mount") is None:
        pytest.skip("there is no mkfs.ext4 here")
    one = Disk(folder, size_mb)
    try:
        one.mount()
    except OSError as error:
        pytest.skip(f"no loop devices here: {error}")
    try:
        yield one
    finally:
        with contextlib.suppress(OSError):
            one.unmount()


class Strace:
    """System calls on the files of ``home`` that fail, the n-th of each thread: ``when`` is 3, or 3+ from there on.

    ``errno`` may be another fault that strace knows, for example delay_enter=100000 (microseconds).
    """

    def __init__(self, home: Path, log: Path, call: str, errno: str, when: str) -> None:
        names = ("", "-wal", "-shm", "-new", "-new-wal", "-new-shm", "-reserve", "-reserve-new")
        files = [home, *(home / f"reef.db{name}" for name in names)]
        files += [home / name for name in ("token", "daemon.json", "lock", "logs/reef.jsonl", ".token", ".daemon.json")]
        fault = errno if "=" in errno else f"error={errno}"
        self._log = log
        self.command = ["strace", "-f", "-qq", "-o", str(log)]
        for path in files if not call.startswith(("rename", "fsync")) else ():  # files whose names are new each time
            self.command += ["-P", str(path)]
        self.command += ["-E", "PYTHONDONTWRITEBYTECODE=1"]
        self.command += ["-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={when}"]

    def injected(self) -> int:
        """How many calls have failed, or were held up, because of us."""
        said = self._log.read_text(errors="replace") if self._log.exists() else ""
        return said.count("(INJECTED)") + said.count("(DELAYED)")

    @contextlib.contextmanager
    def attached(self, pid: int) -> Iterator[None]:
        """While it is attached to all threads of a process that runs."""
        tracer = subprocess.Popen([*self.command, "-p", str(pid)], stderr=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 20
            while not _all_traced(pid, tracer.pid):
                assert tracer.poll() is None and time.monotonic() < deadline, "strace did not attach"
                time.sleep(0.01)
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate()


def needs_strace() -> None:
    """Skip where calls cannot be made to fail."""
    if sys.platform != "linux" or shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    if subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        pytest.skip("strace may not trace here")


def _all_traced(pid: int, tracer: int) -> bool:
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return all(f"TracerPid:\t{tracer}\n" in (task / "status").read_text() for task in tasks)


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        raise OSError(f"{' '.join(command)}: {ran.stderr.strip()}")


def python(*arguments: str, under: Sequence[str] = (), timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a module of this repository to its end."""
    return subprocess.run(
        [*under, sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )
