"""The train child as seen from the daemon: started with its first request, one request at a time, gone when it dies.

Knows nothing of scenarios or engines. Owned by ``TorchRuntime``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reef.errors import BadRequest, Unavailable
from reef.train.torch_runtime.child import child_environment, memory_bytes, stop_child
from reef.train.torch_runtime.settings import TrainSettings

Progress = Callable[[Mapping[str, Any]], None]


class TrainerChild:
    """One train process; ``ask`` blocks, and raises Unavailable when the process dies under it."""

    def __init__(self, model: Path, home: Path, base_content_id: str, settings: TrainSettings, log_path: Path) -> None:
        self.state = "idle"
        self.starts = 0
        self._command = [sys.executable, "-m", "reef.train.torch_runtime.trainer", "--model", str(model)]
        self._command += ["--home", str(home), "--base-content-id", base_content_id]
        self._command += ["--settings", json.dumps(settings.as_dict())]
        self._threads = settings.trainer_threads
        self._log_path = log_path
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._number = 0

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def ask(self, verb: str, fields: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Send one request and wait for its result; ``progress`` sees what is said before."""
        with self._lock:
            process = self._running()
            self._number += 1
            self.state = verb
            try:
                return self._exchange(process, {"id": self._number, "verb": verb, **fields}, progress)
            finally:
                self.state = "idle"

    def stop(self) -> None:
        """End the process; a request under way raises Unavailable."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()
            with self._lock:
                stop_child(process)

    def status(self) -> dict[str, Any]:
        """State, process id, starts, memory."""
        pid = self.pid
        return {"state": self.state, "pid": pid, "starts": self.starts, "rss_bytes": memory_bytes(pid)}

    def _running(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise Unavailable("the trainer is stopped")
        if self.pid is None:
            stop_child(self._process)
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log_file:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    env=child_environment(self._threads),
                )
            self.starts += 1
        assert self._process is not None
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], request: Mapping[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request, allow_nan=False).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died(process) from error
        for line in process.stdout:
            said = json.loads(line)
            if "progress" in said:
                if progress is not None:
                    progress(said["progress"])
            elif "error" in said:
                shown = said["error"]
                raise BadRequest(shown["message"], hint=shown["hint"], code=shown["code"], field=shown.get("field"))
            else:
                result: dict[str, Any] = said["result"]
                return result
        raise self._died(process)

    def _died(self, process: subprocess.Popen[bytes]) -> Unavailable:
        return Unavailable(f"the trainer ended with code {process.wait()}", hint=f"its log: {self._log_path}")
