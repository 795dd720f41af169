"""Where episodes run: child processes of this machine, or tasks of a Ray cluster. Both run the same module."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from reef.errors import BadConfig
from reef.evolve.episode import Result, Spec

_GRACE_S = 400.0
"""More than a check may take; an episode ends its agent itself."""
_LOOK_S = 0.2
_ENDING_S = 5.0
_INTERRUPTED = Result(None, "the episode was interrupted")

GoOn = Callable[[], bool]


class Executor(Protocol):
    """Runs episodes; called from several threads at a time."""

    def run(self, spec: Spec, go_on: GoOn) -> Result:
        """One episode, to its end, or until ``go_on`` says no; trouble is a result."""
        ...


class LocalExecutor:
    """One child process an episode. A child ends when this process does: it watches its standard input."""

    def run(self, spec: Spec, go_on: GoOn) -> Result:
        """In a child process."""
        return run_child(spec, go_on)


class RayExecutor:
    """Episodes as Ray tasks; the tasks' folder and the daemon's address must be reachable from every machine."""

    def __init__(self, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise BadConfig("executor: ray, but ray is not installed", hint="pip install 'reefd[ray]'") from error
        self._ray: Any = ray
        if not ray.is_initialized():
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        self._task = ray.remote(num_cpus=1, max_retries=0)(run_child)

    def run(self, spec: Spec, go_on: GoOn) -> Result:
        """As a Ray task; one whose machine is lost is trouble, and is run again by whoever asked."""
        try:
            task = self._task.remote(spec)
            while not self._ray.wait([task], timeout=_LOOK_S)[0]:
                if not go_on():
                    self._ray.cancel(task, force=True)  # its worker ends, and the episode with it
                    return _INTERRUPTED
            found: Result = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return Result(None, f"ray: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
        return found


def run_child(spec: Spec, go_on: GoOn = lambda: True) -> Result:
    """Run one episode in a process of its own."""
    return in_child("spec", asdict(spec), go_on, float(spec.task["timeout_s"]))


def in_child(what: str, given: Mapping[str, Any], go_on: GoOn, timeout_s: float = 0.0) -> Result:
    """Ask reef.evolve.episode for something in a process of its own; a check or a program may hang, however small it is."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as out:  # a pipe that nobody reads could hold it up
        child = subprocess.Popen(
            [sys.executable, "-m", "reef.evolve.episode"], stdin=subprocess.PIPE, stdout=out, stderr=said
        )
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({what: given}).encode() + b"\n")
            child.stdin.flush()  # and it stays open until the child is done
            until_s = time.monotonic() + timeout_s + _GRACE_S
            while not _ended(child, _LOOK_S):
                if not go_on():
                    return _INTERRUPTED
                if time.monotonic() > until_s:
                    return Result(None, "the episode did not end in time")
            out.seek(0)
            return Result(**json.loads(out.read()))
        except (ValueError, TypeError, OSError):
            said.seek(0)
            last = " ".join(said.read().decode("utf-8", "replace").split())[-400:]
            return Result(None, f"the episode's process ended with {child.poll()}: {last}")
        finally:
            with contextlib.suppress(OSError):
                child.stdin.close()  # it ends its agent and clears up
            if not _ended(child, _ENDING_S):
                child.kill()
                child.wait()


def _ended(child: subprocess.Popen[bytes], wait_s: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(wait_s)
    return child.returncode is not None
