"""Clients in front of a provider that speaks one dialect only: the official SDKs, and the requests of real agents."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest

from reef.inference.base import ROUTES
from reef.inference.dialects import DIALECTS
from reef.inference.protocol import check_stream
from reef.inference.testing import Script, ScriptedProvider
from tests.clients import answers
from tests.clients.test_captures import CAPTURES, captured, send
from tests.clients.test_sdks import (
    CHAT_TOOLS,
    MESSAGES_TOOLS,
    RECEIPT,
    RESPONSES_TOOLS,
    USER,
    chat,
    claude,
    messages,
    open_ai,
    play,
    responses,
)
from tests.support import Daemon, daemon, provider

PATHS = {route: path for path, route in ROUTES.items()}
ANSWERS = {
    "chat": (answers.chat_plain, answers.chat_stream),
    "responses": (answers.responses_plain, answers.responses_stream),
    "messages": (answers.messages_plain, answers.messages_stream),
}
World = dict[str, tuple[Daemon, ScriptedProvider]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon for each dialect, its provider speaking nothing else, which the daemon has to find out."""
    with ExitStack() as stack:
        found: World = {}
        for route in DIALECTS:
            upstream = stack.enter_context(provider(Script()))
            upstream.only = [PATHS[route], "/v1/models"]
            home = tmp_path_factory.mktemp(route)
            one = stack.enter_context(daemon(home, reef_upstream_url=upstream.url, reef_token="reef-local"))
            (home / "token").write_text("reef-local")
            found[route] = one, upstream
        yield found


def texts_and_calls(route: str, found: Any) -> tuple[str, list[tuple[str, str, Any]]]:
    """What the client reads: its text, and its calls as id, name and arguments."""
    if route == "chat":
        message = found.choices[0].message
        calls = [(c.id, c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
        return message.content or "", calls
    if route == "responses":
        called = [item for item in found.output if item.type == "function_call"]
        return found.output_text, [(c.call_id, c.name, json.loads(c.arguments)) for c in called]
    text = "".join(block.text for block in found.content if block.type == "text")
    return text, [(block.id, block.name, block.input) for block in found.content if block.type == "tool_use"]


CLIENTS: dict[str, tuple[Any, Any]] = {
    "chat": (chat, CHAT_TOOLS),
    "responses": (responses, RESPONSES_TOOLS),
    "messages": (messages, MESSAGES_TOOLS),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("tools", [False, True], ids=["text", "tools"])
@pytest.mark.parametrize(("route", "target"), list(itertools.product(DIALECTS, repeat=2)))
def test_every_client_is_served_by_every_provider(
    world: World, route: str, target: str, tools: bool, stream: bool
) -> None:
    one, upstream = world[target]
    play(upstream, ANSWERS[target][stream](tools=tools))
    call, offered = CLIENTS[route]
    found, record = call(one, stream=stream, **({"tools": offered} if tools else {}))
    text, calls = texts_and_calls(route, found)
    call_id = "toolu_1" if target == "messages" else "call_1"
    assert calls == ([(call_id, "look", answers.ARGUMENTS)] if tools else [])
    assert text == (answers.TEXT if not tools or target == "messages" else "")
    usage = found.usage.model_dump()
    assert sum(usage.get(name) or 0 for name in ("input_tokens", "prompt_tokens")) == 9
    assert record["usage"]["output_tokens"] == 4 and record["meta"]["route"] == route
    reasons = {
        "chat": ("stop", "tool_calls"),
        "responses": ("completed", "completed"),
        "messages": ("end_turn", "tool_use"),
    }
    told = {"chat": lambda: found.choices[0].finish_reason, "responses": lambda: found.status}.get(
        route, lambda: found.stop_reason
    )()
    assert told == reasons[route][tools] == record["meta"]["finish_reason"]
    assert [seen.target.split("?")[0] for seen in upstream.seen] == [PATHS[target]]


@pytest.mark.parametrize(("route", "target"), list(itertools.permutations(DIALECTS, 2)))
def test_a_tool_loop_goes_round(world: World, route: str, target: str) -> None:
    """What the client got goes back as it came, with what its tool said; nothing of it is lost on the way."""
    one, upstream = world[target]
    play(upstream, ANSWERS[target][0](tools=True))
    call, offered = CLIENTS[route]
    found, _ = call(one, stream=False, tools=offered)
    play(upstream, ANSWERS[target][0](tools=False))
    call_id = "toolu_1" if target == "messages" else "call_1"
    with open_ai(one) as gpt, claude(one) as other:
        if route == "chat":
            result: Any = {"role": "tool", "tool_call_id": call_id, "content": "42 rows"}
            said: Any = [USER, found.choices[0].message, result]
            gpt.chat.completions.create(model="m", messages=said, tools=offered)
        elif route == "responses":
            result = {"type": "function_call_output", "call_id": call_id, "output": "42 rows"}
            gpt.responses.create(model="m", input=[USER, *found.output, result], tools=offered)
        else:
            result = {"type": "tool_result", "tool_use_id": call_id, "content": "42 rows"}
            said = [USER, {"role": "assistant", "content": found.content}, {"role": "user", "content": [result]}]
            other.messages.create(model="m", messages=said, max_tokens=60, tools=offered)
    turns = DIALECTS[target].parse(json.loads(upstream.seen[0].raw)).turns
    assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
    calls = [part for turn in turns for part in turn.parts if hasattr(part, "call_id")]
    assert [part.call_id for part in calls] == [call_id] * 2 and json.loads(calls[0].arguments) == answers.ARGUMENTS
    assert calls[1].parts[0].text == "42 rows"


def test_refusals_and_failures_are_the_clients_own_errors(world: World) -> None:
    one, upstream = world["chat"]
    wait = (("content-type", "application/json"), ("retry-after", "3"), ("x-request-id", "req-9"))
    play(upstream, Script([b'{"error": {"message": "slow down"}}'], status=429, headers=wait))
    with claude(one) as client:
        with pytest.raises(anthropic.RateLimitError, match="slow down") as limited:
            client.messages.create(model="m", messages=[USER], max_tokens=5)
        assert limited.value.response.headers["retry-after"] == "3" and limited.value.request_id == "req-9"
        assert limited.value.type == "rate_limit_error" and RECEIPT in limited.value.response.headers
        with pytest.raises(anthropic.BadRequestError, match="container: cannot be said"):
            client.messages.create(model="m", messages=[USER], max_tokens=5, container="c")
        play(upstream, answers.chat_plain(tools=False))
        with pytest.raises(anthropic.NotFoundError, match="counts no tokens"):
            client.messages.count_tokens(model="m", messages=[USER])
        play(upstream, Script([b'data: {"error": {"message": "melted"}}\n\n'], headers=answers.SSE))
        with (
            pytest.raises(anthropic.APIStatusError, match="melted"),
            client.messages.stream(model="m", messages=[USER], max_tokens=5) as events,
        ):
            list(events)
    one, upstream = world["messages"]
    play(upstream, Script([b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'], status=529))
    with open_ai(one) as gpt:
        with pytest.raises(openai.InternalServerError, match="busy") as busy:
            gpt.responses.create(model="m", input="hi")
        assert busy.value.status_code == 529 and busy.value.type == "overloaded_error"
        with pytest.raises(openai.BadRequestError, match="previous_response_id") as stateful:
            gpt.responses.create(model="m", input="hi", previous_response_id="r")
        assert stateful.value.param == "previous_response_id"


def test_status_says_what_is_spoken(world: World) -> None:
    for target, (one, upstream) in world.items():
        for route in DIALECTS:
            play(upstream, ANSWERS[target][0](tools=False))
            CLIENTS[route][0](one, stream=False)
        with one.client() as client:
            assert client.status()["inference"]["speaks"] == [target]


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures of real clients are not beside this checkout")
@pytest.mark.parametrize("target", list(DIALECTS))
@pytest.mark.parametrize("row", [one for one in captured() if urlsplit(one.values[0]["path"]).path in ROUTES])
def test_requests_of_real_agents_are_translated(world: World, target: str, row: dict[str, Any]) -> None:
    """None is refused, every word of the conversation arrives, every function is offered, and the answer keeps its protocol."""
    one, upstream = world[target]
    route = ROUTES[urlsplit(row["path"]).path]
    stream = row["body"].get("stream") is True
    play(upstream, ANSWERS[target][stream](tools=True))
    response = send(one, row, json.dumps(row["body"], ensure_ascii=False).encode())
    assert response.status_code == 200, response.text
    if stream and target != route:
        check_stream(route, response.content)
    asked = json.loads(upstream.seen[-1].raw)
    before, after = DIALECTS[route].parse(row["body"]), DIALECTS[target].parse(asked)
    assert [tool.wire for tool in after.tools] == [tool.wire for tool in before.tools]
    assert sorted(words(after)) == sorted(words(before))
    with one.client(scenario=None) as client:
        record = client.record(response.headers[RECEIPT])
    assert record["state"] == "complete", record["reason"]
    assert record["request"] == row["body"]


def words(prompt: Any) -> list[str]:
    """Every line of every text, result and argument of a conversation."""
    found: list[str] = []
    for turn in prompt.turns:
        for part in turn.parts:
            for inner in getattr(part, "parts", (part,)):
                text = getattr(inner, "text", None)
                if text is None and hasattr(inner, "arguments"):
                    text = json.dumps(json.loads(inner.arguments))
                found += [line for line in (text or "").split("\n") if line]
    return found


def test_what_passes_untouched_stays_untouched(world: World, tmp_path: Path) -> None:
    one, upstream = world["chat"]
    play(upstream, answers.chat_plain(tools=True))
    raw = b'{"model": "m",  "messages": [], "unheard_of": 1.0}'
    headers = {"x-reef-token": "reef-local", "content-type": "application/json"}
    with httpx.Client(trust_env=False) as client:
        response = client.post(f"{one.url}/v1/chat/completions", content=raw, headers=headers)
    assert upstream.seen[0].raw == raw and response.content == b"".join(answers.chat_plain(tools=True).chunks)
