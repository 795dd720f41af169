"""The official openai and anthropic clients read what the dialects write, streamed and plain."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from reef.inference.template import ChatTemplate
from reef.inference.testing import Completion, ScriptedEngine
from tests.inference.conftest import Connect, gateway

TEXT = "<think>\nhm\n</think>\n\nnaïve 海 😀"
CALLS = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"k": "é"}}\n</tool_call>\n<tool_call>{"name": "list"}</tool_call>'
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"k": {"type": "string"}}}
USER: dict[str, Any] = {"role": "user", "content": "hi"}


@pytest.fixture
def clients(template: ChatTemplate, connect: Connect) -> Any:
    """Both clients in front of an engine that samples the given texts."""

    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def opened(*texts: str) -> Any:
        completions = [Completion(text) for text in texts]
        async with (
            ScriptedEngine(template, *completions, step=3) as engine,
            connect(engine.url) as backend,
            gateway(backend) as url,
            AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as open_ai,
            AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as claude,
        ):
            yield open_ai, claude

    return opened


async def test_openai_chat(clients: Any) -> None:
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
    async with clients(TEXT, CALLS, TEXT, CALLS) as (client, _):
        plain = await client.chat.completions.create(model="m", messages=[USER], logprobs=True, top_logprobs=1)
        called = await client.chat.completions.create(model="m", messages=[USER], tools=tools)
        async with client.chat.completions.stream(
            model="m", messages=[USER], stream_options={"include_usage": True}
        ) as stream:
            streamed = await stream.get_final_completion()
        async with client.chat.completions.stream(model="m", messages=[USER], tools=tools) as stream:
            called_again = await stream.get_final_completion()
    assert plain.choices[0].message.content == streamed.choices[0].message.content == "naïve 海 😀"
    assert plain.choices[0].message.reasoning_content == "hm" and plain.choices[0].finish_reason == "stop"
    assert plain.usage == streamed.usage and plain.usage.completion_tokens > 0
    assert plain.choices[0].logprobs.content[0].top_logprobs[0].logprob == -0.5
    for one in (called, called_again):
        choice = one.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content == "I look."
        said = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        assert said == [("look", '{"k": "é"}'), ("list", "{}")]
        assert len({call.id for call in choice.message.tool_calls}) == 2


async def test_openai_responses(clients: Any) -> None:
    tools: Any = [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}]
    async with clients(TEXT, CALLS, TEXT, CALLS, TEXT) as (client, _):
        plain = await client.responses.create(model="m", input="hi")
        called = await client.responses.create(model="m", input="hi", tools=tools)
        async with client.responses.stream(model="m", input="hi") as stream:
            streamed = await stream.get_final_response()
        async with client.responses.stream(model="m", input="hi", tools=tools) as stream:
            called_again = await stream.get_final_response()
        cut = await client.responses.create(model="m", input="hi", max_output_tokens=16)
    assert plain.output_text == streamed.output_text == "naïve 海 😀" and plain.status == "completed"
    assert [item.type for item in plain.output] == [item.type for item in streamed.output] == ["reasoning", "message"]
    assert plain.usage == streamed.usage and plain.usage.output_tokens_details.reasoning_tokens > 0
    for one in (called, called_again):
        assert [item.type for item in one.output] == ["message", "function_call", "function_call"]
        assert [(call.name, call.arguments) for call in one.output[1:]] == [("look", '{"k": "é"}'), ("list", "{}")]
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


async def test_anthropic_messages(clients: Any) -> None:
    tools: Any = [{"name": "look", "input_schema": PARAMETERS}]
    settings: Any = {"model": "m", "messages": [USER], "max_tokens": 300}
    thinking: Any = {"type": "adaptive"}
    async with clients(TEXT, CALLS, TEXT, CALLS) as (_, client):
        plain = await client.messages.create(**settings, thinking=thinking)
        called = await client.messages.create(**settings, tools=tools)
        async with client.messages.stream(**settings, thinking=thinking) as stream:
            streamed = await stream.get_final_message()
        async with client.messages.stream(**settings, tools=tools) as stream:
            called_again = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="m", messages=[USER])
        models = [model async for model in client.models.list()]
    for one in (plain, streamed):
        assert [(block.type, one.stop_reason) for block in one.content] == [
            ("thinking", "end_turn"),
            ("text", "end_turn"),
        ]
        assert one.content[0].thinking == "hm" and one.content[1].text == "naïve 海 😀"
    assert plain.usage.output_tokens == streamed.usage.output_tokens > 0
    for one in (called, called_again):
        assert one.stop_reason == "tool_use" and one.content[0].text == "I look."
        assert [(block.name, block.input) for block in one.content[1:]] == [("look", {"k": "é"}), ("list", {})]
    assert counted.input_tokens == plain.usage.input_tokens and models[0].id == "tiny"


async def test_conversations_go_on_with_what_the_clients_got(clients: Any) -> None:
    tools: Any = [{"name": "look", "input_schema": PARAMETERS}]
    async with clients(CALLS, "done") as (_, client):
        first = await client.messages.create(model="m", messages=[USER], max_tokens=300, tools=tools)
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "ok"} for block in first.content[1:]]
        messages: Any = [USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        second = await client.messages.create(model="m", messages=messages, max_tokens=300, tools=tools)
    assert second.content[0].text == "done" and second.usage.input_tokens > first.usage.input_tokens


async def test_refusals_reach_the_clients_as_400(clients: Any) -> None:
    async with clients("x") as (open_ai, claude):
        with pytest.raises(openai.BadRequestError, match="n: this engine"):
            await open_ai.chat.completions.create(model="m", messages=[USER], n=2)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await claude.messages.create(model="m", messages=[{"role": "user", "content": "abc " * 600}], max_tokens=5)
        models = [model async for model in open_ai.models.list()]
    assert models[0].id == "tiny"
