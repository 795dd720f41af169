"""The ways to the model that benchmarks compare, each a process of its own: bare servers, and Reef's daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import request
from reef.client import ReefClient
from reef.launch import spawn, stop, wait_ready

ROOT = Path(__file__).parents[1]
CHAT = "/v1/chat/completions"
PARAGRAPH = (
    "The function reads the file line by line, keeps the order of the keys, takes empty input and raises ValueError on a key"
    " that is given twice; its caller writes the result beside the source. "
)


@dataclass(frozen=True)
class Column:
    """One way to the model: its address, the process that is charged, the headers its calls need."""

    name: str
    url: str
    pid: int
    headers: tuple[tuple[str, str], ...] = ()

    def call(self, body: bytes, **headers: str) -> bytes:
        """The bytes of one chat call."""
        return request(self.url, CHAT, body, (*self.headers, *((n.replace("_", "-"), v) for n, v in headers.items())))


class Bench:
    """The model server and whatever stands before it, in a folder of their own on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[subprocess.Popen[bytes]] = []
        self._homes: list[Path] = []
        self.model = self._party("model")

    def columns(self, names: Sequence[str], upstream: str | None = None) -> list[Column]:
        """Columns by name, each freshly started."""
        up = upstream or self.model.url
        made = {"direct": lambda: Column("direct", up, self.model.pid), "reef": lambda: self.reef(up)}
        return [made[name]() if name in made else self._party(name, up) for name in names]

    def reef(self, upstream: str, **settings: str) -> Column:
        """A daemon on a home of its own, with a client's headers for scenario ``bench``."""
        home = self.folder / f"home-{len(self._homes)}"
        return self.reef_at(home, upstream, **settings)

    def reef_at(self, home: Path, upstream: str, **settings: str) -> Column:
        """A daemon on ``home``."""
        self._homes.append(home)
        given = {f"reef.{name}": value for name, value in settings.items()}
        child = spawn(home, {"reef.port": "0", "reef.upstream_url": upstream, **given})
        self._children.append(child)
        found = wait_ready(child, home, 120)
        token = (home / "token").read_text(encoding="utf-8").strip()
        headers = (("authorization", f"Bearer {token}"), ("x-reef-scenario", "bench"))
        return Column("reef", str(found["url"]), child.pid, headers)

    def home(self) -> Path:
        """The newest daemon's home."""
        return self._homes[-1]

    def client(self, column: Column) -> ReefClient:
        """A client of the newest daemon."""
        token = dict(column.headers)["authorization"].removeprefix("Bearer ")
        return ReefClient(column.url, token, scenario="bench")

    def end(self) -> None:
        """End what was started since the model server."""
        for home in self._homes:
            with contextlib.suppress(Exception):
                stop(home, 30)
        for child in self._children[1:]:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            child.wait()
        del self._children[1:]

    def close(self) -> None:
        """End everything."""
        self.end()
        self._children[0].terminate()
        self._children[0].wait()

    def _party(self, kind: str, upstream: str | None = None) -> Column:
        port = free_port()
        rest = [] if upstream is None else [upstream, str(self.folder / f"{kind}-{port}.db")]
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.servers", kind, str(port), *rest],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._children.append(child)
        wait_port(port)
        return Column(kind, f"http://127.0.0.1:{port}", child.pid)


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_port(port: int) -> None:
    """Return once somebody listens."""
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.025)
    raise SystemExit(f"nothing listens on port {port}")


def conversation(kilobytes: float, **settings: Any) -> bytes:
    """A chat request of about this size: a system prompt and turns of an agent's conversation."""
    messages = [{"role": "system", "content": "You are a careful coding agent."}]
    body = {"model": "scripted", "messages": messages, "max_tokens": 30, **settings}
    turn = 0
    while (missing := int(kilobytes * 1024) - len(json.dumps(body))) > 60:
        role = ("user", "assistant")[turn % 2]
        messages.append(
            {"role": role, "content": (f"[{turn}] " + PARAGRAPH * 5)[: missing - 40 if missing < 1500 else 1400]}
        )
        turn += 1
    return json.dumps(body).encode()
