"""Publishing, rollback and restart with real weights, through the public surface of one daemon (issue 2, Show 7)."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient, RemoteError
from tests.support import Daemon, daemon, eventually

pytestmark = pytest.mark.slow

STREAMS = 8
BATCH = 4


@dataclass(frozen=True)
class Probe:
    """One greedy and one sampled answer, as they were recorded."""

    release_id: str
    tokens: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...]

    def same(self, other: Probe) -> bool:
        """Bit for bit, whatever the release is called."""
        return (self.tokens, self.log_probs) == (other.tokens, other.log_probs)


def asking(text: str, **settings: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **settings}


def probe(client: ReefClient) -> Probe:
    bodies = (
        asking("digits letters", temperature=0, max_tokens=24),
        asking("capital of France", temperature=0.8, max_tokens=24, seed=5),
    )
    records = [client.record(client.call(body).headers["x-reef-agent-record-id"]) for body in bodies]
    releases = {record["release_id"] for record in records}
    assert len(releases) == 1
    blocks = [record["response"]["training"] for record in records]
    return Probe(
        releases.pop(),
        tuple(tuple(block["tokens"]) for block in blocks),
        tuple(tuple(block["rollout_log_probs"]) for block in blocks),
    )


def batch(client: ReefClient, offset: float = 1.5) -> None:
    """Enough scored calls for one step."""
    for seed in range(BATCH):
        receipt = client.call(asking(f"answer {seed}", max_tokens=12, seed=seed)).headers["x-reef-agent-record-id"]
        client.report(score=seed - offset, references=[receipt])


def serving(client: ReefClient) -> str:
    rows = client.releases(str(client.scenario))
    found: list[str] = [row["release_id"] for row in rows if row["state"] == "serving"]
    assert len(found) == 1
    return found[0]


def learn(client: ReefClient, release_id: str, offset: float = 1.5) -> Probe:
    """One step; returns what the new release answers."""
    batch(client, offset)
    eventually(lambda: serving(client) == release_id)
    found = probe(client)
    assert found.release_id == release_id
    return found


class Streams:
    """Eight threads that stream one answer after the other until they are told to finish."""

    def __init__(self, one: Daemon) -> None:
        self.log: list[tuple[str, str, str]] = []
        self.texts: dict[str, str] = {}
        self._daemon = one
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._running = threading.Barrier(STREAMS + 1)
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(STREAMS)]

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        self._running.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        with self._daemon.client("a") as client:
            turn = 0
            while turn == 0 or not self._enough.is_set():
                body = asking(f"letters {number} {turn}", max_tokens=460, seed=100 * number + turn)
                with client.stream(body) as response:
                    receipt, release = (
                        response.headers[f"x-reef-{name}"] for name in ("agent-record-id", "release-id")
                    )
                    lines = response.iter_lines()
                    sent = [next(lines)]
                    self._note("begin", receipt, release)
                    if turn == 0:
                        self._running.wait(60)
                    sent += list(lines)
                    self._note("end", receipt, release)
                assert "data: [DONE]" in sent
                events = [json.loads(line[6:]) for line in sent if line.startswith("data: {")]
                deltas = [choice["delta"] for event in events for choice in event["choices"]]
                self.texts[receipt] = "".join(delta.get("content") or "" for delta in deltas)
                turn += 1

    def _note(self, what: str, receipt: str, release: str) -> None:
        with self._lock:
            self.log.append((what, receipt, release))


def test_publish_rollback_and_restart(tiny_model: Path, tmp_path: Path) -> None:
    """One daemon for all: starting it costs more than what is looked at."""
    settings = {"reef_model_path": str(tiny_model), "reef_recipe": "pg", "reef_batch_size": str(BATCH)}
    with daemon(tmp_path, **settings, training_learning_rate="1e-3") as one:
        with one.client("a") as a, one.client("b") as b:
            base = probe(a)
            assert probe(b).same(base), "both scenarios begin with the base model"
            first = learn(a, "r1")
            assert not first.same(base)
            assert probe(b).same(base), "a step of one scenario does not touch the other"
            second = streams_survive(one, a, "r1", "r2", lambda: batch(a))
            assert not second.same(first)
            restored = streams_survive(one, a, "r2", "r3", lambda: a.act("a", "rollback", {"to": "r1"}))
            assert restored.same(first), "a rollback restores trained weights bit for bit"
            assert a.release("a", "r3")["restored_from"] == "r1"
            other = learn(b, "r1", offset=0.5)
            assert not other.same(first)
            assert probe(a).same(first)
            onward = learn(a, "r4")
            assert a.release("a", "r4")["parent"] == "r3"
            trained = [row for client in (a, b) for row in client.releases(str(client.scenario)) if row["step_id"]]
            assert len(trained) == 4 and max(row["metrics"]["logprob_diff_max"] for row in trained) < 1e-4
        one.stop()
        one.start()
        with one.client("a") as a, one.client("b") as b:
            assert probe(a) == onward, "a restart serves the committed head, bit for bit"
            assert probe(b) == other
            a.act("a", "rollback", {"to": "r0"})
            assert probe(a).same(base)
            assert probe(b) == other
            lost = b.release("b", "r1")["content_id"]
        one.stop()
        shutil.rmtree(tmp_path / "artifacts" / lost)
        one.start()
        with one.client("a") as a, one.client("b") as b:
            assert probe(a).same(base), "one scenario's lost files do not stop the others"
            with pytest.raises(RemoteError, match=r"gone.*reef rollback") as refused:
                b.call(asking("hello"))
            assert (refused.value.status, refused.value.code) == (503, "release_not_served")
            assert eventually(lambda: b.get("/reef/scenarios/b")["state"] == "failed")
            b.act("b", "rollback", {"to": "r0"})
            assert probe(b).same(base)


def streams_survive(one: Daemon, client: ReefClient, before: str, after: str, publish: Any) -> Probe:
    """Run ``publish`` during eight streams; every one of them ends whole on the release it began with."""
    with Streams(one) as streams:
        publish()
        eventually(lambda: serving(client) == after)
        eventually(lambda: ("begin", after) in {(what, release) for what, _, release in list(streams.log)})
    content = {row["release_id"]: row["content_id"] for row in client.releases("a")}
    for receipt, text in streams.texts.items():
        record = client.record(receipt)
        began_with = next(release for what, one, release in streams.log if (what, one) == ("begin", receipt))
        assert record["state"] == "complete"
        assert record["release_id"] == began_with in (before, after)
        assert record["response"]["choices"][0]["message"]["content"] == text
        block = record["response"]["training"]
        assert {span["version"] for span in block["versions"]} == {content[began_with]}
    swapped = next(at for at, (what, _, release) in enumerate(streams.log) if (what, release) == ("begin", after))
    over = [receipt for what, receipt, release in streams.log[swapped:] if (what, release) == ("end", before)]
    assert over, "no stream was running while the release was published"
    found = probe(client)
    assert found.release_id == after
    return found
