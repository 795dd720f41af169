"""The training inference backend against the embedded engine itself, with the tiny random model."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reef.core.records_types import RecordState
from reef.inference.assembly import assemble
from reef.inference.base import Finish
from reef.inference.protocol import check_stream
from reef.train.slime_runtime.reef_adapters.sglang_chat import SGLangChatTrainingInferenceBackend
from tests.inference.conftest import Connect, make_call
from tests.models import build_tiny_model

pytest.importorskip("torch")

USER = {"role": "user", "content": "digits 海"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@asynccontextmanager
async def engine(folder: Path) -> AsyncIterator[str]:
    """The URL of an engine child; it ends with its stdin."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "reef.train.torch_runtime.serve", "--model", str(folder), "--slots", "4",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "REEF_ENGINE_KEY": "k", "OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    try:
        ready = json.loads(await child.stdout.readline())
        yield f"http://127.0.0.1:{ready['port']}"
    finally:
        child.stdin.close()
        await child.wait()


async def ask(
    backend: SGLangChatTrainingInferenceBackend, route: str, body: dict[str, Any], call_id: str
) -> tuple[dict[str, Any], Finish]:
    answer = await backend.chat(make_call(route, body, call_id))
    sent = b"".join([chunk async for chunk in answer.slices()])
    await answer.aclose()
    if body.get("stream"):
        check_stream(route, sent)
    read = assemble(route, dict(answer.headers)["content-type"], sent)
    assert read.complete and read.body is not None
    return read.body, answer.finish(sent)


async def test_the_embedded_engine(tiny: Path, connect: Connect) -> None:
    """One child for all: starting it costs more than what is looked at."""
    async with engine(tiny) as url, connect(url, api_key="k", tokenizer_path=tiny, adapter=None) as backend:
        await backend.check()
        await streamed_and_plain_sample_the_same(backend)
        await many_at_once(backend)
        await aborts_are_resumed(backend)
        await a_reader_that_leaves_frees_its_slot(backend)


async def streamed_and_plain_sample_the_same(backend: SGLangChatTrainingInferenceBackend) -> None:
    body = {"messages": [USER], "max_tokens": 40, "seed": 11, "logprobs": True}
    plain, plain_finish = await ask(backend, "chat", body, "p1")
    streamed, finish = await ask(backend, "chat", body | {"stream": True}, "p2")
    assert plain["choices"][0]["message"] == streamed["choices"][0]["message"]
    assert finish.state is RecordState.COMPLETE and finish.training is not None and plain_finish.training is not None
    assert finish.training["tokens"] == plain_finish.training["tokens"]
    pairs = zip(finish.training["rollout_log_probs"], plain_finish.training["rollout_log_probs"], strict=True)
    assert max(abs(one - other) for one, other in pairs) < 1e-5
    assert finish.training["versions"][0]["version"].startswith("base-")
    shown = [one["logprob"] for one in plain["choices"][0]["logprobs"]["content"]]
    assert shown == plain_finish.training["rollout_log_probs"][: len(shown)]
    greedy = {"messages": [USER], "max_tokens": 12, "temperature": 0}
    first, _ = await ask(backend, "messages", greedy, "g1")
    again, finish = await ask(backend, "messages", greedy | {"stream": True}, "g2")
    assert first["content"] == again["content"] and finish.training is not None
    assert finish.training["temperature"] == 1.0 and all(value <= 0 for value in finish.training["rollout_log_probs"])


async def many_at_once(backend: SGLangChatTrainingInferenceBackend) -> None:
    asked = []
    for number in range(8):
        route, key = (("chat", "max_tokens"), ("responses", "max_output_tokens"), ("messages", "max_tokens"))[
            number % 3
        ]
        body: dict[str, Any] = {"input": "letters"} if route == "responses" else {"messages": [USER]}
        asked.append(ask(backend, route, body | {key: 20, "stream": number % 2 == 0}, f"m{number}"))
    for _, finish in await asyncio.gather(*asked):
        assert finish.state is RecordState.COMPLETE and finish.training is not None
        assert len(finish.training["loss_mask"]) == finish.usage["output_tokens"] <= 20


async def aborts_are_resumed(backend: SGLangChatTrainingInferenceBackend) -> None:
    """With a seed the resumed answer is token for token the one that nobody aborted."""
    body = {"messages": [USER], "max_tokens": 300, "seed": 8, "temperature": 1.5}
    untouched, expected = await ask(backend, "chat", body, "a1")
    answer = await backend.chat(make_call("chat", body | {"stream": True}, "a2"))
    slices = answer.slices()
    sent = await anext(slices) + await anext(slices)
    for _ in range(2):
        await backend._client.post("/pause_generation", {"mode": "abort"})
        await backend._client.post("/continue_generation", {})
        sent += await anext(slices)
    async for chunk in slices:
        sent += chunk
    finish = answer.finish(sent)
    read = assemble("chat", "text/event-stream", sent)
    assert answer.generation._attempt > 0  # type: ignore[attr-defined]
    assert finish.state is RecordState.COMPLETE and finish.training is not None and expected.training is not None
    assert finish.training["tokens"] == expected.training["tokens"]
    assert finish.training["versions"] == expected.training["versions"]
    assert finish.usage == expected.usage
    assert read.body is not None and read.body["choices"][0]["message"] == untouched["choices"][0]["message"]


async def a_reader_that_leaves_frees_its_slot(backend: SGLangChatTrainingInferenceBackend) -> None:
    answer = await backend.chat(make_call("chat", {"messages": [USER], "max_tokens": 400, "stream": True}, "l1"))
    await anext(answer.slices())
    await answer.aclose()
    assert answer.finish(b"", "client_gone").state is RecordState.ABORTED
    _, finish = await ask(backend, "chat", {"messages": [USER], "max_tokens": 5}, "l2")
    assert finish.state is RecordState.COMPLETE
