"""The decode loop in process: batching that changes nothing, stops, abort, pause modes, exact weight swaps."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from reef.errors import BadRequest
from reef.train.torch_runtime import engine as engine_module
from reef.train.torch_runtime.engine import Engine
from reef.train.torch_runtime.generation import Event, GenerateRequest
from reef.train.torch_runtime.loading import load_model
from reef.train.torch_runtime.modelfiles import model_facts
from reef.train.torch_runtime.sampling import Sampling
from reef.train.torch_runtime.weights import copy_into, load_beside
from tests.models import build_tiny_model
from tests.train.torch_runtime.support import plain_logprobs


class Calls:
    """An engine with a queue for each request."""

    def __init__(self, folder: Path, slots: int = 4) -> None:
        facts = model_facts(folder)
        self.engine = Engine(
            load_model(folder, "float32", torch.device("cpu")),
            Tokenizer.from_file(str(folder / "tokenizer.json")),
            version="v1",
            context=facts.context,
            stop_ids=facts.stop_ids,
            slots=slots,
            deliver=lambda events: [sink(event) for sink, event in events] and None,
        )
        self.engine.start()

    def begin(self, prompt: list[int], *, stream: bool = False, rid: str = "r", **sampling: Any) -> queue.Queue[Event]:
        events: queue.Queue[Event] = queue.Queue()
        wanted = Sampling(**{"max_new_tokens": 12, "ignore_eos": True, **sampling})
        self.engine.submit(GenerateRequest(rid, tuple(prompt), wanted, logprobs=True, stream=stream), events.put)
        return events

    def run(self, prompt: list[int], **sampling: Any) -> Event:
        return self.begin(prompt, **sampling).get(timeout=30)


@pytest.fixture
def calls(tiny: Path) -> Iterator[Calls]:
    made = Calls(tiny)
    yield made
    made.engine.close()


def logprobs(event: Event) -> list[float]:
    return [entry[0] for entry in event["meta_info"]["output_token_logprobs"]]


PROMPTS = [[1, *range(20 + n, 23 + 9 * n)] for n in range(9)]


def test_answers_to_one_prompt_compute_it_once_and_are_as_alone(calls: Calls) -> None:
    prompt = [1, *range(30, 60)]
    alone = [calls.run(prompt, seed=seed) for seed in range(4)]
    assert all(event["meta_info"]["cached_tokens"] == 0 for event in alone)
    together = [events.get(timeout=30) for events in [calls.begin(prompt, seed=seed) for seed in range(4)]]
    shared = sorted(event["meta_info"]["cached_tokens"] for event in together)
    assert shared[-1] == len(prompt) - 1
    assert sum(shared) >= 2 * (len(prompt) - 1)
    for one, other in zip(alone, together, strict=True):
        assert other["output_ids"] == one["output_ids"]
        assert logprobs(other) == pytest.approx(logprobs(one), abs=1e-5)


def test_what_runs_beside_a_request_does_not_change_it(calls: Calls) -> None:
    alone = [calls.run(prompt, seed=n, max_new_tokens=5 + 3 * n) for n, prompt in enumerate(PROMPTS)]
    waiting = [calls.begin(prompt, seed=n, max_new_tokens=5 + 3 * n) for n, prompt in enumerate(PROMPTS)]
    together = [events.get(timeout=30) for events in waiting]
    for one, other in zip(alone, together, strict=True):
        assert one["output_ids"] == other["output_ids"] and one["text"] == other["text"]
        assert logprobs(one) == pytest.approx(logprobs(other), abs=1e-4)


def test_long_prompts_are_computed_in_pieces_while_others_decode(calls: Calls, tiny: Path) -> None:
    running = calls.begin([1, 5], max_new_tokens=200, seed=1)
    prompt = [3 + n % 290 for n in range(engine_module.PREFILL_BESIDE_TOKENS * 3 + 7)]
    event = calls.run(prompt, seed=2)
    assert logprobs(event) == pytest.approx(plain_logprobs(tiny, prompt + event["output_ids"], 12), abs=1e-4)
    other = running.get(timeout=30)
    assert logprobs(other) == pytest.approx(plain_logprobs(tiny, [1, 5, *other["output_ids"]], 200), abs=1e-4)


def test_a_prompt_of_several_passes_that_nothing_runs_beside(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "wide", context=2048)
    wide = Calls(model)
    try:
        prompts = [[3 + n % (290 - more) for n in range(engine_module.PREFILL_ALONE_TOKENS * 2 + 7)] for more in (0, 1)]
        first = wide.run(prompts[0], seed=1)
        together = [wide.begin(prompt, seed=1) for prompt in prompts]
        for prompt, event in zip(prompts, [first, together[1].get(timeout=30)], strict=True):
            assert logprobs(event) == pytest.approx(plain_logprobs(model, prompt + event["output_ids"], 12), abs=1e-4)
        assert together[0].get(timeout=30)["output_ids"] == first["output_ids"]
    finally:
        wide.engine.close()


def test_prompt_logprobs(calls: Calls, tiny: Path) -> None:
    prompt = [3 + n % 290 for n in range(600 % 500)]
    events: queue.Queue[Event] = queue.Queue()
    request = GenerateRequest("r", tuple(prompt), Sampling(max_new_tokens=1), logprobs=True, logprob_start=0)
    calls.engine.submit(request, events.put)
    entries = events.get(timeout=30)["meta_info"]["input_token_logprobs"]
    assert [token for _, token, _ in entries] == prompt and entries[0][0] is None
    expected = plain_logprobs(tiny, prompt, len(prompt) - 1)
    assert [logprob for logprob, _, _ in entries[1:]] == pytest.approx(expected, abs=1e-4)


def test_eos_ends_and_is_kept_as_an_id_but_not_as_text(calls: Calls) -> None:
    for seed in range(400):
        event = calls.run([1, 60], seed=seed, ignore_eos=False, max_new_tokens=40)
        if event["meta_info"]["finish_reason"]["type"] == "stop":
            break
    assert event["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert event["output_ids"][-1] == 2 and len(logprobs(event)) == len(event["output_ids"])
    assert "<|im_end|>" not in event["text"]


def test_stop_ids_and_stop_texts(calls: Calls) -> None:
    free = calls.run([1, 60], seed=3, max_new_tokens=30)
    wanted = free["output_ids"][7]
    stopped = calls.run([1, 60], seed=3, max_new_tokens=30, stop_token_ids=frozenset({wanted}))
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": wanted}
    assert stopped["output_ids"] == free["output_ids"][: free["output_ids"].index(wanted) + 1]
    letter = next(char for char in free["text"] if char.isascii() and char.isprintable())
    cut = calls.run([1, 60], seed=3, max_new_tokens=30, stop=(letter,))
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": letter}
    assert cut["text"] == free["text"].split(letter)[0]


def test_abort_gives_what_there_is(calls: Calls) -> None:
    events = calls.begin([1, 7], stream=True, rid="gone", max_new_tokens=480)
    other = calls.begin([1, 8], rid="stays", max_new_tokens=100)
    events.get(timeout=30)
    calls.engine.abort("gone")
    calls.engine.abort("unknown")
    last = events.get(timeout=30)
    while last["meta_info"]["finish_reason"] is None:
        last = events.get(timeout=30)
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < last["meta_info"]["completion_tokens"] < 480
    assert len(other.get(timeout=30)["output_ids"]) == 100
    assert calls.engine.load()["num_running_reqs"] == 0


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_changes_nothing(calls: Calls, mode: str) -> None:
    expected = calls.run([1, 9], seed=4, max_new_tokens=200)
    events = calls.begin([1, 9], seed=4, max_new_tokens=200, stream=True)
    ids = events.get(timeout=30)["output_ids"]
    calls.engine.at_boundary(lambda: calls.engine.pause(mode)).result(10)
    late = calls.begin([1, 10])
    with pytest.raises(queue.Empty):
        late.get(timeout=0.1)
    calls.engine.at_boundary(calls.engine.resume).result(10)
    assert late.get(timeout=30)["meta_info"]["completion_tokens"] == 12
    while True:
        event = events.get(timeout=30)
        ids = ids + event["output_ids"]
        if event["meta_info"]["finish_reason"]:
            break
    assert ids == expected["output_ids"]


def test_pause_by_abort_ends_what_runs_and_holds_what_comes(calls: Calls) -> None:
    running = calls.begin([1, 9], max_new_tokens=480, stream=True)
    running.get(timeout=30)
    calls.engine.at_boundary(lambda: calls.engine.pause("abort")).result(10)
    event = running.get(timeout=30)
    while event["meta_info"]["finish_reason"] is None:
        event = running.get(timeout=30)
    assert event["meta_info"]["finish_reason"]["type"] == "abort"
    late = calls.begin([1, 10])
    calls.engine.at_boundary(calls.engine.resume).result(10)
    assert len(late.get(timeout=30)["output_ids"]) == 12


def test_new_weights_in_the_middle_give_exact_spans(calls: Calls, tiny: Path, tmp_path: Path) -> None:
    other = build_tiny_model(tmp_path / "other", seed=1)
    fresh = load_beside(other, calls.engine.model)
    waiting = [calls.begin([1, 30 + n], seed=n, max_new_tokens=300, stream=True) for n in range(3)]
    gathered = [events.get(timeout=30) for events in waiting]

    def swap() -> None:
        copy_into(calls.engine.model, fresh)
        calls.engine.set_version("v2")
        calls.engine.forget_keys()

    calls.engine.at_boundary(swap).result(30)
    for number, (events, first) in enumerate(zip(waiting, gathered, strict=True)):
        ids, values, event = list(first["output_ids"]), logprobs(first), first
        while event["meta_info"]["finish_reason"] is None:
            event = events.get(timeout=30)
            ids += event["output_ids"]
            values += logprobs(event)
        spans = event["meta_info"]["weight_versions"]
        cut = spans[0]["end"]
        assert spans == [{"version": "v1", "start": 0, "end": cut}, {"version": "v2", "start": cut, "end": 300}]
        tokens = [1, 30 + number, *ids]
        assert values[:cut] == pytest.approx(plain_logprobs(tiny, tokens, 300)[:cut], abs=1e-4)
        assert values[cut:] == pytest.approx(plain_logprobs(other, tokens, 300)[cut:], abs=1e-4)


def test_a_model_of_other_shapes_is_refused_and_the_old_one_serves(calls: Calls, tmp_path: Path) -> None:
    before = calls.run([1, 2, 3], seed=1)
    with pytest.raises(BadRequest):
        load_beside(tmp_path, calls.engine.model)
    assert logprobs(calls.run([1, 2, 3], seed=1)) == logprobs(before)


@pytest.mark.parametrize(
    ("prompt", "sampling", "told"),
    [([], {}, "empty"), ([1, 298], {}, "297"), ([1] * 500, {"max_new_tokens": 13}, "512 tokens")],
)
def test_what_cannot_run_is_refused(calls: Calls, prompt: list[int], sampling: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        calls.begin(prompt, **sampling)
