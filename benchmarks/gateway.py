"""What does Reef add to a model call? Side by side with bare servers, in rotation, recording on and durable.

    python -m benchmarks.gateway [--parts calls streams reports scenarios tls episodes memory start] [--rounds 3] [--quick]

Columns: ``direct`` (no gateway), ``passthrough``, ``recorder``, ``starlette`` (see benchmarks/servers.py) and ``reef``, a daemon
as ``reef up`` starts it. Every round visits all columns, so that noise of the machine falls on all alike; shares are taken in a
round and the median round is shown. Prints tables, and writes one JSON document to benchmarks/results/gateway.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.columns import PARAGRAPH, ROOT, Bench, Column, conversation, free_port, wait_port
from benchmarks.load import Load, request, resident_mb, run
from benchmarks.restart import history

RESULTS = Path(__file__).parent / "results"


def rotation(
    columns: Sequence[Column], rounds: int, window: Callable[[Column], Load], base: str = "passthrough"
) -> dict[str, dict[str, float]]:
    """Every round visits all columns, each round beginning at another one; medians over rounds, shares of ``base``."""
    loads: dict[str, list[Load]] = {column.name: [] for column in columns}
    for turn in range(rounds):
        for at in range(len(columns)):
            column = columns[(turn + at) % len(columns)]
            loads[column.name].append(window(column))
    shown = {}
    for name, each in loads.items():
        bad = sum(count for load in each for status, count in load.status.items() if status != 200)
        if bad:
            raise SystemExit(f"{name}: {bad} answers were not 200")
        reference = loads.get(base, each)
        shown[name] = {
            "rate": median(load.rate for load in each),
            "share": median(load.rate / other.rate for load, other in zip(each, reference, strict=True)),
            "processor_ms": median(load.processor_ms for load in each),
            "p50_ms": 1e3 * median(percentile(load.took_s, 0.5) for load in each),
            "p99_ms": 1e3 * median(percentile(load.took_s, 0.99) for load in each),
            "first_ms": 1e3 * median(percentile(load.first_s, 0.5) for load in each),
            "gap_p99_ms": 1e3 * median(percentile(load.gap_s, 0.99) for load in each),
        }
    return shown


def median(values: Iterator[float] | Sequence[float]) -> float:
    """The middle one."""
    return float(statistics.median(values))


def percentile(values: Sequence[float], at: float) -> float:
    """The value below which the share ``at`` lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(at * len(ordered)))] if ordered else 0.0


def calls(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Plain calls: clients by body size."""
    shown = {}
    names = ["direct", "passthrough", "recorder", "starlette", "reef"]
    counts = {1: 1000, 16: 4000, 64: 6000}  # a second or more each: shorter windows measure the noise of the machine
    for kilobytes in (1, 100):
        columns = bench.columns(names)
        body = conversation(kilobytes)
        for clients, count in counts.items():
            some = max(clients, int(count * options.scale / (1 if kilobytes == 1 else 3)))

            def window(column: Column, some: int = some, clients: int = clients, body: bytes = body) -> Load:
                data = column.call(body)
                few, warm = (some // 8, clients) if column.name == "starlette" else (some, max(clients, 100))
                return run(column.url, lambda _: data, clients=clients, calls=few, pids=[column.pid], warm=warm)

            case = f"{kilobytes} KB, {clients} clients"
            shown[case] = rotation(columns, options.rounds, window)
            table(f"calls: {case}", shown[case], ("rate", "share", "processor_ms", "p50_ms", "p99_ms"))
        bench.end()
    return shown


def streams(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Streams: 30 chunks with 2 ms between them, and 2,000 at once."""
    shown = {}
    columns = bench.columns(["direct", "passthrough", "recorder", "reef"])
    for title, chunks, pause_ms, clients, count in (
        ("30 chunks, 2 ms apart, 1 client", 30, 2, 1, 20),
        ("30 chunks, 2 ms apart, 16 clients", 30, 2, 16, 160),
        ("2,000 chunks at once, 1 client", 2000, 0, 1, 30),
    ):
        body = conversation(1, stream=True, max_tokens=chunks, seed=pause_ms)
        some = max(clients, int(count * options.scale))

        def window(column: Column, body: bytes = body, clients: int = clients, some: int = some) -> Load:
            data = column.call(body)
            return run(column.url, lambda _: data, clients=clients, calls=some, pids=[column.pid], warm=clients)

        shown[title] = rotation(columns, options.rounds, window)
        table(f"streams: {title}", shown[title], ("rate", "first_ms", "gap_p99_ms", "processor_ms"))
    bench.end()
    return shown


def reports(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Reports per second at 16 clients, each on a receipt of its own."""
    (column,) = bench.columns(["reef"])
    data = column.call(conversation(1))
    count = int(4000 * options.scale)
    receipts = run(column.url, lambda _: data, clients=16, calls=count).receipts

    def make(number: int) -> bytes:
        body = {"score": number % 2, "references": [receipts[number % len(receipts)]]}
        return request(column.url, "/reef/report", json.dumps(body).encode(), column.headers)

    shown = rotation(
        [column], options.rounds, lambda _: run(column.url, make, clients=16, calls=count, pids=[column.pid])
    )
    table("reports: 16 clients", shown, ("rate", "processor_ms", "p50_ms", "p99_ms"))
    bench.end()
    return shown


def scenarios(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """The first call of a new scenario against one of a known, one client."""
    (column,) = bench.columns(["reef"])
    body = conversation(1)
    known = column.call(body)
    plain = Column("new", column.url, column.pid, column.headers[:1])
    count = int(200 * options.scale)
    turn = iter(range(10**6))

    def window(one: Column) -> Load:
        if one.name == "reef":
            return run(one.url, lambda _: known, clients=1, calls=count, warm=1)
        start = next(turn)
        return run(one.url, lambda n: one.call(body, x_reef_scenario=f"s-{start}-{n}"), clients=1, calls=count)

    shown = rotation([column, plain], options.rounds, window, base="reef")
    table("scenarios: a known and a new one", shown, ("p50_ms", "p99_ms"))
    bench.end()
    return shown


def tls(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """An upstream behind TLS, 40 ms away: what is added when the model is remote."""
    certificate, key = bench.folder / "tls.pem", bench.folder / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    port = free_port()
    far = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.far", str(port), bench.model.url, "0.02", str(certificate), str(key)],
        cwd=ROOT,
    )
    wait_port(port)
    os.environ["SSL_CERT_FILE"] = str(certificate)
    shown = {}
    try:
        columns = bench.columns(["passthrough", "recorder", "reef"], f"https://localhost:{port}")
        body = conversation(1)
        for clients in (1, 16):
            some = max(clients, int(25 * clients * options.scale))

            def window(column: Column, clients: int = clients, some: int = some) -> Load:
                data = column.call(body)
                return run(column.url, lambda _: data, clients=clients, calls=some, pids=[column.pid], warm=clients)

            case = f"{clients} clients"
            shown[case] = rotation(columns, options.rounds, window)
            table(f"tls, 40 ms away: {case}", shown[case], ("rate", "share", "p50_ms", "p99_ms", "processor_ms"))
    finally:
        del os.environ["SSL_CERT_FILE"]
        bench.end()
        far.terminate()
        far.wait()
    return shown


def episodes(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """20 agent episodes of 50 turns that resend their history: bytes on disk against the text that is new."""
    (column,) = bench.columns(["reef"])
    source = random.Random(7)
    unique = 0
    with bench.client(column) as client:
        for episode in range(20):
            messages = [{"role": "system", "content": "You are a careful coding agent. " + PARAGRAPH * 3}]
            for turn in range(50):
                text = f"{episode}.{turn} " + " ".join(str(source.getrandbits(40)) for _ in range(40))
                messages.append({"role": "user", "content": text})
                body = {"model": "scripted", "messages": messages}
                answer = client.call(body).json()["choices"][0]["message"]["content"]
                messages.append({"role": "assistant", "content": answer})
                unique += len(text) + len(answer)
        sent = sum(len(json.dumps(message)) for message in messages) * 50 // 2 * 20
    bench.end()
    files = [bench.home() / name for name in ("reef.db", "reef.db-wal")]  # beside them lies a reserve of constant size
    stored = sum(file.stat().st_size for file in files if file.exists())
    shown = {
        "unique_bytes": unique,
        "sent_bytes_about": sent,
        "stored_bytes": stored,
        "stored_of_unique": stored / unique,
    }
    print(
        f"\nepisodes: {stored / 1e6:.2f} MB on disk for {unique / 1e6:.2f} MB of new text: {stored / unique:.2f} times"
    )
    return shown


def memory(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Resident memory over 20,000 calls, and over 5,000 calls of 100 KB that nobody reports on."""
    (column,) = bench.columns(["reef"])
    shown = {"start_mb": resident_mb(column.pid)}
    source = random.Random(3)
    for title, kilobytes, count in (("1 KB", 1, 20_000), ("100 KB unreported", 100, 5_000)):
        total = int(count * options.scale)
        seen = []
        for _ in range(10):
            bodies = [conversation(kilobytes, user=str(source.getrandbits(60))) for _ in range(8)]
            data = [column.call(body) for body in bodies]
            run(column.url, lambda n, data=data: data[n % 8], clients=16, calls=total // 10)
            seen.append(resident_mb(column.pid))
        shown[title] = {
            "after_tenth_mb": seen[0],
            "end_mb": seen[-1],
            "most_mb": max(seen),
            "growth_mb": seen[-1] - seen[0],
        }
        print(
            f"\nmemory, {total} calls of {title}: {seen[0]:.0f} MB after a tenth, {seen[-1]:.0f} MB at the end",
            flush=True,
        )
    bench.end()
    return shown


def start(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """From the start of the process to the first answered call, empty and with history; and ``reef --help``."""
    full = bench.folder / "history"
    history(full, int(50_000 * options.scale), 100)
    with contextlib.closing(bench.client(bench.reef_at(full, bench.model.url))) as client:
        for number in range(int(100 * options.scale)):
            client.post("/reef/scenarios", {"name": f"s-{number}"})
    bench.end()
    shown: dict[str, Any] = {}
    spent: dict[str, list[float]] = {"empty": [], "history": []}
    for turn in range(options.rounds + 1):
        for title, home in (("empty", bench.folder / f"empty-{turn}"), ("history", full)):
            began_s = time.perf_counter()
            with bench.client(bench.reef_at(home, bench.model.url)) as client:
                client.call({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]})
            spent[title].append(time.perf_counter() - began_s)
            bench.end()
    helps = [_took_s(str(Path(sys.executable).with_name("reef")), "--help") for _ in range(options.rounds + 2)]
    bare = [_took_s(sys.executable, "-c", "pass") for _ in range(options.rounds + 2)]
    for title, each in spent.items():
        shown[title] = {"seconds": median(each[1:]), "all": each}
    shown["help"] = {"seconds": median(helps[1:]), "python_alone": median(bare[1:])}
    print(f"\nstart to the first answer: empty {shown['empty']['seconds']:.2f} s, with history"
          f" {shown['history']['seconds']:.2f} s; reef --help {shown['help']['seconds']:.3f} s"
          f" (python alone {shown['help']['python_alone']:.3f} s)", flush=True)  # fmt: skip
    return shown


def _took_s(*command: str) -> float:
    """Seconds of a command that may keep its byte code, as an installed one does."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environ)
    return time.perf_counter() - began_s


PARTS = {part.__name__: part for part in (calls, streams, reports, scenarios, tls, episodes, memory, start)}


def table(title: str, rows: dict[str, dict[str, float]], keys: Sequence[str]) -> None:
    """One table on stdout."""
    print(f"\n{title}")
    print("  " + " " * 12 + "".join(f"{key:>14}" for key in keys))
    for name, row in rows.items():
        print(f"  {name:12}" + "".join(f"{row[key]:14.3f}" if row[key] < 100 else f"{row[key]:14.0f}" for key in keys))
    sys.stdout.flush()


def main() -> None:
    """Measure the parts that were asked for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--quick", dest="scale", action="store_const", const=0.2, default=1.0)
    options.add_argument("--results", default="gateway.json", help="name of the document below benchmarks/results")
    options.add_argument("--folder", type=Path, help="where databases lie; default: a temporary folder here")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gateway-", dir=given.folder or Path.cwd()))
    found: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
    }
    bench = Bench(folder)
    try:
        for part in given.parts:
            found[part] = PARTS[part](bench, given)
    finally:
        bench.close()
        shutil.rmtree(folder)
    file = RESULTS / given.results
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**known, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
