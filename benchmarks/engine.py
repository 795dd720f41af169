"""Speed of the embedded engine over HTTP, side by side with bare loops over the same weights, and beside a training step.

    python benchmarks/engine.py --model DIR [--tokens 64] [--rounds 3] [--parts bare adapter training]

Three columns take turns in every round, so that noise of the machine falls on all alike: the engine (streamed /generate
with log-probs), transformers' ``generate``, and a bare loop of our own (forward with a DynamicCache, sample, gather).
Then the engine alone and the engine beside a train child that steps without pause take turns. Ratios are what counts;
on a machine that others use too, the ratios of processor time (Linux) say more than those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from reef.core.artifacts import Release, ReleaseState, artifact_path
from reef.runtime import StepRequest
from reef.runtime.serving import ServingTable
from reef.train.torch_runtime.modelfiles import model_facts
from reef.train.torch_runtime.runtime import TorchRuntime
from reef.train.torch_runtime.settings import TrainSettings

BATCHES = (1, 4, 16)
PROMPT_TOKENS = 30


def main() -> None:
    """Measure and print one table for each question."""
    options = _options()
    torch.set_num_threads(options.threads)
    settings = TrainSettings(serve_threads=options.threads)
    with tempfile.TemporaryDirectory() as home:
        runtime = TorchRuntime(Path(home), options.model, settings, ServingTable(), lambda name, detail: None)
        runtime.start()
        try:
            engine = Engine(runtime, options.tokens, model_facts(options.model).vocab)
            result: dict[str, Any] = {
                "machine": {"cores": os.cpu_count(), "torch": torch.__version__, "load": os.getloadavg()},
                "tokens": options.tokens,
                "threads": options.threads,
            }
            for part in options.parts:
                result[part] = PARTS[part](engine, runtime, options)
        finally:
            runtime.stop()
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))


class Engine:
    """Streams from a running engine; ``adapters`` are the names that requests use in turn."""

    def __init__(self, runtime: TorchRuntime, tokens: int, vocab: int) -> None:
        self._address = urlsplit(runtime.engine_url)
        self._key = runtime.engine_key
        self._pid = runtime.status()["engine"]["pid"]
        self._tokens = tokens
        self._vocab = vocab
        self.adapters: Sequence[str | None] = (None,)

    def rate(self, batch: int) -> float:
        """Tokens per second of ``batch`` requests at once, prompts included in the time."""
        began_at = time.perf_counter()
        with ThreadPoolExecutor(batch) as pool:
            tokens = sum(pool.map(self._stream, range(batch)))
        return tokens / (time.perf_counter() - began_at)

    def processor_s(self) -> float:
        """Processor time of the engine child so far; 0 where the system does not tell."""
        stat = Path(f"/proc/{self._pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _stream(self, number: int) -> int:
        connection = HTTPConnection(str(self._address.hostname), self._address.port, timeout=600)
        sampling = {"max_new_tokens": self._tokens, "ignore_eos": True, "sampling_seed": number}
        body = {
            "input_ids": prompt(number, self._vocab),
            "lora_path": self.adapters[number % len(self.adapters)],
            "sampling_params": sampling,
            "return_logprob": True,
            "stream": True,
        }
        connection.request("POST", "/generate", json.dumps(body), {"Authorization": f"Bearer {self._key}"})
        count = 0
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                count += len(event["meta_info"]["output_token_logprobs"])
        connection.close()
        return count


def prompt(number: int, vocab: int) -> list[int]:
    """A prompt of random ids, the same for the same number."""
    source = random.Random(number)
    return [source.randrange(3, vocab) for _ in range(PROMPT_TOKENS)]


def bare(engine: Engine, runtime: TorchRuntime, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The engine beside ``generate`` and beside a bare loop."""
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="sdpa")
    model.eval()
    vocab = model.config.get_text_config().vocab_size
    rows = []
    costs = {"engine": engine.processor_s, "generate": time.process_time, "loop": time.process_time}
    with torch.inference_mode():
        for batch in BATCHES:
            ids = torch.tensor([prompt(number, vocab) for number in range(batch)])
            columns: dict[str, Callable[[], float]] = {
                "engine": lambda b=batch: engine.rate(b),
                "generate": lambda i=ids: _timed(i, options.tokens, lambda: _generate(model, i, options.tokens)),
                "loop": lambda i=ids: _timed(i, options.tokens, lambda: _loop(model, i, options.tokens)),
            }
            spent: dict[str, list[float]] = {name: [] for name in columns}
            counted = {name: _counting(act, costs[name], spent[name]) for name, act in columns.items()}
            row: dict[str, Any] = {"batch": batch, **_take_turns(counted, options.rounds)}
            per_token_ms = {
                name: statistics.median(each[1:]) / batch / options.tokens * 1e3 for name, each in spent.items()
            }
            row["processor_ms_per_token"] = per_token_ms
            rows.append(row)
    _table("engine over HTTP against bare loops, tokens/s", rows, ("generate", "loop"))
    print("processor time per token, ms")
    for row in rows:
        cost = row["processor_ms_per_token"]
        shown = "  ".join(f"{name} {value:6.1f}" for name, value in cost.items())
        against = "  ".join(f"{name}/engine {cost[name] / cost['engine']:.2f}" for name in ("generate", "loop"))
        print(f"  B={row['batch']:<3} {shown}   {against}", flush=True)
    return rows


def adapter(engine: Engine, runtime: TorchRuntime, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The engine with one trained adapter, and with two in the same batch, beside the base alone."""
    made = [_step(runtime, f"adapter-{seed}", seed) for seed in (0, 1)]
    for content_id in made:
        folder = str(artifact_path(runtime.home, content_id).resolve())
        _post(runtime, "/load_lora_adapter", {"lora_name": content_id, "lora_path": folder})
    rows = []
    for batch in BATCHES:
        columns: dict[str, Callable[[], float]] = {
            "one": lambda b=batch: _with(engine, made[:1], b),
            "two": lambda b=batch: _with(engine, made, b),
            "base": lambda b=batch: _with(engine, [None], b),
        }
        rows.append({"batch": batch, **_take_turns(columns, options.rounds)})
    _table("one and two adapters against the base, tokens/s", rows, ("base",), ("one", "two"))
    return rows


def training(engine: Engine, runtime: TorchRuntime, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The engine alone and beside a train child that is always in a step."""
    rows = []
    for batch in BATCHES:
        alone: list[float] = []
        beside: list[float] = []
        for turn in range(options.rounds):
            alone.append(engine.rate(batch))
            with _always_training(runtime, f"{batch}-{turn}"):
                beside.append(engine.rate(batch))
        rows.append({"batch": batch, "beside": statistics.median(beside), "alone": statistics.median(alone)})
    _table("beside a training step against alone, tokens/s", rows, ("alone",), ("beside",))
    return rows


def _counting(act: Callable[[], float], cost_s: Callable[[], float], spent: list[float]) -> Callable[[], float]:
    """``act`` with the processor time it took noted in ``spent``."""

    def counted() -> float:
        before_s = cost_s()
        rate = act()
        spent.append(cost_s() - before_s)
        return rate

    return counted


PARTS = {"bare": bare, "adapter": adapter, "training": training}


def _with(engine: Engine, adapters: Sequence[str | None], batch: int) -> float:
    engine.adapters = adapters
    try:
        return engine.rate(batch)
    finally:
        engine.adapters = (None,)


def _timed(ids: torch.Tensor, tokens: int, act: Callable[[], None]) -> float:
    began_at = time.perf_counter()
    act()
    return ids.shape[0] * tokens / (time.perf_counter() - began_at)


def _generate(model: Any, ids: torch.Tensor, tokens: int) -> None:
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    for step, logits in enumerate(out.logits):
        at = ids.shape[1] + step
        torch.log_softmax(logits, -1).gather(1, out.sequences[:, at : at + 1])


def _loop(model: Any, ids: torch.Tensor, tokens: int) -> None:
    cache = DynamicCache()
    out = model(ids, cache=cache, use_cache=True, logits_to_keep=1)
    for step in range(tokens):
        logprobs = torch.log_softmax(out.logits[:, -1], -1)
        chosen = torch.multinomial(logprobs.exp(), 1)
        logprobs.gather(1, chosen)
        if step + 1 < tokens:
            out = model(chosen, cache=cache, use_cache=True, logits_to_keep=1)


def _take_turns(columns: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Medians of ``rounds`` turns of every column, after one turn that does not count."""
    seen: dict[str, list[float]] = {name: [] for name in columns}
    for turn in range(rounds + 1):
        for name, measure in columns.items():
            rate = measure()
            if turn:
                seen[name].append(rate)
    return {name: statistics.median(rates) for name, rates in seen.items()}


def _table(
    title: str, rows: list[dict[str, Any]], against: Sequence[str], measured: Sequence[str] = ("engine",)
) -> None:
    print(f"\n{title}")
    for row in rows:
        rates = "  ".join(f"{name} {row[name]:7.1f}" for name in (*measured, *against))
        for name in measured:
            row |= {f"{name}/{other}": round(row[name] / row[other], 3) for other in against}
        ratios = "  ".join(f"{name}/{other} {row[f'{name}/{other}']:.2f}" for name in measured for other in against)
        print(f"  B={row['batch']:<3} {rates}   {ratios}", flush=True)


def _step(runtime: TorchRuntime, step_id: str, seed: int, count: int = 8, length: int = 120) -> str:
    """One training step on made-up rows (4 prompts of 30 tokens, ``count`` answers); returns its content id."""
    source = random.Random(seed)
    vocab = model_facts(runtime.model_folder).vocab
    rows = [
        {
            "tokens": prompt(number % 4, vocab) + [source.randrange(3, vocab) for _ in range(length)],
            "loss_mask": [1] * length,
            "rollout_log_probs": [-10.0] * length,
            "reward": 0.0,
        }
        for number in range(count)
    ]
    base = Release("r0", "bench", runtime.capabilities().base_content_id, None, 0, ReleaseState.SERVING, 0.0)
    payload = {"loss": "sft", "batch_id": step_id, "rows": rows}
    outcome: Any = runtime.step(runtime.prepare(StepRequest(step_id, "bench", 1, base, payload)))
    return str(outcome.artifact.content_id)


@contextmanager
def _always_training(runtime: TorchRuntime, name: str) -> Iterator[None]:
    """A thread that has the train child make one step after another."""
    ended = threading.Event()

    def work() -> None:
        number = 0
        while not ended.is_set():
            _step(runtime, f"{name}-{number}", number)
            runtime.settle(f"{name}-{number}", None)
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _post(runtime: TorchRuntime, path: str, body: dict[str, Any]) -> None:
    address = urlsplit(runtime.engine_url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {runtime.engine_key}"})
    response = connection.getresponse()
    said = response.read()
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path}: {said.decode()}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each request")
    parser.add_argument("--rounds", type=int, default=3, help="turns that count")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of every column")
    parser.add_argument("--parts", nargs="+", choices=sorted(PARTS), default=list(PARTS), help="what to measure")
    parser.add_argument("--json", type=Path, default=None, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
