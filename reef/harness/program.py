"""Installs an agent's program, and a Node.js it runs on, into Reef's own directory. Nothing outside of it is written.

npm runs with a home and a cache of its own; the user's npm settings (registry, proxy, certificates) are read, never changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from reef.errors import ReefError
from reef.harness.adapters import Adapter
from reef.harness.place import make_folder
from reef.harness.render import filled

NODE_VERSION = "22.23.3"
"""The Node.js that is installed where the machine has none that is new enough."""

Progress = Callable[[str, int, int | None], None]
"""``(stage, done bytes, total bytes)``."""

_OFFLINE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ERR_SOCKET|network", re.I)
_NPM_S, _VERSION_S, _POLL_S = 900.0, 60.0, 0.3


class NotInstalled(ReefError):
    """A program could not be installed, or does not start."""

    code = "program_not_installed"


def program_folder(agents: Path, adapter: Adapter) -> Path:
    """Where the program of an adapter lies, shared by its scenarios."""
    return agents / "programs" / f"{adapter.name}-{adapter.program.version}"


def start_of(agents: Path, adapter: Adapter) -> list[str]:
    """The command that starts the agent; raises NotInstalled when a part of it is missing."""
    values = {"program": str(program_folder(agents, adapter)), "python": sys.executable, "node": ""}
    if "{node}" in adapter.program.start:
        found = find_node(agents, adapter.program.node)
        if found is None:
            raise _missing(adapter, f"Node.js {adapter.program.node} or newer")
        values["node"] = found
    start: list[str] = [filled(word, values) for word in adapter.program.start]
    if not Path(start[0]).exists() or (adapter.program.package and not program_folder(agents, adapter).is_dir()):
        raise _missing(adapter, start[0])
    return start


def ensure(agents: Path, adapter: Adapter, progress: Progress) -> bool:
    """Install what is missing of the program; True when something was. Raises NotInstalled with the cause and a way out."""
    program = adapter.program
    if not program.package:
        return False
    fresh = False
    with _installing(agents):
        if "{node}" in program.start and find_node(agents, program.node) is None:
            _install(agents, f"node-{NODE_VERSION}", f"node@{NODE_VERSION}", True, 185, progress, lambda folder: None)
            fresh = True
        folder = program_folder(agents, adapter)
        if not folder.is_dir():
            package, scripts = f"{program.package}@{program.version}", program.scripts
            check = lambda made: _preflight(agents, adapter, made)  # noqa: E731
            _install(agents, folder.name, package, scripts, program.size_mb, progress, check)
            fresh = True
    return fresh


def find_node(agents: Path, minimum: str) -> str | None:
    """The machine's Node.js when it is new enough, else Reef's own, else None."""
    there = shutil.which("node")
    if there is not None and _version_of(there) >= _numbers(minimum):
        return there
    ours = agents / "programs" / f"node-{NODE_VERSION}" / "node_modules" / "node" / "bin" / "node"
    return str(ours) if ours.is_file() else None


def remove_programs(agents: Path, adapter: Adapter) -> int:
    """Remove the programs of an adapter that nobody uses any more, and Node.js with the last one; returns how many."""
    programs = agents / "programs"
    doomed = [one for one in programs.glob(f"{adapter.name}-[0-9]*") if one.is_dir()]
    others = [one for one in programs.glob("*") if one not in doomed and not one.name.startswith((".", "node-"))]
    if not others:
        doomed += programs.glob("node-*")
    for one in doomed:
        shutil.rmtree(one)
    if programs.is_dir() and not others:
        shutil.rmtree(programs)
    return len(doomed)


# -- inside


@contextlib.contextmanager
def _installing(agents: Path) -> Iterator[None]:
    make_folder(agents, "programs")
    with (agents / "programs" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in (agents / "programs").glob(".*-*"):  # of an install that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield


def _install(
    agents: Path,
    name: str,
    package: str,
    scripts: bool,
    size_mb: int,
    progress: Progress,
    check: Callable[[Path], None],
) -> None:
    """npm install into a folder beside, checked, then renamed: a program is there as a whole or not at all."""
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled(
            f"npm is needed to install {package}, and there is none",
            hint="install Node.js with npm (any version from 18), or use an agent without it: reef harness install minimal",
            code="no_npm",
        )
    programs = agents / "programs"
    with (
        tempfile.TemporaryDirectory(prefix=".new-", dir=programs) as made,
        tempfile.TemporaryDirectory(prefix=".home-", dir=programs) as home,
    ):
        cache = os.environ.get("REEF_NPM_CACHE") or str(Path(home) / "cache")
        environ = own_home(Path(home), cache)
        # npm would look for its global settings below the prefix it is given, and not find them there.
        asked = subprocess.run(
            [npm, "config", "get", "globalconfig"], env=environ, cwd=made, capture_output=True, text=True,
            timeout=_VERSION_S, check=False,
        )  # fmt: skip
        environ.setdefault("npm_config_globalconfig", asked.stdout.strip())
        command = [npm, "install", "--prefix", made, "--global=false", "--no-audit", "--no-fund", "--loglevel=error"]
        command += [f"--ignore-scripts={'false' if scripts else 'true'}", package]
        with tempfile.TemporaryFile(dir=home) as said:
            child = subprocess.Popen(
                command,
                cwd=made,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
            try:
                _watch(child, Path(made), f"installing {package}", size_mb * 10**6, progress)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
            said.seek(0)
            text = said.read().decode("utf-8", "replace").strip()
        if child.returncode != 0:
            raise _npm_failed(package, text)
        check(Path(made))
        os.rename(made, programs / name)
        Path(made).mkdir()  # for the end of the context, which removes it


def _watch(child: subprocess.Popen[bytes], folder: Path, stage: str, total: int, progress: Progress) -> None:
    deadline = time.monotonic() + _NPM_S
    progress(stage, 0, total or None)
    while True:
        try:
            child.wait(_POLL_S)
            return
        except subprocess.TimeoutExpired:
            size = _size(folder)
            progress(stage, size, max(total, size) if total else None)
        if time.monotonic() > deadline:
            raise NotInstalled(f"{stage} took more than {_NPM_S:.0f} s", hint="try again; what was fetched is not kept")


def _size(folder: Path) -> int:
    """Bytes of all files below, while others write there."""
    size = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += Path(base, name).lstat().st_size
    return size


def own_home(home: Path, cache: str | None = None) -> dict[str, str]:
    """The environment with every folder that programs write to by themselves moved below ``home``."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("REEF_", "npm_package_"))}
    real = Path(environ.get("HOME", "/nonexistent")) / ".npmrc"
    if "npm_config_userconfig" not in environ and real.is_file():
        environ["npm_config_userconfig"] = str(real)
    environ |= {"HOME": str(home), "npm_config_update_notifier": "false", "TMPDIR": str(home)}
    environ |= {f"XDG_{one}_HOME": str(home / one.lower()) for one in ("CONFIG", "DATA", "STATE", "CACHE")}
    if cache is not None:
        environ |= {"npm_config_cache": cache, "npm_config_logs_dir": str(home / "logs")}
    return environ


def _preflight(agents: Path, adapter: Adapter, made: Path) -> None:
    """The program must say its version; what it says instead is the error."""
    values = {"program": str(made), "python": sys.executable, "node": find_node(agents, adapter.program.node) or "node"}
    command = [filled(word, values) for word in adapter.program.start]
    with tempfile.TemporaryDirectory(prefix=".home-", dir=made.parent) as home:
        folders = {"config": home, "data": home}
        environ = own_home(Path(home)) | {name: filled(text, folders) for name, text in adapter.run.env.items()}
        try:
            ran = subprocess.run(
                [*command, "--version"], env=environ, cwd=home, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", timeout=_VERSION_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotInstalled(f"{adapter.name} was installed and does not start: {error}") from error
    if ran.returncode != 0:
        last = " ".join((ran.stderr or ran.stdout).strip().splitlines()[-3:])
        raise NotInstalled(f"{adapter.name} was installed and does not start: {last[:300]}", code="program_fails")


def _npm_failed(package: str, text: str) -> NotInstalled:
    lines = [line for line in text.splitlines() if "npm error" in line or "npm ERR!" in line] or text.splitlines()
    last = " ".join(line.split("error ", 1)[-1].strip() for line in lines[:4])[:300]
    if _OFFLINE.search(text):
        return NotInstalled(
            f"npm could not reach its registry for {package}: {last}",
            hint="look at the network, or set npm's registry or proxy: npm config list",
            code="offline",
        )
    return NotInstalled(
        f"npm could not install {package}: {last or 'it said nothing'}", hint="npm config list shows its settings"
    )


def _missing(adapter: Adapter, what: str) -> NotInstalled:
    return NotInstalled(
        f"the program of {adapter.name} is not there: {what}",
        hint=f"reef harness install {adapter.name}",
        code="program_missing",
    )


def _version_of(node: str) -> tuple[int, ...]:
    try:
        ran = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return _numbers(ran.stdout.strip().lstrip("v"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
