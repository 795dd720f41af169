"""What the parts on the path of a call take by themselves: cutting a request, joining a streamed answer.

    python -m benchmarks.parts

Best of many runs, in microseconds, beside what the JSON parsers take for the same bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import orjson

from benchmarks.columns import conversation
from benchmarks.servers import PLAIN, stream_body
from reef.inference.assembly import assemble
from reef.store.bodies import split_json


def best_us(act: Callable[[], object], times: int = 40) -> float:
    """The fastest of ``times`` runs."""
    spent = []
    for _ in range(times):
        began_s = time.perf_counter()
        act()
        spent.append(time.perf_counter() - began_s)
    return min(spent) * 1e6


def main() -> None:
    """Print one line for each part."""
    for kilobytes in (1, 100):
        body = conversation(kilobytes)
        print(f"request of {kilobytes} KB: split_json {best_us(lambda: split_json(body)):.1f}"  # noqa: B023
              f"  json {best_us(lambda: json.loads(body)):.1f}  orjson {best_us(lambda: orjson.loads(body)):.1f} us")  # noqa: B023  # fmt: skip
    plain = PLAIN.split(b"\r\n\r\n", 1)[1]
    print(f"plain answer: assemble {best_us(lambda: assemble('chat', 'application/json', plain)):.1f} us")
    stream = stream_body(2000)
    print(f"answer of 2,000 events: assemble {best_us(lambda: assemble('chat', 'text/event-stream', stream)):.0f} us")


if __name__ == "__main__":
    main()
