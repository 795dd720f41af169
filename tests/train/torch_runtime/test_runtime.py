"""TorchRuntime with real children on the tiny model: agreement, publish, rollback, retries, kill -9, learning."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from reef.core.artifacts import Candidate, artifact_path
from reef.errors import BadConfig, BadRequest, NotFound, ReefError
from reef.runtime import Blocked, Refused, Skip
from reef.runtime.serving import ServingTable
from reef.train.torch_runtime import artifacts
from reef.train.torch_runtime.runtime import TorchRuntime
from reef.train.torch_runtime.settings import TrainSettings
from tests.train.torch_runtime.support import PROMPTS, Bench, eventually, plain_logprobs, release, start_bench


def logprobs(answer: dict[str, Any]) -> list[float]:
    return [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_logprobs_are_those_of_the_trainer_and_of_plain_transformers(
    bench: Bench, tiny: Path, tmp_path: Path, temperature: float
) -> None:
    trained = bench.improve(bench.base, 1)
    for number, parent in enumerate((bench.base, trained)):
        bench.runtime.publish(parent)
        rows = bench.rollouts(12, temperature=temperature, max_new_tokens=20)
        outcome = bench.step(parent, rows, [1.0] * 6 + [-1.0] * 6)
        assert isinstance(outcome, Candidate)
        assert outcome.metrics["logprob_diff_max"] < 1e-4
        assert outcome.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
        folder = bench.runtime.export(parent, tmp_path / f"{number}")
        for row in rows[:4]:
            count = len(row["loss_mask"])
            expected = plain_logprobs(folder, row["tokens"], count, temperature)
            assert row["rollout_log_probs"] == pytest.approx(expected, abs=1e-4)


def test_a_single_streamed_answer_agrees_too(bench: Bench, tiny: Path) -> None:
    events = list(bench.stream(PROMPTS[0], max_new_tokens=30, temperature=0.7, top_p=0.8))
    ids = [token for event in events for token in event["output_ids"]]
    got = [entry[0] for event in events for entry in event["meta_info"]["output_token_logprobs"]]
    assert len(events) > 1 and len(ids) == 30
    assert got == pytest.approx(plain_logprobs(tiny, PROMPTS[0] + ids, 30, 0.7), abs=1e-4)
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)


def test_publishing_during_eight_streams_breaks_none(bench: Bench) -> None:
    first = bench.improve(bench.base, 1)
    rows = bench.rollouts(8)
    outcome = bench.step(first, rows, [1.0, -1.0] * 4)
    assert isinstance(outcome, Candidate)
    second = release("r2", outcome.artifact.content_id, step=2)
    started = threading.Barrier(9)

    def follow(number: int) -> list[dict[str, Any]]:
        events = []
        for event in bench.stream(PROMPTS[number % 4], max_new_tokens=300, sampling_seed=number):
            events.append(event)
            if len(events) == 1:
                started.wait()
        return events

    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(follow, number) for number in range(8)]
        started.wait()
        bench.runtime.publish(second)
        after = bench.generate(PROMPTS[0])
        done = [stream.result() for stream in streams]
    for events in done:
        meta = events[-1]["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 300}
        assert sum(len(event["output_ids"]) for event in events) == 300
        assert meta["weight_versions"] == [{"version": first.content_id, "start": 0, "end": 300}]
    assert after["meta_info"]["weight_versions"] == [{"version": second.content_id, "start": 0, "end": 8}]


def test_rollback_gives_bit_equal_logprobs_and_the_same_next_step(bench: Bench) -> None:
    first = bench.improve(bench.base, 1)
    before = bench.generate(PROMPTS[1], max_new_tokens=40, sampling_seed=5)
    rows = bench.rollouts(8)
    once = bench.step(first, rows, [1.0, -1.0] * 4, step_id="from-first-once")
    bench.improve(bench.improve(first, 2), 3)
    changed = bench.generate(PROMPTS[1], max_new_tokens=40, sampling_seed=5)
    back = release("r4", first.content_id, step=1)
    bench.runtime.publish(back)
    again = bench.generate(PROMPTS[1], max_new_tokens=40, sampling_seed=5)
    assert logprobs(changed) != logprobs(before)
    assert again["output_ids"] == before["output_ids"]
    assert logprobs(again) == logprobs(before)
    # The optimizer is restored with the weights: the same rows give the same bytes as they did back then.
    twice = bench.step(back, rows, [1.0, -1.0] * 4, step_id="from-first-twice")
    assert isinstance(once, Candidate) and isinstance(twice, Candidate)
    assert once.artifact.content_id == twice.artifact.content_id


def test_a_step_is_made_once(bench: Bench) -> None:
    rows = bench.rollouts(4)
    first = bench.step(bench.base, rows, [1.0, -1.0, 1.0, -1.0], step_id="once")
    assert isinstance(first, Candidate)
    manifest = artifacts.read_manifest(bench.runtime.home, first.artifact.content_id)
    again = bench.step(bench.base, rows, [1.0, -1.0, 1.0, -1.0], step_id="once")
    assert isinstance(again, Candidate)
    assert again.artifact == first.artifact and dict(again.metrics) == dict(first.metrics)
    assert artifacts.read_manifest(bench.runtime.home, first.artifact.content_id) == manifest
    assert manifest["base_content_id"] == bench.base.content_id and manifest["step_id"] == "once"
    assert all(check["ok"] for check in first.checks.values())
    bench.runtime.settle("once", None)
    assert not artifact_path(bench.runtime.home, first.artifact.content_id).exists()
    bench.runtime.settle("once", None)


def test_a_served_artifact_is_not_removed(bench: Bench) -> None:
    first = bench.improve(bench.base, 1)
    bench.runtime.settle(f"step-{bench.steps}", None)
    assert artifact_path(bench.runtime.home, first.content_id).exists()


def test_rows_without_signal_are_skipped_and_counted(bench: Bench) -> None:
    rows = bench.rollouts(4)
    nothing = bench.step(bench.base, rows, [0.0] * 4)
    assert isinstance(nothing, Skip) and nothing.metrics["skipped_rows"] == 4
    some = bench.step(bench.base, rows, [0.0, 1.0, -1.0, 0.0])
    assert isinstance(some, Candidate) and some.metrics["skipped_rows"] == 2


def test_logprobs_that_do_not_agree_are_refused(bench: Bench) -> None:
    rows = bench.rollouts(2)
    rows[0]["rollout_log_probs"][3] -= 0.5
    outcome = bench.step(bench.base, rows, [1.0, -1.0])
    assert isinstance(outcome, Refused)
    assert outcome.reason.startswith("logprobs_disagree") and outcome.metrics["logprob_diff_max"] > 0.4


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda row: row["loss_mask"].pop(), "row 1"),
        (lambda row: row["tokens"].__setitem__(0, 298), "298"),
        (lambda row: row["rollout_log_probs"].__setitem__(0, float("nan")), "finite"),
        (lambda row: row.update(loss_mask=[0] * 8), "nothing to train"),
        (lambda row: row.update(tokens=[3] * 600 + row["tokens"][-8:]), "context"),
    ],
)
def test_a_bad_row_is_named_before_anything_changes(bench: Bench, change: Any, told: str) -> None:
    rows = bench.rollouts(2)
    change(rows[1])
    with pytest.raises(BadRequest, match=told):
        bench.step(bench.base, rows, [1.0, -1.0])


def test_a_parent_whose_files_are_gone_blocks(bench: Bench) -> None:
    rows = bench.rollouts(2)
    outcome = bench.step(release("r9", "0" * 32), rows, [1.0, -1.0])
    assert isinstance(outcome, Blocked) and "r9" in outcome.reason
    with pytest.raises(NotFound):
        bench.runtime.publish(release("r9", "0" * 32))


def test_two_scenarios_have_their_own_adapters(bench: Bench) -> None:
    other = release("r0", bench.base.content_id, scenario="other")
    bench.runtime.publish(other)
    plain = bench.generate(PROMPTS[2], "other", sampling_seed=1)
    mine = bench.improve(bench.base, 1)
    assert logprobs(bench.generate(PROMPTS[2], "other", sampling_seed=1)) == logprobs(plain)
    theirs = bench.improve(other, 1)
    assert theirs.content_id != mine.content_id
    alone = {name: bench.generate(PROMPTS[2], name, temperature=0.0, max_new_tokens=60) for name in ("s", "other")}
    with ThreadPoolExecutor(8) as pool:
        mixed = list(
            pool.map(
                lambda n: bench.generate(PROMPTS[2], ("s", "other")[n % 2], temperature=0.0, max_new_tokens=60),
                range(8),
            )
        )
    for number, answer in enumerate(mixed):
        expected = alone[("s", "other")[number % 2]]
        assert answer["output_ids"] == expected["output_ids"]
        assert logprobs(answer) == pytest.approx(logprobs(expected), abs=1e-4)


def test_a_killed_engine_comes_back_with_its_adapters(bench: Bench) -> None:
    served = bench.improve(bench.base, 1)
    before = bench.generate(PROMPTS[0], sampling_seed=3)
    url, pid = bench.runtime.engine_url, bench.runtime.status()["engine"]["pid"]
    os.kill(pid, signal.SIGKILL)

    def ready_again() -> bool:
        engine = bench.runtime.status()["engine"]
        return engine["state"] == "ready" and engine["pid"] not in (None, pid)

    eventually(ready_again)
    assert bench.runtime.engine_url == url
    after = bench.generate(PROMPTS[0], sampling_seed=3)
    assert logprobs(after) == logprobs(before)
    assert after["meta_info"]["weight_version"] == served.content_id
    assert {"died", "ready"} <= {event["what"] for name, event in bench.events if name == "engine"}


def test_a_trainer_killed_in_a_step_blocks_and_the_retry_makes_the_same_step(bench: Bench) -> None:
    rows = bench.rollouts(16)
    advantages = [1.0, -1.0] * 8
    expected = bench.step(bench.base, rows, advantages, step_id="unharmed")
    assert isinstance(expected, Candidate)
    outcomes: list[Any] = []
    worker = threading.Thread(
        target=lambda: outcomes.append(bench.step(bench.base, rows * 20, advantages * 20, step_id="killed"))
    )
    bench.events.clear()
    worker.start()
    eventually(lambda: any(name == "step" for name, _ in bench.events))
    os.kill(bench.runtime.status()["trainer"]["pid"], signal.SIGKILL)
    worker.join()
    assert isinstance(outcomes[0], Blocked)
    again = bench.step(bench.base, rows, advantages, step_id="after-death")
    assert isinstance(again, Candidate)
    assert again.artifact.content_id == expected.artifact.content_id


def test_reward_rises(bench: Bench, tiny: Path) -> None:
    """Half of the ids are paid, those that one direction of the frozen embedding tells apart; chance gets about half."""
    embedding = load_file(tiny / "model.safetensors")["model.embed_tokens.weight"]
    paid = set((embedding[:, 0] > 0).nonzero()[:, 0].tolist())
    head = release("r0", bench.base.content_id, scenario="learn")
    bench.runtime.publish(head)
    means = []
    for number in range(1, 13):
        rows = bench.rollouts(32, "learn")
        for row in rows:
            row["reward"] = sum(token in paid for token in row["tokens"][-8:]) / 8
        mean = sum(row["reward"] for row in rows) / len(rows)
        outcome = bench.step(head, rows, [row["reward"] - mean for row in rows])
        assert isinstance(outcome, Candidate), outcome
        means.append(outcome.metrics["reward_mean"])
        head = release(f"r{number}", outcome.artifact.content_id, scenario="learn", step=number)
        bench.runtime.publish(head)
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + 0.1, means


def test_full_weights_are_swapped_under_running_streams_and_back(tiny: Path, tmp_path: Path) -> None:
    full = start_bench(tmp_path / "home", tiny, mode="full", learning_rate=1e-3)
    try:
        first = full.improve(full.base, 1)
        before = full.generate(PROMPTS[0], max_new_tokens=20, sampling_seed=1)
        outcome = full.step(first, full.rollouts(4), [1.0, -1.0, 1.0, -1.0])
        assert isinstance(outcome, Candidate) and outcome.metrics["logprob_diff_max"] < 1e-4
        second = release("r2", outcome.artifact.content_id, step=2)
        events = full.stream(PROMPTS[0], max_new_tokens=400, sampling_seed=9)
        ids = list(next(events)["output_ids"])
        full.runtime.publish(second)
        values: list[float] = []
        for event in events:
            ids += event["output_ids"]
            values += logprobs(event)
        spans = event["meta_info"]["weight_versions"]
        assert [span["version"] for span in spans] == [first.content_id, second.content_id]
        assert spans[0]["end"] == spans[1]["start"] and spans[1]["end"] == 400
        after = 400 - spans[1]["start"]
        folder = artifact_path(full.runtime.home, second.content_id)
        expected = plain_logprobs(folder, [*PROMPTS[0], *ids], after)
        assert values[-after:] == pytest.approx(expected, abs=1e-4)
        full.runtime.publish(first)
        assert logprobs(full.generate(PROMPTS[0], max_new_tokens=20, sampling_seed=1)) == logprobs(before)
        with pytest.raises(BadConfig, match="one scenario"):
            full.runtime.publish(release("r0", full.base.content_id, scenario="second"))
    finally:
        full.runtime.stop()


def test_a_new_daemon_serves_the_heads_again(tiny: Path, bench: Bench, tmp_path: Path) -> None:
    trained = bench.improve(bench.base, 1)
    before = bench.generate(PROMPTS[3], sampling_seed=11)
    fresh = start_bench(bench.runtime.home, tiny)
    try:
        fresh.runtime.recover([trained])
        assert logprobs(fresh.generate(PROMPTS[3], sampling_seed=11)) == logprobs(before)
    finally:
        fresh.runtime.stop()
    assert fresh.runtime.status()["engine"]["state"] == "stopped"


def test_a_model_path_that_is_no_model_says_what_to_do(tmp_path: Path) -> None:
    runtime = TorchRuntime(tmp_path, tmp_path / "nothing", TrainSettings(), ServingTable(), lambda name, detail: None)
    with pytest.raises(ReefError, match="nothing") as caught:
        runtime.start()
    assert "reef model pull" in caught.value.hint
