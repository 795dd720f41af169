"""A disk that is slow, or hangs: what waits goes together and is bounded, and nobody is promised what is not kept."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from reef.inference.testing import Script, ScriptedProvider
from tests.daemon.test_gateway import ANSWER, CHAT, JSON, SSE, STREAM
from tests.daemon.test_relay import RECEIPT, app_at, record
from tests.faults.machine import Strace, needs_strace
from tests.faults.test_kill import asking
from tests.faults.world import Echo
from tests.store.test_writer import held_up
from tests.support import Daemon, on_thread

CLIENTS, TURNS = 16, 4


def test_what_waits_for_a_slow_disk_goes_together_and_is_kept(tmp_path: Path) -> None:
    """Every sync takes a tenth of a second: no call fails, none waits for more than the others of its transaction."""
    needs_strace()
    kept: dict[str, str] = {}
    depths: list[int] = []
    with on_thread(Echo()) as upstream:
        one = Daemon(tmp_path / "home", {"reef.upstream_url": upstream.url, "reef.default_scenario": "s"})
        one.start()
        assert one.child is not None

        def run(name: str) -> None:
            with one.client() as client:
                for turn in range(TURNS):
                    body = {**asking(f"{name} {turn} " + "word " * 2000), "stream": turn % 2 == 1}
                    response = client.http.post("/v1/chat/completions", json=body)
                    assert response.status_code == 200
                    kept[response.headers[RECEIPT]] = body["messages"][-1]["content"]

        try:
            with one.client() as client:
                run("first")
                before = client.status()["store"]["commits"]
                tracer = Strace(one.home, tmp_path / "strace", "fdatasync", "delay_enter=100000", "1+")
                with tracer.attached(one.child.pid):
                    threads = [threading.Thread(target=run, args=(f"c{number}",)) for number in range(CLIENTS)]
                    for thread in threads:
                        thread.start()
                    while any(thread.is_alive() for thread in threads):
                        depths.append(client.status()["store"]["queue"])
                assert tracer.injected() > 0
                assert len(kept) == (CLIENTS + 1) * TURNS, "every call has its receipt"
                assert max(depths) <= 2 * CLIENTS, "no more waits than there are clients"
                writes = CLIENTS * TURNS * 3 // 2  # a stream is written when it begins and when it ends
                assert client.status()["store"]["commits"] - before < writes / 2, "what waited went together"
            one.kill()
            one.start()
            with one.client() as client:
                for receipt, text in kept.items():
                    found = client.record(receipt)
                    assert (found["state"], found["request"]["messages"][-1]["content"]) == ("complete", text)
        finally:
            one.stop()


@pytest.mark.parametrize("wanted", ["relay", "refuse"])
async def test_a_disk_that_hangs_fills_the_queue_and_no_more(tmp_path: Path, wanted: str) -> None:
    slow = Script(STREAM, headers=SSE, pause_s=0.5)
    streamed, plain = Script(STREAM, headers=SSE), Script([ANSWER], headers=JSON)
    async with (
        ScriptedProvider(slow, plain, streamed, plain) as upstream,
        app_at(tmp_path, upstream.url, on_store_failure=wanted) as (app, client),
    ):
        store = app.state.services.records.store
        await client.post("/reef/scenarios", json={"name": "s"})
        begun = asyncio.ensure_future(client.post("/v1/chat/completions", json={**CHAT, "stream": True}))
        while not (await client.get("/reef/scenarios/s/records", params={"state": "open"})).json()["records"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with held_up(store):
            waits = 0
            while store.submit(lambda db: db.execute("SELECT 1").fetchone()).running():
                waits += 1
            for stream in (False, True):
                answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
                if wanted == "refuse":
                    assert answer.status_code == 507 and "queue is full" in answer.json()["error"]["message"]
                else:
                    assert answer.content == (b"".join(STREAM) if stream else ANSWER)
                    assert answer.headers["x-reef-unrecorded"] == "queue_full" and RECEIPT not in answer.headers
            said = await client.post("/reef/report", json={"score": 1, "references": ["later"]})
            assert (said.status_code, said.json()["error"]["code"]) == (503, "queue_full")
            assert said.headers["retry-after"] == "1"
            assert (await client.get("/healthz")).json()["status"] == ("ok" if wanted == "refuse" else "degraded")
            assert waits == 4096 and store.waiting <= waits + 2, "only what has begun is taken beyond: its end"
            assert not begun.done(), "the end of a stream waits for the disk"
        first = await begun
        assert first.content == b"".join(STREAM) and (await record(client, first))["state"] == "complete"
        after = await client.post("/v1/chat/completions", json=CHAT)
        assert json.loads(after.content) == json.loads(ANSWER)
        assert (await record(client, after))["state"] == "complete"
        assert (await client.get("/healthz")).json()["status"] == "ok"
        assert not (await client.get("/reef/scenarios/s/records", params={"state": "open"})).json()["records"]
