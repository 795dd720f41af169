"""The training inference backend against a scripted engine over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from reef.core.records_types import RecordState
from reef.errors import BadConfig, BadRequest, ReefError, Unavailable, UpstreamError
from reef.inference.assembly import Assembled, assemble
from reef.inference.base import Finish
from reef.inference.protocol import check_stream
from reef.inference.template import ChatTemplate
from reef.inference.testing import Completion, ScriptedEngine
from reef.runtime.serving import ServingTable
from reef.train.slime_runtime.reef_adapters.sglang_chat import SGLangChatTrainingInferenceBackend
from tests.inference.conftest import Connect, make_call

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {}}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [USER], "tools": [{"type": "function", "function": TOOL}]},
    "responses": {"input": "hi", "tools": [{"type": "function", **TOOL}]},
    "messages": {"messages": [USER], "thinking": {"type": "adaptive"}, "tools": [{"name": "look", "input_schema": {}}]},
}
ANSWER = (
    "<think>\nhm 海\n</think>\n\nnaïve 😀 text\n"
    '<tool_call>\n{"name": "look", "arguments": {"k": 1}}\n</tool_call>\n<tool_call>{"name": "look"}</tool_call>'
)


async def ask(
    backend: SGLangChatTrainingInferenceBackend, route: str, body: dict[str, Any], call_id: str = "c1"
) -> tuple[Assembled, Finish, bytes]:
    answer = await backend.chat(make_call(route, body, call_id))
    try:
        sent = b"".join([chunk async for chunk in answer.slices()])
    finally:
        await answer.aclose()
    assert answer.status == 200 and answer.release_id == "r1"
    if body.get("stream"):
        check_stream(route, sent)
    return assemble(route, dict(answer.headers)["content-type"], sent), answer.finish(sent), sent


async def drain(slices: AsyncIterator[bytes]) -> None:
    async for _ in slices:
        pass


@pytest.mark.parametrize("route", list(BODIES))
@pytest.mark.parametrize("cumulative", [False, True], ids=["deltas", "cumulative"])
@pytest.mark.parametrize("step", [1, 3, 1000])
async def test_streamed_and_plain_answers_are_the_same(
    route: str, cumulative: bool, step: int, template: ChatTemplate, connect: Connect
) -> None:
    async with (
        ScriptedEngine(template, Completion(ANSWER), cumulative=cumulative, step=step, key="k") as engine,
        connect(engine.url, api_key="k") as backend,
    ):
        plain, plain_finish, _ = await ask(backend, route, BODIES[route], "c1")
        streamed, finish, _ = await ask(backend, route, BODIES[route] | {"stream": True}, "c1-again")
    assert plain.complete and streamed.complete and plain.body is not None and streamed.body is not None
    unlike = {"created", "created_at", "usage"}
    first, second = (json.dumps({k: v for k, v in one.body.items() if k not in unlike}) for one in (plain, streamed))
    assert first.replace("c1", "") == second.replace("c1-again", "").replace('"content": ""', '"content": null')
    assert "hm 海" in plain.body.__str__() and "naïve 😀 text" in plain.body.__str__()
    assert finish.state is RecordState.COMPLETE and finish.reason is None and finish.finish_reason == "stop"
    assert finish.usage == plain_finish.usage
    assert plain_finish.training == finish.training and finish.training is not None
    sent = engine.requests[-1]
    ids = [*template.encode(ANSWER), *template.stop_ids]
    assert finish.training["tokens"] == [*sent["input_ids"], *ids]
    assert finish.training["loss_mask"] == [1] * len(ids)
    assert finish.training["rollout_log_probs"] == [-(n + 1) / 8 for n in range(len(ids))]
    assert finish.training["versions"] == [{"version": "v0", "start": 0, "end": len(ids)}]
    assert sent["lora_path"] == "a1" and sent["return_logprob"] is True


@pytest.mark.parametrize("cumulative", [False, True], ids=["deltas", "cumulative"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_an_aborted_generation_is_resumed_from_its_ids(
    cumulative: bool, stream: bool, template: ChatTemplate, connect: Connect
) -> None:
    text = "naïve 海😀 and more"
    ids = template.encode(text)
    cuts = [len(template.encode("naïve ")) + 1, 2]
    completion = Completion(text, abort_after=cuts)
    async with (
        ScriptedEngine(template, completion, cumulative=cumulative, step=2) as engine,
        connect(engine.url) as backend,
    ):
        body = {"messages": [USER], "max_tokens": 100, "seed": 5, "stream": stream}
        read, finish, _ = await ask(backend, "chat", body)
    assert read.body is not None and read.body["choices"][0]["message"]["content"] == text
    first, second, third = engine.requests
    assert second["input_ids"] == first["input_ids"] + ids[: cuts[0]]
    assert third["input_ids"] == first["input_ids"] + ids[: sum(cuts)]
    assert [one["sampling_params"]["max_new_tokens"] for one in engine.requests] == [
        100,
        100 - cuts[0],
        100 - sum(cuts),
    ]
    assert [one["sampling_params"]["sampling_seed"] for one in engine.requests] == [5, 5, 5]
    assert len({one["rid"] for one in engine.requests}) == 3
    assert finish.training is not None
    assert finish.training["rollout_log_probs"] == [-(n + 1) / 8 for n in range(len(ids) + 1)]
    assert finish.training["versions"] == [{"version": "v0", "start": 0, "end": len(ids) + 1}]


async def test_version_spans_are_joined_over_a_change_of_weights(template: ChatTemplate, connect: Connect) -> None:
    async with (
        ScriptedEngine(template, Completion("abcdef", abort_after=[3])) as engine,
        connect(engine.url, adapter=None) as backend,
    ):
        answer = await backend.chat(make_call("chat", {"messages": [USER], "stream": True}))
        seen = 0
        async for chunk in answer.slices():
            seen += b'"content":"' in chunk
            if seen == 3:
                engine.version = "v1"
        finish = answer.finish(b"")
    assert "lora_path" not in engine.requests[0] and finish.training is not None
    spans = finish.training["versions"]
    assert [(span["version"], span["start"]) for span in spans] == [("v0", 0), ("v1", 3)]
    assert spans[-1]["end"] == len(finish.training["loss_mask"])


async def test_an_engine_that_only_aborts_is_given_up(template: ChatTemplate, connect: Connect) -> None:
    async with (
        ScriptedEngine(template, Completion("abc", abort_after=[0] * 50)) as engine,
        connect(engine.url) as backend,
    ):
        with pytest.raises(Unavailable, match="keeps aborting"):
            await backend.chat(make_call("chat", {"messages": [USER]}))
    assert len(engine.requests) < 20


async def test_a_reader_that_leaves_aborts_the_generation(template: ChatTemplate, connect: Connect) -> None:
    async with (
        ScriptedEngine(template, Completion("word " * 50), pause_s=0.01) as engine,
        connect(engine.url) as backend,
    ):
        answer = await backend.chat(make_call("chat", {"messages": [USER], "stream": True}))
        slices = answer.slices()
        sent = await anext(slices) + await anext(slices)
        await answer.aclose()
        finish = answer.finish(sent, "client_gone")
        for count, stream in ((2, False), (3, True)):
            body = {"messages": [USER], "stream": stream}
            work = asyncio.ensure_future(backend.chat(make_call("chat", body, f"c{count}")))
            await engine.reached(count)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
    assert engine.aborted == ["c1-0", "c2-0", "c3-0"]
    assert finish.state is RecordState.ABORTED and finish.reason == "client_gone" and finish.training is None
    assert finish.usage["output_tokens"] > 0


async def test_stops_limits_and_sampling_reach_the_engine(template: ChatTemplate, connect: Connect) -> None:
    async with (
        ScriptedEngine(template, Completion("abcdefgh")) as engine,
        connect(engine.url, max_answer_tokens=30) as backend,
    ):
        body = {"messages": [USER], "stop": ["X"], "max_tokens": 3, "temperature": 0, "top_p": 0.5}
        read, finish, _ = await ask(backend, "chat", body)
        await ask(backend, "chat", {"messages": [USER]}, "c2")
        await ask(backend, "chat", {"messages": [USER], "max_tokens": 32000}, "c3")
        prompt_tokens = (await backend.count_tokens(make_call("chat", {"messages": [USER]})))["input_tokens"]
    assert read.finish_reason == "length" and finish.finish_reason == "length" and finish.training is not None
    assert finish.training["temperature"] == 1.0 and finish.training["sampling"]["temperature"] == 0
    params = [one["sampling_params"] for one in engine.requests]
    assert (params[0]["stop"], params[0]["max_new_tokens"], params[0]["top_p"]) == (["X"], 3, 0.5)
    assert params[0]["stop_token_ids"] == list(template.stop_ids)
    assert params[1]["max_new_tokens"] == 30 and params[2]["max_new_tokens"] == 512 - prompt_tokens
    assert prompt_tokens == len(engine.requests[0]["input_ids"])


async def test_a_prompt_over_the_context_is_refused_before_the_engine_is_asked(
    template: ChatTemplate, connect: Connect
) -> None:
    long = {"role": "user", "content": "abc " * 600}
    async with ScriptedEngine(template, Completion("x")) as engine, connect(engine.url) as backend:
        with pytest.raises(BadRequest, match="prompt is too long") as told:
            await backend.chat(make_call("chat", {"messages": [long], "stream": True}))
    assert told.value.code == "context_length_exceeded" and not engine.requests


async def test_log_probs_for_the_client(template: ChatTemplate, connect: Connect) -> None:
    body = {"messages": [USER], "logprobs": True, "top_logprobs": 2}
    async with (
        ScriptedEngine(template, Completion("é海"), step=2) as engine,
        connect(engine.url) as backend,
    ):
        read, _, _ = await ask(backend, "chat", body)
        streamed, _, _ = await ask(backend, "chat", body | {"stream": True}, "c2")
    assert read.body is not None and streamed.body is not None
    content = read.body["choices"][0]["logprobs"]["content"]
    assert content == streamed.body["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in content for byte in one["bytes"]).decode() == "é海"
    assert [one["logprob"] for one in content] == [-(n + 1) / 8 for n in range(len(content))]
    assert [len(one["top_logprobs"]) for one in content] == [2] * len(content)
    assert engine.requests[0]["top_logprobs_num"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_log_prob_that_is_not_finite_makes_no_training_block(
    stream: bool, template: ChatTemplate, connect: Connect
) -> None:
    completion = Completion("ab", log_probs=[-0.5, float("-inf"), -0.5, -0.5])
    async with ScriptedEngine(template, completion) as engine, connect(engine.url) as backend:
        body = {"messages": [USER], "logprobs": True, "stream": stream}
        read, finish, sent = await ask(backend, "chat", body)
    assert finish.state is RecordState.COMPLETE and finish.training is None
    assert finish.training_error is not None and "not finite" in finish.training_error
    assert read.complete and b"Infinity" not in sent and b"NaN" not in sent


async def test_an_empty_answer_says_so(template: ChatTemplate, connect: Connect) -> None:
    async with ScriptedEngine(template, Completion("")) as engine, connect(engine.url) as backend:
        read, finish, _ = await ask(backend, "chat", {"messages": [USER], "stream": True})
    assert read.empty and finish.state is RecordState.COMPLETE and finish.reason == "empty_answer"


async def test_engine_failures_are_our_errors(template: ChatTemplate, connect: Connect) -> None:
    async with ScriptedEngine(template, Completion("x"), key="k") as engine:
        async with connect(engine.url, api_key="wrong") as backend:
            with pytest.raises(UpstreamError, match="wrong key"):
                await backend.chat(make_call("chat", {"messages": [USER]}))
        url = engine.url
    async with connect(url) as backend:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await backend.chat(make_call("chat", {"messages": [USER], "stream": True}))


async def test_an_engine_that_dies_leaves_an_incomplete_record(template: ChatTemplate, connect: Connect) -> None:
    async with connect("http://127.0.0.1:1") as backend:
        async with ScriptedEngine(template, Completion("word " * 50), pause_s=0.01) as engine:
            backend._client._url = lambda: engine.url
            answer = await backend.chat(make_call("chat", {"messages": [USER], "stream": True}))
            slices = answer.slices()
            sent = await anext(slices) + await anext(slices)
        with pytest.raises(ReefError) as told:
            await drain(slices)
        await answer.aclose()
        finish = answer.finish(sent, told.value.code)
    assert finish.state is RecordState.INCOMPLETE and finish.training is None


async def test_slices_asked_for_twice_go_on(template: ChatTemplate, connect: Connect) -> None:
    async with ScriptedEngine(template, Completion("ab")) as engine, connect(engine.url) as backend:
        answer = await backend.chat(make_call("chat", {"messages": [USER], "stream": True}))
        sent = b""
        async for chunk in answer.slices():
            sent += chunk
            break
        async for chunk in answer.slices():
            sent += chunk
    assert sent.count(b'"role"') == 1 and sent.endswith(b"data: [DONE]\n\n")


async def test_the_boot_check_and_the_model_list(template: ChatTemplate, connect: Connect, model_folder: Path) -> None:
    async with ScriptedEngine(template, Completion("x")) as engine, connect(engine.url) as backend:
        await backend.check()
        listed = await backend.models()
        assert backend.serving("s") == "r1" and backend.serving("other") is None
    assert listed["data"][0]["id"] == "tiny" and listed["data"][0]["max_model_len"] == 512
    async with (
        ScriptedEngine(template, Completion("x", log_probs=[float("nan")] * 9)) as engine,
        connect(engine.url) as backend,
    ):
        with pytest.raises(BadConfig, match="no trainable tokens"):
            await backend.check()
    with pytest.raises(BadConfig, match="mystery"):
        SGLangChatTrainingInferenceBackend(
            "http://127.0.0.1:1",
            api_key=None,
            tokenizer_path=model_folder,
            serving=ServingTable(),
            model_name="m",
            tool_parser="mystery",
        )
