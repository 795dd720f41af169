"""The official openai and anthropic clients against a daemon: what they read is what is recorded (issue 2, Show 11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from reef.inference.testing import Script, ScriptedProvider
from tests.clients import answers
from tests.support import Daemon, daemon, provider

RECEIPT = "x-reef-agent-record-id"
USER: dict[str, Any] = {"role": "user", "content": "look at a.txt"}
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
RESPONSES_TOOLS: Any = [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}]
MESSAGES_TOOLS: Any = [{"name": "look", "input_schema": PARAMETERS}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, ScriptedProvider]]:
    home = tmp_path_factory.mktemp("sdks")
    with provider(Script()) as upstream, daemon(home, reef_upstream_url=upstream.url) as one:
        yield one, upstream


def token(one: Daemon) -> str:
    return (one.home / "token").read_text(encoding="utf-8").strip()


def open_ai(one: Daemon) -> OpenAI:
    headers = {"x-reef-scenario": "sdk", "x-reef-session": "run-1"}
    return OpenAI(base_url=f"{one.url}/v1", api_key=token(one), max_retries=0, default_headers=headers)


def claude(one: Daemon) -> Anthropic:
    headers = {"x-reef-scenario": "sdk", "x-reef-session": "run-1"}
    return Anthropic(base_url=one.url, api_key=token(one), max_retries=0, default_headers=headers)


def recorded(one: Daemon, headers: Any) -> dict[str, Any]:
    """The record a receipt names, complete and in the session the client named."""
    with one.client("sdk") as client:
        record = client.record(headers[RECEIPT])
    assert (record["state"], record["session"]) == ("complete", "run-1")
    return record


def agrees(seen: Any, kept: Any, at: str = "") -> None:
    """Every value the client's object holds is the recorded one; what the client adds as None is not there."""
    if isinstance(seen, dict):
        for key, value in seen.items():
            if value is not None:
                assert isinstance(kept, dict) and key in kept, f"{at}.{key} is not recorded"
                agrees(value, kept[key], f"{at}.{key}")
    elif isinstance(seen, list):
        assert len(seen) == len(kept), at
        for index, (one, other) in enumerate(zip(seen, kept, strict=True)):
            agrees(one, other, f"{at}[{index}]")
    else:
        assert seen == kept, at


def play(upstream: ScriptedProvider, script: Script) -> None:
    upstream.scripts[:] = [script]
    upstream.seen.clear()


def chat(one: Daemon, *, stream: bool, **body: Any) -> tuple[Any, dict[str, Any]]:
    with open_ai(one) as client:
        if not stream:
            raw = client.chat.completions.with_raw_response.create(model="m", messages=[USER], **body)
            return raw.parse(), recorded(one, raw.headers)
        with client.chat.completions.stream(
            model="m", messages=[USER], stream_options={"include_usage": True}, **body
        ) as events:
            for _ in events:
                pass
            return events.current_completion_snapshot, recorded(one, events._response.headers)


def responses(one: Daemon, *, stream: bool, **body: Any) -> tuple[Any, dict[str, Any]]:
    with open_ai(one) as client:
        if not stream:
            raw = client.responses.with_raw_response.create(model="m", input="look at a.txt", **body)
            return raw.parse(), recorded(one, raw.headers)
        with client.responses.stream(model="m", input="look at a.txt", **body) as events:
            last = list(events)[-1]
            return last.response, recorded(one, events._response.headers)


def messages(one: Daemon, *, stream: bool, **body: Any) -> tuple[Any, dict[str, Any]]:
    body = {"max_tokens": 60, **body}
    with claude(one) as client:
        if not stream:
            raw = client.messages.with_raw_response.create(model="m", messages=[USER], **body)
            return raw.parse(), recorded(one, raw.headers)
        with client.messages.stream(model="m", messages=[USER], **body) as events:
            return events.get_final_message(), recorded(one, events.response.headers)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("tools", [False, True], ids=["text", "tools"])
def test_openai_chat(world: tuple[Daemon, ScriptedProvider], stream: bool, tools: bool) -> None:
    one, upstream = world
    play(upstream, (answers.chat_stream if stream else answers.chat_plain)(tools=tools))
    found, record = chat(one, stream=stream, **({"tools": CHAT_TOOLS} if tools else {}))
    message = found.choices[0].message
    if tools:
        call = message.tool_calls[0]
        assert (call.id, call.function.name, call.function.arguments) == ("call_1", "look", answers.CALL)
        assert record["response"]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == answers.CALL
    else:
        assert message.content == answers.TEXT
        assert record["response"]["choices"][0]["message"]["content"] == answers.TEXT
    choice = record["response"]["choices"][0]
    assert choice["finish_reason"] == found.choices[0].finish_reason == ("tool_calls" if tools else "stop")
    assert record["usage"]["output_tokens"] == found.usage.completion_tokens == 4
    assert record["request"]["messages"] == [USER]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("tools", [False, True], ids=["text", "tools"])
def test_openai_responses(world: tuple[Daemon, ScriptedProvider], stream: bool, tools: bool) -> None:
    one, upstream = world
    play(upstream, (answers.responses_stream if stream else answers.responses_plain)(tools=tools))
    found, record = responses(one, stream=stream, **({"tools": RESPONSES_TOOLS} if tools else {}))
    kept = record["response"]
    assert kept["status"] == found.status == "completed"
    assert record["usage"]["output_tokens"] == found.usage.output_tokens == 4
    if tools:
        call = found.output[0]
        assert (call.name, call.arguments) == ("look", answers.CALL)
        assert (kept["output"][0]["name"], kept["output"][0]["arguments"]) == ("look", answers.CALL)
    else:
        assert found.output_text == answers.TEXT
        assert kept["output"][0]["content"][0]["text"] == answers.TEXT


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("tools", [False, True], ids=["text", "tools"])
def test_anthropic_messages(world: tuple[Daemon, ScriptedProvider], stream: bool, tools: bool) -> None:
    one, upstream = world
    play(upstream, (answers.messages_stream if stream else answers.messages_plain)(tools=tools))
    found, record = messages(one, stream=stream, **({"tools": MESSAGES_TOOLS} if tools else {}))
    agrees([block.model_dump(exclude={"parsed_output"}) for block in found.content], record["response"]["content"])
    assert found.content[0].text == answers.TEXT
    assert record["response"]["stop_reason"] == found.stop_reason == ("tool_use" if tools else "end_turn")
    if tools:
        assert found.content[1].input == record["response"]["content"][1]["input"] == answers.ARGUMENTS
    assert record["usage"]["output_tokens"] == found.usage.output_tokens == 4


def test_what_a_provider_refuses_is_the_clients_own_error(world: tuple[Daemon, ScriptedProvider]) -> None:
    one, upstream = world
    refusal = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'
    play(upstream, Script([refusal], status=429))
    with open_ai(one) as client, pytest.raises(openai.RateLimitError, match="slow down") as refused:
        client.chat.completions.create(model="m", messages=[USER])
    with claude(one) as client, pytest.raises(anthropic.RateLimitError, match="slow down"):
        client.messages.create(model="m", messages=[USER], max_tokens=5)
    with one.client("sdk") as client:
        record = client.record(refused.value.response.headers[RECEIPT])
    assert (record["state"], record["reason"]["code"]) == ("failed", "upstream_429")


@pytest.mark.slow
def test_the_embedded_model(tiny_model: Path, tmp_path: Path) -> None:
    """One daemon for all: starting it costs more than what is looked at."""
    settings = {"reef_model_path": str(tiny_model), "reef_recipe": "pg"}
    with daemon(tmp_path, **settings) as one:
        for stream in (False, True):
            for tools in (False, True):
                embedded_chat(one, stream, {"tools": CHAT_TOOLS} if tools else {})
                embedded_responses(one, stream, {"tools": RESPONSES_TOOLS} if tools else {})
                embedded_messages(one, stream, {"tools": MESSAGES_TOOLS} if tools else {})
        with open_ai(one) as client:
            assert [model.id for model in client.models.list()] == ["tiny"]
            with pytest.raises(openai.BadRequestError, match="context length"):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "abc " * 600}])
        with claude(one) as other:
            counted = other.messages.count_tokens(model="m", messages=[USER])
            found, _ = messages(one, stream=False)
            assert counted.input_tokens == found.usage.input_tokens


def sampled(record: dict[str, Any], tokens: int) -> None:
    """The record holds exactly the tokens the client was told of, with their log-probs."""
    block = record["response"]["training"]
    assert len(block["loss_mask"]) == len(block["rollout_log_probs"]) == tokens
    assert record["release_id"] == "r0"


def embedded_chat(one: Daemon, stream: bool, tools: dict[str, Any]) -> None:
    found, record = chat(one, stream=stream, max_tokens=20, seed=3, **tools)
    assert record["response"]["choices"][0]["message"]["content"] == found.choices[0].message.content
    assert record["response"]["choices"][0]["finish_reason"] == found.choices[0].finish_reason
    sampled(record, found.usage.completion_tokens)


def embedded_responses(one: Daemon, stream: bool, tools: dict[str, Any]) -> None:
    found, record = responses(one, stream=stream, max_output_tokens=20, **tools)
    texts = [part["text"] for item in record["response"]["output"] for part in item.get("content") or ()]
    assert "".join(texts) == found.output_text
    assert record["response"]["status"] == found.status
    sampled(record, found.usage.output_tokens)


def embedded_messages(one: Daemon, stream: bool, tools: dict[str, Any]) -> None:
    found, record = messages(one, stream=stream, max_tokens=20, **tools)
    agrees([block.model_dump(exclude={"parsed_output"}) for block in found.content], record["response"]["content"])
    assert record["response"]["stop_reason"] == found.stop_reason
    sampled(record, found.usage.output_tokens)
