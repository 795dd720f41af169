"""Where episodes run: child processes of this machine, or tasks of a Ray cluster. Both run the same module."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import Any, Protocol

from reef.errors import BadConfig
from reef.evolve.episode import Result, Spec

_GRACE_S = 400.0
"""More than a check may take; an episode ends its agent itself."""


class Executor(Protocol):
    """Runs episodes; called from several threads at a time."""

    def run(self, spec: Spec) -> Result:
        """One episode, to its end; trouble is a result."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...


class LocalExecutor:
    """One child process an episode. A child ends when this process does: it watches its standard input."""

    def run(self, spec: Spec) -> Result:
        """In a child process."""
        return run_child(spec)

    def close(self) -> None:
        """Nothing is held."""


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

    def run(self, spec: Spec) -> Result:
        """As a Ray task; one whose machine is lost is trouble, and is run again by whoever asked."""
        try:
            found: Result = self._ray.get(self._task.remote(spec))
        except self._ray.exceptions.RayError as error:
            return Result(None, f"ray: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
        return found

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


def run_child(spec: Spec) -> Result:
    """Run one episode in a process of its own."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as out:  # a pipe that nobody reads could hold it up
        child = subprocess.Popen(
            [sys.executable, "-m", "reef.evolve.episode"], stdin=subprocess.PIPE, stdout=out, stderr=said
        )
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(asdict(spec)).encode() + b"\n")
            child.stdin.flush()  # and it stays open until the child is done
            child.wait(float(spec.task["timeout_s"]) + _GRACE_S)
            out.seek(0)
            return Result(**json.loads(out.read()))
        except subprocess.TimeoutExpired:
            return Result(None, "the episode did not end in time")
        except (ValueError, TypeError, OSError):
            said.seek(0)
            last = " ".join(said.read().decode("utf-8", "replace").split())[-400:]
            return Result(None, f"the episode's process ended with {child.poll()}: {last}")
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            with contextlib.suppress(OSError):
                child.stdin.close()
