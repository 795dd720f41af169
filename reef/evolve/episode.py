"""One episode: an agent on a tree does one task in a fresh root, and the task's check scores what it left.

    python -m reef.evolve.episode < asked.json > result.json      # {"spec": ...}, "untouched" or "preflight"

A process of its own, here or on another machine, that ends when its standard input does. Knows no gate and no proposals.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reef.errors import BadConfig, ReefError
from reef.evolve import sandbox
from reef.evolve.sandbox import CONFIG, DATA, HOME, PORT, SOCKET, WORK, Ended
from reef.harness.adapters import Adapter, adapter
from reef.harness.render import Binding, bind, environment, filled, render
from reef.harness.tree import Tree

if TYPE_CHECKING:
    from reef.evolve.door import Traffic

_CHECK_TIMEOUT_S = 300.0
_PREFLIGHT_S = 60.0
_KEPT_TRANSCRIPT = 2_000_000
_CANNOT_START = frozenset({126, 127})


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run. ``start`` is the agent's command, ``programs`` are folders it needs; ``keep`` is where transcripts go.

    ``task`` holds name, prompt, folder, check, graded, timeout_s and setup of a TaskFolder, with ``folder`` on this machine.
    """

    episode: str
    task: Mapping[str, Any]
    tree: Mapping[str, Any]
    adapter: str
    start: Sequence[str]
    programs: Sequence[str]
    seed: int
    url: str
    token: str = field(repr=False)
    scenario: str
    model: str
    keep: str
    max_calls: int = 50
    sandbox: str = "auto"


@dataclass(frozen=True, slots=True)
class Result:
    """``score`` in [0, 1]; None when the episode says nothing of the agent, with ``trouble`` in words.

    ``broken`` trouble comes again however often it is tried: a program that does not start, a check that is none.
    ``tokens`` are those of its model calls, None where that is not known.
    """

    score: float | None
    trouble: str | None = None
    broken: bool = False
    said: str = ""
    seconds: float = 0.0
    calls: int = 0
    transcript: str = ""
    sandboxed: bool = False
    reused: bool = False
    tokens: int | None = None


def preflight(start: Sequence[str], programs: Sequence[str], mode: str, root: Path) -> str | None:
    """What an agent's program says when it does not even tell its version, None when it does."""
    environ = {"HOME": str(root), "PATH": _path(start), "LANG": "C.UTF-8"}
    command = [*start, "--version"]
    if sandbox.wants_bubblewrap(mode):
        environ |= {"HOME": HOME, "PYTHONPATH": os.pathsep.join(_import_path())}
        binds = [(root, HOME, True), *((Path(one), one, False) for one in programs)]
        command = sandbox.wrapped(command, environ=environ, cwd=HOME, binds=binds)
    ended = sandbox.run(command, timeout_s=_PREFLIGHT_S, environ=environ, cwd=root)
    said = " ".join((ended.stderr or ended.stdout).split())[-400:]
    return None if ended.code == 0 else f"exit {ended.code}: {said or 'it said nothing'}"


def untouched(task: Mapping[str, Any], mode: str, root: Path) -> Result:
    """What a task's check says when nobody has done anything; ``task`` and ``mode`` as in a Spec."""
    _lay_out(task, root)
    return _score(task, 0, root, Result(None, sandboxed=sandbox.wants_bubblewrap(mode)), "")


def run_asked(asked: Mapping[str, Any], root: Path) -> Result:
    """Run it in the empty folder ``root``; trouble is a result, never an exception."""
    try:
        if "preflight" in asked:
            return Result(None, preflight(**asked["preflight"], root=root))
        if "untouched" in asked:
            return untouched(**asked["untouched"], root=root)
        return asyncio.run(_run(Spec(**asked["spec"]), root))
    except ReefError as error:
        return Result(None, error.message, broken=True)
    except OSError as error:
        return Result(None, f"{type(error).__name__}: {error}")


async def _run(spec: Spec, root: Path) -> Result:
    from reef.evolve.door import Door  # a server of its own, which only an episode's process needs

    agent = adapter(spec.adapter)
    boxed = sandbox.wants_bubblewrap(spec.sandbox)
    _lay_out(spec.task, root)
    headers = {
        "Authorization": f"Bearer {spec.token}",
        "x-reef-scenario": spec.scenario,
        "x-reef-session": spec.episode,
        "x-reef-tag-episode": spec.episode,
    }
    door = Door(spec.url, headers, spec.max_calls)
    os.chdir(root)  # an address of a socket may be 107 bytes long, and the folder for temporary files may be longer
    async with door.listening(Path("door.sock") if boxed else None) as port:
        url = f"http://127.0.0.1:{PORT if boxed else port}"
        ended = await asyncio.to_thread(_act, spec, agent, root, url, boxed)
    transcript = _keep(spec, agent, root, ended)
    trouble = _trouble(ended, door.traffic)
    result = Result(None, None, False, "", round(ended.seconds, 3), door.traffic.calls, transcript, boxed)
    if trouble is not None:
        words, broken = trouble
        return _with(result, trouble=words, broken=broken)
    return await asyncio.to_thread(_score, spec.task, spec.seed, root, result, ended.stdout)


def _lay_out(task: Mapping[str, Any], root: Path) -> None:
    for name in ("home", "work", "config", "data"):
        (root / name).mkdir()
    setup = Path(task["folder"]) / "setup"
    if task["setup"] and not setup.is_dir():  # another task than the one that was read at the start
        raise BadConfig(f"{setup} is gone", hint="put it back, or start the daemon again")
    if task["setup"]:
        shutil.copytree(setup, root / "work", dirs_exist_ok=True)


def _act(spec: Spec, agent: Adapter, root: Path, url: str, boxed: bool) -> Ended:
    """Write the tree and start the agent on it, headless."""
    config, data, home = (CONFIG, DATA, HOME) if boxed else (
        str(root / name) for name in ("config", "data", "home")
    )  # fmt: skip
    tree = Tree.from_dict(spec.tree)
    binding = Binding(url, "the-door-adds-it", spec.scenario, spec.model)
    once = {path: json.dumps(filled(template, binding.as_dict())) for path, template in agent.once.items()}
    for path, text in {**once, **render(tree, agent), **bind(tree, agent, binding)}.items():
        file = root / "config" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    launch = environment(
        tree, agent, binding, session=spec.episode, release="episode", folders={"config": config, "data": data}
    )
    said = agent.run.boxed if boxed and agent.run.boxed else agent.run.headless
    words = [filled(word, {"prompt": spec.task["prompt"]}) for word in said]
    command = [*spec.start, *launch.arguments, *words]
    environ = {
        "HOME": home,
        "PATH": _path(spec.start),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PYTHONDONTWRITEBYTECODE": "1",
        "REEF_SEED": str(spec.seed),
        **launch.env,
        **(agent.run.boxed_env if boxed else {}),
    }
    timeout_s = float(spec.task["timeout_s"])
    if not boxed:
        return sandbox.run(command, timeout_s=timeout_s, environ=environ, cwd=root / "work")
    inside = [sys.executable, "-m", "reef.evolve.bridge", SOCKET, str(PORT), "--", *command]
    binds = [
        sandbox.passwd(root),
        (root / "door.sock", SOCKET, True),
        *(
            (root / name, path, True)
            for name, path in (("home", HOME), ("work", WORK), ("config", CONFIG), ("data", DATA))
        ),
        *((Path(one), one, False) for one in spec.programs),
    ]
    environ["PYTHONPATH"] = os.pathsep.join(_import_path())
    return sandbox.run(
        sandbox.wrapped(inside, environ=environ, cwd=WORK, binds=binds), timeout_s=timeout_s, environ=None, cwd=None
    )


def _path(start: Sequence[str]) -> str:
    """The agent's own folder of programs (a Node.js, a Python), and the system's."""
    return os.pathsep.join(dict.fromkeys([str(Path(start[0]).parent), "/usr/local/bin", "/usr/bin", "/bin"]))


def _import_path() -> list[str]:
    import reef

    return [str(Path(reef.__file__).parents[1])]


def _trouble(ended: Ended, traffic: Traffic) -> tuple[str, bool] | None:
    """What makes an episode say nothing of the agent, and whether it would come again; None when it may be scored."""
    last = " ".join((ended.stderr or ended.stdout).split())[-400:]
    if ended.code in _CANNOT_START or (traffic.calls == 0 and ended.code != 0):
        return f"the agent did not start (exit {ended.code}): {last or 'it said nothing'}", True
    if traffic.outage is not None:
        return traffic.outage, False
    if traffic.calls == 0:
        return f"the agent made no model call: {last or 'it said nothing'}", True
    return None


def _score(task: Mapping[str, Any], seed: int, root: Path, result: Result, printed: str) -> Result:
    """Run the check on what the agent left and ``printed``, when nothing of the agent runs any more."""
    folder = Path(task["folder"])
    shell = "sh" if task["check"].endswith(".sh") else sys.executable
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp", "REEF_SEED": str(seed)}
    if result.sandboxed:
        with tempfile.TemporaryFile() as mark:
            command = sandbox.wrapped(
                sandbox.marking([shell, f"/episode/check/{task['check']}"], mark), environ=environ, cwd=WORK,
                binds=[sandbox.passwd(root), (root / "work", WORK, True), (folder, "/episode/check", False)],
            )  # fmt: skip
            ended = sandbox.run(command, timeout_s=_CHECK_TIMEOUT_S, environ=None, cwd=None, given=printed, mark=mark)
            if not mark.seek(0, os.SEEK_END):  # bubblewrap fails with 1, which a check says for "not passed"
                words = f"the check could not be started: {ended.stderr.strip()[-300:] or 'nothing was said'}"
                return _with(result, trouble=words, broken=True)
    else:
        command = [shell, str(folder / task["check"])]
        ended = sandbox.run(command, timeout_s=_CHECK_TIMEOUT_S, environ=environ, cwd=root / "work", given=printed)
    said = "\n".join(part for part in (ended.stdout.strip(), ended.stderr.strip()) if part)[-2000:]
    if ended.timed_out:
        return _with(result, trouble=f"the check took more than {_CHECK_TIMEOUT_S:.0f} s", broken=True, said=said)
    score: float | None = None
    if not task["graded"]:
        score = {0: 1.0, 1: 0.0}.get(ended.code)
    elif ended.code == 0:
        score = _number(ended.stdout)
    if score is None:
        want = "prints a number from 0 to 1 last" if task["graded"] else "exits with 0 or 1"
        said = said or "it said nothing"
        return _with(result, trouble=f"the check {want}, and it exited with {ended.code}: {said[-300:]}", broken=True)
    return _with(result, score=score, said=said)


def _number(text: str) -> float | None:
    try:
        score = float(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return score if math.isfinite(score) and 0.0 <= score <= 1.0 else None


def _keep(spec: Spec, agent: Adapter, root: Path, ended: Ended) -> str:
    """Copy what a person or a proposer reads afterwards: the agent's transcripts and what it printed."""
    keep = Path(spec.keep)
    keep.mkdir(parents=True, exist_ok=True)
    (keep / "stdout.txt").write_text(ended.stdout, encoding="utf-8")
    (keep / "stderr.txt").write_text(ended.stderr, encoding="utf-8")
    found = ""
    for base in (root / "config", root / "data"):
        for file in _files(base, agent.run.transcripts):
            if file.is_file() and not file.is_symlink() and file.resolve().is_relative_to(base.resolve()):
                found = f"transcript{file.suffix}"
                with file.open("rb") as source:
                    (keep / found).write_bytes(source.read(_KEPT_TRANSCRIPT))
    return found


def _files(base: Path, pattern: str) -> list[Path]:
    try:
        return sorted(base.glob(pattern)) if pattern else []
    except (OSError, RecursionError):  # the agent made folders that cannot be walked: it has no transcript
        return []


def _with(result: Result, **changed: Any) -> Result:
    return Result(**{**asdict(result), **changed})


def main() -> None:
    """Read what is asked from standard input, run, write the result; end at once when whoever asked is gone."""
    line = sys.stdin.readline()
    folder = tempfile.mkdtemp(prefix="reef-episode-")

    def watch() -> None:
        sys.stdin.read()
        sandbox.end_all()
        sandbox.remove(folder)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    sandbox.adopt()
    try:
        result = run_asked(json.loads(line), Path(folder))
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
        sys.stdout.flush()
    finally:
        sandbox.remove(folder)


if __name__ == "__main__":
    main()
