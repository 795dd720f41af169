"""A closed-loop HTTP load generator on raw asyncio protocols: as many connections as clients, one call after the other.

Called by benchmarks/gateway.py, in its own process, so that its processor time is not that of what it measures.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_RECEIPT = re.compile(rb"\r\nx-reef-agent-record-id:\s*([^\r]+)", re.IGNORECASE)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Load:
    """What one window gave. Times in seconds; ``first_s`` is the time to the first byte of a body."""

    elapsed_s: float = 0.0
    processor_s: float = 0.0
    status: Counter[int] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.took_s) / self.elapsed_s

    @property
    def processor_ms(self) -> float:
        """Processor time of the measured process per answer, ms."""
        return 1e3 * self.processor_s / max(1, len(self.took_s))


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.answered: asyncio.Future[None] | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(ConnectionError("the server closed the connection"))

    def ask(self, request: bytes) -> asyncio.Future[None]:
        self._buffer.clear()
        self.head = b""
        self.marks: list[float] = []
        self.answered = asyncio.get_running_loop().create_future()
        self.began_s = time.perf_counter()
        self.transport.write(request)
        return self.answered

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._buffer += data
        if not self.head:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self.head = bytes(self._buffer[:end])
            found = _LENGTH.search(self.head)
            self._needed = end + 4 + int(found[1]) if found else 0
            self._body = end + 4
        if len(self._buffer) > self._body:
            self.marks.append(now_s)
        whole = len(self._buffer) >= self._needed if self._needed else self._buffer.endswith(b"\r\n0\r\n\r\n")
        if whole and self.answered is not None and not self.answered.done():
            self.answered.set_result(None)


def request(url: str, path: str, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """The bytes of one POST."""
    lines = [f"POST {path} HTTP/1.1", f"host: {url.split('//')[1]}", "content-type: application/json",
             f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers)]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def run(
    url: str, make: Callable[[int], bytes], *, clients: int, calls: int, pids: Sequence[int] = (), warm: int = 0
) -> Load:
    """``calls`` calls from ``clients`` clients; ``make(number)`` gives the bytes of each, ``pids`` are charged for it."""
    return uvloop.run(_run(url, make, clients, calls, pids, warm))


async def _run(
    url: str, make: Callable[[int], bytes], clients: int, calls: int, pids: Sequence[int], warm: int
) -> Load:
    host, port = url.split("//")[1].rsplit(":", 1)
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(_Connection, host, int(port)))[1] for _ in range(clients)]
    load = Load()

    async def client(connection: _Connection, numbers: Iterator[int], kept: Load) -> None:
        for number in numbers:
            await connection.ask(make(number))
            ended_s = time.perf_counter()
            kept.status[int(connection.head[9:12])] += 1
            kept.took_s.append(ended_s - connection.began_s)
            if connection.marks:
                kept.first_s.append(connection.marks[0] - connection.began_s)
                kept.gap_s += [later - earlier for earlier, later in pairwise(connection.marks)]
            found = _RECEIPT.search(connection.head)
            if found:
                kept.receipts.append(found[1].decode())

    async def window(numbers: Iterator[int], kept: Load) -> None:
        await asyncio.gather(*(client(one, numbers, kept) for one in connections))

    await window(iter(range(warm)), Load())
    began_s, spent_s = time.perf_counter(), processor_s(pids)
    await window(iter(range(warm, warm + calls)), load)
    load.elapsed_s, load.processor_s = time.perf_counter() - began_s, processor_s(pids) - spent_s
    for one in connections:
        one.transport.close()
    return load


def processor_s(pids: Sequence[int]) -> float:
    """User and system time of processes so far."""
    total = 0.0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) * _TICK_S
    return total


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
