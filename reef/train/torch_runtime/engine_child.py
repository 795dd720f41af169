"""The serve child as seen from the daemon: start, watch, restart with back-off, stop; and its verbs as blocking calls.

Knows nothing of training or scenarios. Owned by ``TorchRuntime``.
"""

from __future__ import annotations

import http.client
import json
import logging
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reef.errors import BadConfig, ReefError, Unavailable
from reef.train.torch_runtime.child import child_environment, memory_bytes, stop_child
from reef.train.torch_runtime.settings import TrainSettings

log = logging.getLogger("reef.engine")

START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 60.0
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
HEALTHY_S = 60.0

OnEvent = Callable[[str, dict[str, Any]], None]


class EngineChild:
    """One serve process. ``after_restart`` runs when a dead one has been replaced, before it counts as ready."""

    def __init__(
        self,
        model: Path,
        settings: TrainSettings,
        version: str,
        log_path: Path,
        on_event: OnEvent,
        after_restart: Callable[[], None],
    ) -> None:
        self.key = secrets.token_urlsafe(24)
        self.restarts = 0
        self.state = "stopped"
        self._model, self._settings, self._version = model, settings, version
        self._log_path, self._on_event, self._after_restart = log_path, on_event, after_restart
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._watchdog: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it listens; the port stays the same over restarts."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it and wait until it answers; raises BadConfig with what it said, or Unavailable."""
        self._stopping.clear()
        self._launch()
        self.state = "ready"
        self._tell("ready")
        self._watchdog = threading.Thread(target=self._watch, name="engine-watchdog", daemon=True)
        self._watchdog.start()

    def stop(self) -> None:
        """End it and its watchdog."""
        self._stopping.set()
        if self._process is not None:
            stop_child(self._process)
        if self._watchdog is not None:
            self._watchdog.join()
            # The watchdog may have been in the middle of a restart.
            stop_child(self._process)
        self.state = "stopped"

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One verb; raises Unavailable when the engine does not answer or says no."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CALL_TIMEOUT_S)
        try:
            raw = None if body is None else json.dumps(body).encode()
            headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
            connection.request(method, path, raw, headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"the engine does not answer {path}: {error}", hint="it restarts by itself") from error
        finally:
            connection.close()
        if response.status != 200:
            message = answer.get("error", {}).get("message", "no reason given")
            raise Unavailable(f"the engine refused {path}: {message}")
        return answer

    def status(self) -> dict[str, Any]:
        """State, process id, restarts, memory."""
        pid = self.pid
        return {
            "state": self.state,
            "pid": pid,
            "url": self.url,
            "restarts": self.restarts,
            "rss_bytes": memory_bytes(pid),
        }

    def _launch(self) -> None:
        settings = self._settings
        command = [sys.executable, "-m", "reef.train.torch_runtime.serve", "--model", str(self._model)]
        command += ["--port", str(self._port), "--slots", str(settings.slots), "--threads", str(settings.serve_threads)]
        command += ["--dtype", settings.dtype, "--device", settings.device, "--weight-version", self._version]
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log_file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=child_environment(settings.serve_threads, REEF_ENGINE_KEY=self.key),
            )
        self._process = process
        said = self._first_line(process)
        if "error" in said:
            process.wait()
            raise BadConfig(f"the engine did not start: {said['error']['message']}", hint=said["error"]["hint"])
        self._port = int(said["port"])

    def _first_line(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """What the process announces; a timer ends one that never does."""
        timer = threading.Timer(START_TIMEOUT_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            code = process.wait()
            raise Unavailable(
                f"the engine ended with code {code} before it could answer", hint=f"its log: {self._log_path}"
            )
        said: dict[str, Any] = json.loads(line)
        return said

    def _watch(self) -> None:
        """Replace a process that dies until ``stop`` is called."""
        delay_s = BACKOFF_FIRST_S
        while not self._stopping.is_set():
            assert self._process is not None
            began_at = time.monotonic()
            code = self._process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - began_at > HEALTHY_S:
                delay_s = BACKOFF_FIRST_S
            self.state = "restarting"
            self._tell("died", code=code, retry_in_s=delay_s)
            if self._stopping.wait(delay_s):
                return
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)
            self._replace()

    def _replace(self) -> None:
        stop_child(self._process)
        self.restarts += 1
        try:
            self._launch()
            self._after_restart()
        except ReefError as error:
            log.warning("the engine could not be restarted: %s", error)
            self._tell("restart_failed", reason=str(error))
            stop_child(self._process)
            return
        self.state = "ready"
        self._tell("ready")

    def _tell(self, what: str, **more: Any) -> None:
        self._on_event("engine", {"what": what, "pid": self.pid, "restarts": self.restarts, **more})
