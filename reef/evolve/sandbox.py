"""Where an agent under test runs: bubblewrap with no network and nothing of the host's home, or, without it, a bare process.

Builds command lines and runs them to their end or their deadline; knows nothing of agents, trees or scores.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import reef
from reef.errors import BadConfig

HOME, WORK, CONFIG, DATA, SOCKET, PORT = (
    "/episode/home", "/episode/work", "/episode/config", "/episode/data", "/episode/door.sock", 8900,
)  # fmt: skip
"""Where an agent in the sandbox finds what is its own and the model: below a name that no host has."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ssl", "/etc/ca-certificates", "/etc/alternatives",
           "/etc/ld.so.cache")  # fmt: skip
_PASSWD = "agent:x:{uid}:{gid}::/episode/home:/bin/sh\n"
_LARGEST_FILE = 2 * 2**30
_KEPT_OUTPUT = 200_000
_SET_CHILD_SUBREAPER = 36
_running: set[int] = set()
"""Process groups of this process's commands."""
_adopts = False
"""What they leave behind becomes a child of this process."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. ``timed_out``: it was killed at its deadline. Outputs hold the end of what was written."""

    code: int
    timed_out: bool
    seconds: float
    stdout: str
    stderr: str


@functools.cache
def bubblewrap() -> str | None:
    """Why bubblewrap cannot be used here, None when it can. Tried once: it may be there and not be allowed."""
    if sys.platform != "linux":
        return "bubblewrap is for Linux"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (apt install bubblewrap)"
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"bubblewrap is not allowed here: {tried.stderr.strip()}"


def wants_bubblewrap(mode: str) -> bool:
    """``bwrap`` asks for it, ``none`` goes without, ``auto`` takes it where it works."""
    why = bubblewrap()
    if mode == "bwrap" and why is not None:
        raise BadConfig(f"sandbox: bwrap, but {why}", hint="install it, or choose sandbox: auto")
    return mode != "none" and why is None


def wrapped(
    command: Sequence[str], *, environ: Mapping[str, str], cwd: str, binds: Iterable[tuple[Path, str, bool]]
) -> list[str]:
    """``command`` inside bubblewrap. ``binds`` are host path, path inside, writable. Nothing else of the host is there
    but the system's programs and this Python, all read-only. A root keeps no capability: it could mount them writable."""
    line = ["bwrap", "--unshare-all", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]
    line += ["--hostname", "episode"]
    line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/run"]
    for path in (
        "/proc/sys",
        "/proc/sysrq-trigger",
    ):  # the kernel's own settings know no namespace, and a root owns them
        line += ["--ro-bind-try", path, path]
    for path in _SYSTEM:
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            line += ["--ro-bind", path, path]
    for program in _python():
        line += ["--ro-bind", str(program.resolve()), str(program)]
    for outside, inside, writable in binds:
        line += ["--bind" if writable else "--ro-bind", str(outside), inside]
    for name, value in environ.items():
        line += ["--setenv", name, value]
    return [*line, "--chdir", cwd, "--", *command]


_MARK = "import os, sys; at = int(sys.argv[1]); os.write(at, b'+'); os.close(at); os.execvp(sys.argv[2], sys.argv[2:])"


def marking(command: Sequence[str], mark: IO[bytes]) -> list[str]:
    """``command``, writing a byte to ``mark`` when it is about to begin: what fails before is not its doing."""
    return [sys.executable, "-c", _MARK, str(mark.fileno()), *command]


def remove(folder: str) -> None:
    """Remove what an agent may have filled: folders deeper than Python goes, or closed to their owner."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    for command in (["rm", "-rf", folder], ["chmod", "-R", "u+rwX", folder], ["rm", "-rf", folder]):
        if os.path.lexists(folder):
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _python() -> list[Path]:
    """Folders that this interpreter and this package need, outermost only."""
    found = {Path(sys.prefix), Path(sys.base_prefix), Path(reef.__file__).parent}
    found = {path for path in found if not path.is_relative_to("/usr")}
    return sorted(path for path in found if not any(path != other and path.is_relative_to(other) for other in found))


def run(
    command: Sequence[str], *, timeout_s: float, environ: Mapping[str, str] | None, cwd: Path | None, given: str = "",
    mark: IO[bytes] | None = None,
) -> Ended:  # fmt: skip
    """Run to the end or the deadline, when its process group is killed, and after ``adopt`` everything it started.
    ``environ`` None, for bubblewrap: nothing but where programs are found, because who is inside can read the environment
    that bubblewrap was started with.

    It reads ``given`` from its standard input and has ``mark`` open. Input and output are files: a process left behind
    cannot keep a pipe open.
    """
    limited = (
        ["prlimit", f"--fsize={_LARGEST_FILE}", "--core=0", "--", *command] if shutil.which("prlimit") else command
    )
    if environ is None:
        environ = {"PATH": os.environ.get("PATH", os.defpath)}
    with tempfile.TemporaryFile() as into, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        into.write(given.encode("utf-8", "replace"))
        into.seek(0)
        began = time.monotonic()
        child = subprocess.Popen(
            limited, stdin=into, stdout=out, stderr=err, env=environ, cwd=cwd, start_new_session=True,
            pass_fds=() if mark is None else (mark.fileno(),),
        )  # fmt: skip
        timed_out = False
        _running.add(child.pid)
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _running.discard(child.pid)
            _kill(child.pid)
            child.wait()
            _kill_left()
        return Ended(child.returncode, timed_out, time.monotonic() - began, _tail(out), _tail(err))


def adopt() -> None:
    """From here on commands of this process, which has no other children, leave nothing behind. For Linux (prctl(2))."""
    global _adopts
    if sys.platform == "linux":
        _adopts = ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def end_all() -> None:
    """Kill what runs: whoever asked for it is gone."""
    for group in list(_running):
        _kill(group)
    _kill_left()


def _kill_left() -> None:
    """Kill what was left behind. A killed one's children become this process's, so it looks again until there are none."""
    while _adopts and (left := _children()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # a group lives on as long as anybody is in it
        os.killpg(group, signal.SIGKILL)


def _children() -> list[int]:
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _KEPT_OUTPUT))
    return file.read().decode("utf-8", "replace")


def passwd(folder: Path) -> tuple[Path, str, bool]:
    """A bind of an ``/etc/passwd`` that holds the agent alone."""
    file = folder / "passwd"
    file.write_text(_PASSWD.format(uid=os.getuid(), gid=os.getgid()), encoding="utf-8")
    return file, "/etc/passwd", False
