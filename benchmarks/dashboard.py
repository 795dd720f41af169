"""How fast is the dashboard on a full daemon? First paint, keys, idle processor time and memory, per tab, on a real terminal.

    python -m benchmarks.dashboard [--records 20000] [--keys 20] [--idle 10] [--json]

Records are imported over HTTP into a fresh home; no model is loaded. A key's time is from writing it into the pty to the first
bytes that come back after the screen stood still. The table names the load of the machine beside the figures.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from reef.client import ReefClient
from reef.launch import spawn, stop, wait_ready

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "reef.port": "0",
    "reef.upstream_url": "http://127.0.0.1:9",
    "reef.recipe": "tests.faults.world:StubRecipe",
    "reef.batch_size": "500",
}
TABS = ("Overview", "Releases", "Records", "Training", "Harness", "Recipe", "Logs")
TARGETS = {"first paint, s": 0.6, "key, ms": 150.0, "idle, % of a core": 3.0, "memory, MB": 70.0}
COLUMNS, LINES = 140, 40
_IMPORT = 1000
_STILL_S, _LONGEST_S = 0.08, 20.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figures:
    """Of one tab; times in ms, ``idle`` in percent of a core, memory in MB."""

    tab: str
    opened_ms: float
    key_median_ms: float
    key_p95_ms: float
    idle: float
    memory_mb: float


class Terminal:
    """A dashboard in a pty."""

    def __init__(self, home: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
        command = [sys.executable, "-m", "reef.cli.main", "tui", "--home", str(home)]
        self.began = time.perf_counter()
        self.child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
        )
        os.close(slave)

    def read(self, wait_s: float) -> bytes:
        """What comes within ``wait_s``, empty for nothing."""
        ready, _, _ = select.select([self.master], [], [], wait_s)
        return os.read(self.master, 1 << 20) if ready else b""

    def until(self, pattern: bytes) -> float:
        """When these bytes have come, s since the start."""
        shown, deadline = b"", time.perf_counter() + _LONGEST_S
        while not re.search(pattern, shown):
            if time.perf_counter() > deadline:
                raise SystemExit(f"the dashboard never showed {pattern!r}: {shown[-400:]!r}")
            shown += self.read(0.1)
        return time.perf_counter() - self.began

    def still(self) -> None:
        """Wait until nothing has come for a moment."""
        deadline = time.perf_counter() + _LONGEST_S
        while self.read(_STILL_S) and time.perf_counter() < deadline:
            pass

    def press(self, key: bytes) -> float:
        """From a key to the first bytes of its frame, ms."""
        self.still()
        began = time.perf_counter()
        os.write(self.master, key)
        if not self.read(_LONGEST_S):
            raise SystemExit(f"the key {key!r} changed nothing in {_LONGEST_S:.0f} s")
        return 1e3 * (time.perf_counter() - began)

    def processor_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S

    def memory_mb(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.child.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def idle(self, seconds: float) -> float:
        """Percent of a core while nobody types; what is painted is read on, as a terminal does."""
        before, began = self.processor_s(), time.perf_counter()
        while time.perf_counter() - began < seconds:
            self.read(0.2)
        return 100 * (self.processor_s() - before) / (time.perf_counter() - began)

    def end(self) -> None:
        """Leave."""
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(10)
        os.close(self.master)


def fill(home: Path, records: int) -> None:
    """Import ``records`` exchanges of a page of text each, and report on the last hundred."""
    token = (home / "token").read_text(encoding="utf-8").strip()
    url = str(json.loads((home / "daemon.json").read_text(encoding="utf-8"))["url"])
    training = {"tokens": [1, 2, 3], "loss_mask": [1], "rollout_log_probs": [-0.5], "temperature": 1.0}
    with ReefClient(url, token, scenario="s") as client:
        for first in range(0, records, _IMPORT):
            rows = [
                {
                    "agent_record_id": f"i{number}", "release_id": "r0",
                    "request": {"messages": [{"role": "user", "content": f"question {number} " * 100}]},
                    "response": {"text": f"answer {number} " * 100, "training": training},
                }
                for number in range(first, min(first + _IMPORT, records))
            ]  # fmt: skip
            client.post("/reef/records", {"records": rows, "scenario": "s"})
        for number in range(max(0, records - 100), records):
            client.report(score=1.0, references=[f"i{number}"])


def measure(home: Path, keys: int, idle_s: float) -> tuple[float, float, list[Figures]]:
    """First paint, first data, and the figures of each tab."""
    terminal = Terminal(home)
    try:
        paint, data = terminal.until(b"Overview"), terminal.until(b"serving")
        found = []
        for number, tab in enumerate(TABS, 1):
            opened = terminal.press(str(number).encode()) if number > 1 else 0.0
            terminal.still()
            took = sorted(terminal.press(key) for key in (b"?", b"?") * (keys // 2))
            if tab == "Records":  # from one end of what is read to the other, with a page from the daemon
                took = sorted(terminal.press(key) for key in (b"G", b"g") * (keys // 2))
            terminal.still()
            p95 = took[min(len(took) - 1, int(0.95 * len(took)))]
            found.append(
                Figures(tab, opened, statistics.median(took), p95, terminal.idle(idle_s), terminal.memory_mb())
            )
    finally:
        terminal.end()
    return paint, data, found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds without a key, for each tab")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        child = spawn(home, SETTINGS)
        wait_ready(child, home, 60.0)
        try:
            fill(home, given.records)
            load = os.getloadavg()[0]
            paint, data, found = measure(home, given.keys, given.idle)
        finally:
            stop(home, 60.0)
            child.wait(60.0)
    if given.json:
        print(json.dumps({"records": given.records, "load": load, "first_paint_s": paint, "first_data_s": data,
                          "tabs": [asdict(one) for one in found]}))  # fmt: skip
        return
    print(f"{given.records:,} records, {COLUMNS}x{LINES}, load of the machine {load:.1f} on {os.cpu_count()} cores")
    print(f"first paint {paint:.2f} s, first data {data:.2f} s\n")
    print(
        "| tab | opened, ms | key, median, ms | key, p95, ms | idle, % of a core | memory, MB |\n|---|--:|--:|--:|--:|--:|"
    )
    for one in found:
        print(
            f"| {one.tab} | {one.opened_ms:.0f} | {one.key_median_ms:.0f} | {one.key_p95_ms:.0f} |"
            f" {one.idle:.1f} | {one.memory_mb:.0f} |"
        )
    print("\ntargets: " + ", ".join(f"{name} under {limit:g}" for name, limit in TARGETS.items()))


if __name__ == "__main__":
    main()
