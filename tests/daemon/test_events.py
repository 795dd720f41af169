"""The stream of events: what happens arrives in order, can be resumed, and ends with the daemon."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.faults.world import Echo
from tests.support import daemon, on_thread


def test_events_arrive_are_resumed_and_end_with_the_daemon(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    called, ended = threading.Event(), threading.Event()
    with on_thread(Echo()) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url) as one:

        def listen() -> None:
            with one.client() as client:
                for event in client.events(after=0):
                    seen.append(event)
                    if event["kind"] == "inference":
                        called.set()
            ended.set()

        listener = threading.Thread(target=listen)
        listener.start()
        with one.client() as client:
            while not called.is_set():  # what happens on each call is only said while somebody listens
                client.call({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
            resumed = next(client.events(after=seen[0]["id"]))
        one.stop()
        listener.join()
    assert ended.is_set(), "the stream broke off instead of ending"
    assert [event["id"] for event in seen] == sorted({event["id"] for event in seen})
    assert {"ready", "scenario", "inference"} <= {event["kind"] for event in seen}
    assert resumed["id"] == seen[0]["id"] + 1
