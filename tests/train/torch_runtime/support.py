"""What the torch runtime's tests share: a started runtime with calls, rows made from answers, a plain reference model."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM

from reef.core.artifacts import Candidate, Release, ReleaseState
from reef.runtime import Outcome, StepRequest
from reef.runtime.serving import ServingTable
from reef.train.torch_runtime.runtime import TorchRuntime
from reef.train.torch_runtime.settings import TrainSettings

PROMPTS = ([1, 50, 60, 70], [1, 80, 90, 100], [1, 40, 41], [1, 200, 201, 202, 203])


def _plain() -> httpx.HTTPTransport:
    return httpx.HTTPTransport(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def eventually(check: Callable[[], Any], wait_s: float = 60.0) -> Any:
    """The first truthy answer of ``check``."""
    deadline = time.monotonic() + wait_s
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


@dataclass
class Bench:
    """A runtime, its table, and what it said."""

    runtime: TorchRuntime
    serving: ServingTable
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    steps: int = 0

    @property
    def base(self) -> Release:
        """The release every scenario begins with."""
        return release("r0", self.runtime.capabilities().base_content_id)

    def client(self) -> httpx.Client:
        """A client of the engine; made without TLS, whose set-up would cost more than most calls here."""
        headers = {"Authorization": f"Bearer {self.runtime.engine_key}"}
        return httpx.Client(base_url=self.runtime.engine_url, headers=headers, timeout=60.0, transport=_plain())

    def generate(self, prompt: list[int], scenario: str = "s", **more: Any) -> dict[str, Any]:
        """One plain answer from what ``scenario`` serves."""
        with self.client() as client:
            answer = client.post("/generate", json=self.body(prompt, scenario, **more))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def stream(self, prompt: list[int], scenario: str = "s", **more: Any) -> Iterator[dict[str, Any]]:
        """The events of one streamed answer."""
        body = self.body(prompt, scenario, stream=True, **more)
        with self.client() as client, client.stream("POST", "/generate", json=body) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))

    def body(self, prompt: list[int], scenario: str = "s", *, stream: bool = False, **params: Any) -> dict[str, Any]:
        """A /generate body."""
        target = self.serving.get(scenario)
        sampling = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True, **params}
        return {
            "input_ids": prompt,
            "lora_path": None if target is None else target.adapter,
            "return_logprob": True,
            "stream": stream,
            "sampling_params": sampling,
        }

    def rollouts(self, count: int, scenario: str = "s", **more: Any) -> list[dict[str, Any]]:
        """Rows of ``count`` answers, made at once."""
        content_id = getattr(self.serving.get(scenario), "content_id", None)
        seeds = range(self.steps * 1000, self.steps * 1000 + count)
        with ThreadPoolExecutor(16) as pool:
            prompts = [PROMPTS[seed % len(PROMPTS)] for seed in seeds]
            answers = list(pool.map(lambda p, s: self.generate(p, scenario, sampling_seed=s, **more), prompts, seeds))
        temperature = more.get("temperature", 1.0)
        return [
            as_row(prompt, answer, temperature, content_id) for prompt, answer in zip(prompts, answers, strict=True)
        ]

    def step(self, parent: Release, rows: list[dict[str, Any]], advantages: list[float], **more: Any) -> Outcome:
        """A step of family pg under a fresh id, or the one given."""
        self.steps += 1
        request = StepRequest(
            more.get("step_id", f"step-{self.steps}"),
            parent.scenario,
            parent.step + 1,
            parent,
            {"loss": "pg", "batch_id": f"b{self.steps}", "rows": rows, "advantages": advantages},
        )
        return self.runtime.step(self.runtime.prepare(request))

    def improve(self, parent: Release, number: int) -> Release:
        """Train ``parent`` on fresh rollouts and publish the result."""
        rows = self.rollouts(8, parent.scenario)
        outcome = self.step(parent, rows, [1.0, -1.0] * 4)
        assert isinstance(outcome, Candidate), outcome
        made = release(f"r{number}", outcome.artifact.content_id, scenario=parent.scenario, step=number)
        self.runtime.publish(made)
        return made


def start_bench(home: Path, model: Path, **settings: Any) -> Bench:
    """A started runtime on ``home``."""
    serving = ServingTable()
    events: list[tuple[str, dict[str, Any]]] = []
    runtime = TorchRuntime(
        home, model, TrainSettings(**settings), serving, lambda name, detail: events.append((name, detail))
    )
    bench = Bench(runtime, serving, events)
    runtime.start()
    runtime.publish(bench.base)
    return bench


def release(release_id: str, content_id: str, *, scenario: str = "s", step: int = 0) -> Release:
    """A published release."""
    return Release(release_id, scenario, content_id, None, step, ReleaseState.PUBLISHED, 0.0)


def as_row(prompt: list[int], answer: dict[str, Any], temperature: float, content_id: str | None) -> dict[str, Any]:
    """The row that an answer trains as."""
    ids = answer["output_ids"]
    pairs = answer["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in pairs] == ids
    return {
        "tokens": [*prompt, *ids],
        "loss_mask": [1] * len(ids),
        "rollout_log_probs": [logprob for logprob, _, _ in pairs],
        "reward": 0.0,
        "temperature": temperature,
        "record_ids": [],
        "release_id": None,
        "content_id": content_id,
    }


def plain_logprobs(folder: Path, tokens: list[int], count: int, temperature: float = 1.0) -> list[float]:
    """Log-probs of the last ``count`` tokens by unmodified transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].float() / temperature
    logp = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return [float(value) for value in logp[-count:]]
