"""Dialects, requests outwards: what a client said in one dialect is said in another, or refused by the name of its field."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import BadRequest
from reef.inference.dialects import DIALECTS
from reef.inference.dialects.prompt import (
    Choice,
    File,
    Format,
    Image,
    Prompt,
    Result,
    Setting,
    Text,
    Thought,
    Tool,
    ToolCall,
    Turn,
)

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"k": {"type": "string"}}}
PAIRS = list(itertools.permutations(DIALECTS, 2))
PDF = "data:application/pdf;base64,JVBERg=="
PNG = "data:image/png;base64,iVBORw=="


def turn(source: str, target: str, body: dict[str, Any], stream: bool = False) -> dict[str, Any]:
    """A request of dialect ``source`` as one of dialect ``target``; it can be read again, and it is JSON."""
    asked = DIALECTS[target].ask(DIALECTS[source].parse(body), "m", stream)
    DIALECTS[target].parse(json.loads(json.dumps(asked)))
    return asked


CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "and kind"}]},
        {
            "role": "user",
            "name": "ada",
            "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PNG}}],
        },
        {
            "role": "assistant",
            "content": "I look",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "A", "type": "function", "function": {"name": "look", "arguments": '{"k": "é"}'}},
                {"id": "B", "type": "function", "function": {"name": "look", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "B", "content": "two"},
        {"role": "tool", "tool_call_id": "A", "content": [{"type": "text", "text": "one"}]},
        {"role": "user", "content": "only Tuesdays please"},
        {"role": "system", "content": "late"},
        {"role": "user", "content": "go on"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "look", "description": "d", "parameters": SCHEMA, "strict": True}}
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": False,
    "max_completion_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "reasoning_effort": "high",
    "user": "u1",
    "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA, "strict": True}},
    "stream_options": {"include_usage": True},
    "store": False,
    "metadata": {"a": "b"},
    "prompt_cache_key": "x",
}


def test_chat_to_messages() -> None:
    asked = turn("chat", "messages", CHAT, stream=True)
    assert asked["system"] == [{"type": "text", "text": "be brief"}, {"type": "text", "text": "and kind"}]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}
    assert asked["messages"] == [
        {"role": "user", "content": [text("[ada]"), text("see"), image]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "<thinking>\nhm\n</thinking>"},
                {"type": "text", "text": "I look"},
                {"type": "tool_use", "id": "A", "name": "look", "input": {"k": "é"}},
                {"type": "tool_use", "id": "B", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "A", "content": [{"type": "text", "text": "one"}]},
                {"type": "tool_result", "tool_use_id": "B", "content": [{"type": "text", "text": "two"}]},
                {"type": "text", "text": "only Tuesdays please"},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "late"}]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
    ]
    assert asked["tools"] == [{"name": "look", "description": "d", "input_schema": SCHEMA, "strict": True}]
    assert asked["tool_choice"] == {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    assert asked["thinking"] == {"type": "adaptive"}
    assert asked["output_config"] == {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}}
    settings = ("max_tokens", "temperature", "top_p", "metadata", "stream", "model")
    assert [asked[name] for name in settings] == [9, 0.5, 0.9, {"user_id": "u1"}, True, "m"]
    assert "max_tokens" in turn("chat", "messages", {"messages": [USER]}), "this dialect demands one"


def test_chat_to_responses() -> None:
    asked = turn("chat", "responses", CHAT | {"logprobs": True, "top_logprobs": 2, "verbosity": "low"})
    assert asked["instructions"] == "be brief\n\nand kind"
    image = {"type": "input_image", "image_url": PNG, "detail": "auto"}
    assert asked["input"] == [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "[ada]"}, {"type": "input_text", "text": "see"}, image],
        },
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look", "annotations": []}],
        },
        {"type": "function_call", "call_id": "A", "name": "look", "arguments": '{"k": "é"}'},
        {"type": "function_call", "call_id": "B", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "A", "output": "one"},
        {"type": "function_call_output", "call_id": "B", "output": "two"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "only Tuesdays please"}]},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "late"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
    ]
    assert asked["tools"][0] == {
        "type": "function",
        "name": "look",
        "description": "d",
        "parameters": SCHEMA,
        "strict": True,
    }
    assert asked["tool_choice"] == {"type": "function", "name": "look"} and asked["parallel_tool_calls"] is False
    assert asked["text"] == {
        "format": {"type": "json_schema", "name": "f", "schema": SCHEMA, "strict": True},
        "verbosity": "low",
    }
    assert asked["reasoning"] == {"effort": "high", "summary": "auto"} and asked["store"] is False
    assert (asked["max_output_tokens"], asked["top_logprobs"], asked["metadata"]) == (9, 2, {"a": "b"})
    assert asked["include"] == ["message.output_text.logprobs"]


def use(call_id: str, name: str = "look") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"id": call_id}}


def result(call_id: str, *content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": list(content), **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 32000,
    "system": [text("billing"), {**text("sys"), "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [text("<system-reminder>"), text("go")]},
        {"role": "system", "content": "late"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "SIG"},
                {"type": "redacted_thinking", "data": "sealed"},
                text("I look"),
                use("A"),
                use("B"),
            ],
        },
        {"role": "user", "content": [text("note"), result("A", text("42 rows"))]},
        {"role": "user", "content": [result("B", text("7 rows"), is_error=True), text("only Tuesdays please")]},
    ],
    "tools": [
        {"name": "look", "description": "d", "input_schema": SCHEMA, "eager_input_streaming": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "stop_sequences": ["END"],
    "temperature": 1,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "medium"},
    "metadata": {"user_id": "u"},
    "context_management": {"edits": []},
}


def test_messages_to_chat_keeps_results_by_their_calls_and_loses_nothing() -> None:
    asked = turn("messages", "chat", MESSAGES, stream=True)
    calls = [
        {"id": one, "type": "function", "function": {"name": "look", "arguments": json.dumps({"id": one})}}
        for one in "AB"
    ]
    assert asked["messages"] == [
        {"role": "system", "content": "billing\nsys"},
        {"role": "user", "content": "<system-reminder>\ngo"},
        {"role": "system", "content": "late"},
        {"role": "assistant", "content": "I look", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "A", "content": "42 rows"},
        {"role": "tool", "tool_call_id": "B", "content": "[error]\n7 rows"},
        {"role": "user", "content": "note"},
        {"role": "user", "content": "only Tuesdays please"},
    ]
    function = {"name": "look", "description": "d", "parameters": SCHEMA}
    assert asked["tools"] == [{"type": "function", "function": function}], (
        "a provider's own tool is not offered elsewhere"
    )
    assert asked["tool_choice"] == "required" and asked["parallel_tool_calls"] is False
    settings = ("max_tokens", "stop", "temperature", "reasoning_effort", "user", "stream")
    assert [asked[name] for name in settings] == [32000, ["END"], 1, "medium", "u", True]
    assert asked["stream_options"] == {"include_usage": True} and "thinking" not in asked


def test_messages_to_responses() -> None:
    asked = turn("messages", "responses", {key: value for key, value in MESSAGES.items() if key != "stop_sequences"})
    kinds = [(item["type"], item.get("role") or item.get("call_id")) for item in asked["input"]]
    assert kinds == [
        ("message", "user"),
        ("message", "system"),
        ("reasoning", None),
        ("message", "assistant"),
        ("function_call", "A"),
        ("function_call", "B"),
        ("function_call_output", "A"),
        ("function_call_output", "B"),
        ("message", "user"),
        ("message", "user"),
    ]
    assert asked["instructions"] == "billing\nsys" and asked["tool_choice"] == "required"
    assert asked["tools"][0]["strict"] is False, "what is not said is strict in this dialect"
    assert asked["input"][7]["output"] == "[error]\n7 rows"


RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "sys",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "dev"}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "go"},
                {"type": "input_image", "image_url": "https://x.test/a.png"},
            ],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "ENC"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
        {"type": "function_call", "call_id": "a", "name": "spawn", "namespace": "agents", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "done"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": PNG}],
        },
    ],
    "tools": [
        {
            "type": "namespace",
            "name": "agents",
            "description": "",
            "tools": [{"type": "function", "name": "spawn", "parameters": {}}],
        },
        {
            "type": "custom",
            "name": "patch",
            "description": "p",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start"},
        },
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "store": False,
    "prompt_cache_key": "k",
    "client_metadata": {"x": "y"},
}


def test_responses_to_chat() -> None:
    asked = turn("responses", "chat", RESPONSES)
    assert asked["messages"] == [
        {"role": "system", "content": "sys\n\ndev"},
        {
            "role": "user",
            "content": [text("go"), {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}],
        },
        {
            "role": "assistant",
            "content": "I look",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "agents__spawn", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "patch", "arguments": '{"input": "*** Begin"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "seen\n[image 1, given back by a]"},
        {"role": "tool", "tool_call_id": "b", "content": "done"},
        {
            "role": "user",
            "content": [text("[image 1, given back by a]"), {"type": "image_url", "image_url": {"url": PNG}}],
        },
    ]
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["agents__spawn", "patch"]
    patch = asked["tools"][1]["function"]
    assert patch["parameters"]["required"] == ["input"] and patch["description"].endswith("lark grammar:\nstart")
    assert asked["tool_choice"] == "auto" and asked["reasoning_effort"] == "low"
    assert not {"store", "prompt_cache_key", "client_metadata", "include", "parallel_tool_calls"} & asked.keys()


def test_responses_to_messages() -> None:
    asked = turn("responses", "messages", RESPONSES)
    said, given = asked["messages"][1]["content"], asked["messages"][2]["content"]
    assert [block["type"] for block in said] == ["text", "text", "tool_use", "tool_use"]
    assert said[0]["text"] == "<thinking>\nhm\n</thinking>", "nobody else may sign what OpenAI sealed"
    assert (said[2]["name"], said[3]["input"]) == ("agents__spawn", {"input": "*** Begin"})
    assert [block["tool_use_id"] for block in given] == ["a", "b"]
    assert given[0]["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}


def test_seals_go_back_to_who_made_them_and_to_nobody_else() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": "reef.responses.ENC"}
    red = {"type": "redacted_thinking", "data": "reef.responses.RED"}
    body = {"messages": [USER, {"role": "assistant", "content": [signed, red, text("a")]}, USER]}
    sealed = turn("messages", "responses", body)["input"][1:3]
    assert sealed == [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "ENC"},
        {"type": "reasoning", "summary": [], "encrypted_content": "RED"},
    ]
    assert turn("messages", "chat", body)["messages"][1] == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "hm",
    }
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "reef.messages.SIG"}
    worded = thought | {"content": [{"type": "reasoning_text", "text": "hm"}]}
    asked = turn(
        "responses", "messages", {"input": [USER, worded, thought, {"role": "assistant", "content": "a"}, USER]}
    )
    assert asked["messages"][1]["content"][:2] == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG"},
        {"type": "redacted_thinking", "data": "SIG"},
    ]
    details = [
        {"index": 0, "type": "reasoning.text", "text": "hm", "signature": "reef.messages.SIG"},
        {"index": 1, "type": "reasoning.text", "text": "no", "signature": "a stranger's"},
    ]
    spoken = {"role": "assistant", "content": "a", "reasoning_content": "hm", "reasoning_details": details}
    asked = turn("chat", "messages", {"messages": [USER, spoken, USER]})
    assert asked["messages"][1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "SIG"}


def test_names_and_ids_fit_the_dialect_and_stay_the_same() -> None:
    long = "mcp__" + "x" * 90
    tools = [{"name": long, "input_schema": {}}]
    body = {
        "messages": [
            USER,
            {"role": "assistant", "content": [use("A", long)]},
            {"role": "user", "content": [result("A")]},
        ]
    }
    asked = turn("messages", "chat", body | {"tools": tools, "tool_choice": {"type": "tool", "name": long}})
    name = asked["tools"][0]["function"]["name"]
    assert len(name) <= 64 and name == asked["messages"][1]["tool_calls"][0]["function"]["name"]
    assert asked["tool_choice"]["function"]["name"] == name
    odd = [
        USER,
        {
            "role": "assistant",
            "tool_calls": [{"id": one, "function": {"name": "f", "arguments": "{}"}} for one in ("f:0", "f.0")],
        },
        *({"role": "tool", "tool_call_id": one, "content": "x"} for one in ("f:0", "f.0")),
    ]
    asked = turn("chat", "messages", {"messages": odd})
    uses = [block["id"] for block in asked["messages"][1]["content"]]
    assert uses == [block["tool_use_id"] for block in asked["messages"][2]["content"]] and len(set(uses)) == 2
    assert all(set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for one in uses)


@pytest.mark.parametrize(
    ("source", "target", "body", "field"),
    [
        ("chat", "messages", {"n": 2}, "n"),
        ("chat", "responses", {"n": 2}, "n"),
        ("chat", "messages", {"seed": 1}, "seed"),
        ("chat", "responses", {"stop": "END"}, "stop"),
        ("chat", "responses", {"frequency_penalty": 0.5}, "frequency_penalty"),
        ("chat", "messages", {"logit_bias": {"1": 5}}, "logit_bias"),
        ("chat", "messages", {"logprobs": True}, "logprobs"),
        ("chat", "messages", {"min_p": 0.1}, "min_p"),
        ("chat", "messages", {"verbosity": "low"}, "verbosity"),
        ("chat", "messages", {"service_tier": "flex"}, "service_tier"),
        ("chat", "messages", {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat", "responses", {"response_format": {"type": "grammar"}}, "response_format"),
        ("chat", "messages", {"web_search_options": {"x": 1}}, "web_search_options"),
        ("chat", "messages", {"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ("chat", "messages", {"unheard_of": 1}, "unheard_of"),
        ("chat", "messages", {"messages": [USER, {"role": "assistant", "content": "and"}]}, "messages[1]"),
        (
            "chat",
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0]",
        ),
        (
            "chat",
            "messages",
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]},
                    {"role": "tool", "tool_call_id": "a", "content": "x"},
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
        ),
        ("responses", "chat", {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
        ("responses", "chat", {"input": "x", "conversation": "c"}, "conversation"),
        ("responses", "messages", {"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ("responses", "chat", {"input": "x", "background": True}, "background"),
        ("responses", "chat", {"input": "x", "reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ("responses", "chat", {"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]"),
        ("responses", "chat", {"input": "x", "tools": [{"type": "mcp"}]}, "tools[0]"),
        ("responses", "chat", {"input": "x", "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ("responses", "chat", {"input": "x", "tool_choice": "required"}, "tool_choice"),
        ("messages", "chat", {"messages": [USER], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ("responses", "chat", {"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type"),
        (
            "responses",
            "messages",
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0]",
        ),
        (
            "responses",
            "chat",
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x.test/a.pdf"}]}]},
            "input[0].content[0]",
        ),
        ("messages", "chat", {"messages": [USER, {"role": "assistant", "content": "The answer is "}]}, "messages[1]"),
        ("messages", "responses", {"messages": [USER], "stop_sequences": ["END"]}, "stop_sequences"),
        ("messages", "responses", {"messages": [USER], "top_k": 5}, "top_k"),
        ("messages", "chat", {"messages": [USER], "mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ("messages", "chat", {"messages": [USER], "container": "c"}, "container"),
        ("messages", "chat", {"messages": [USER], "inference_geo": "us"}, "inference_geo"),
        ("messages", "chat", {"messages": [USER], "output_config": {"task_budget": 1}}, "output_config.task_budget"),
        ("messages", "chat", {"messages": [USER], "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        (
            "messages",
            "chat",
            {"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]},
            "messages[0].content[0]",
        ),
        ("messages", "chat", {"messages": [{"role": "user", "content": [result("x")]}]}, "messages[0].content[0]"),
        (
            "messages",
            "chat",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}
                ]
            },
            "messages[0].content[0]",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(source: str, target: str, body: dict[str, Any], field: str) -> None:
    body = {"messages": [USER], **body} if source == "chat" else body
    with pytest.raises(BadRequest) as told:
        turn(source, target, body)
    assert told.value.field == field and told.value.message.startswith(field)


def test_a_long_user_id_is_told_by_its_hash() -> None:
    user = json.dumps({"device_id": "d" * 64, "session_id": "s" * 36})
    for target in ("chat", "responses"):
        asked = turn("messages", target, {"messages": [USER], "metadata": {"user_id": user}})
        assert len(asked["user"]) == 64 and asked["user"] != user[:64]
        assert asked == turn("messages", target, {"messages": [USER], "metadata": {"user_id": user}})
    assert turn("chat", "messages", {"messages": [USER], "user": user})["metadata"] == {"user_id": user}


def test_defaults_need_not_be_said() -> None:
    plain = {"n": 1, "frequency_penalty": 0, "logit_bias": {}, "verbosity": "medium", "parallel_tool_calls": True}
    off = {"logprobs": False, "store": False, "service_tier": "auto", "response_format": {"type": "text"}}
    nothing = {
        "seed": None,
        "stop": None,
        "top_logprobs": None,
        "functions": None,
        "audio": None,
        "modalities": ["text"],
    }
    for target in ("messages", "responses"):
        asked = turn("chat", target, {"messages": [USER], **plain, **off, **nothing})
        assert asked == turn("chat", target, {"messages": [USER]})


def test_a_subset_of_the_tools_is_all_that_is_offered() -> None:
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("f", "g")]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    asked = turn("responses", "chat", {"input": "x", "tools": tools, "tool_choice": allowed})
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["g"] and asked["tool_choice"] == "required"


def test_documents() -> None:
    pdf = {
        "type": "document",
        "title": "T",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
    }
    body = {"messages": [{"role": "user", "content": [pdf]}]}
    assert turn("messages", "chat", body)["messages"][0]["content"] == [
        {"type": "file", "file": {"filename": "T", "file_data": PDF}}
    ]
    assert turn("messages", "responses", body)["input"][0]["content"] == [
        {"type": "input_file", "filename": "T", "file_data": PDF}
    ]
    back = {"messages": [{"role": "user", "content": [{"type": "file", "file": {"filename": "T", "file_data": PDF}}]}]}
    assert turn("chat", "messages", back)["messages"][0]["content"] == [pdf]
    words = {"type": "document", "title": "T", "source": {"type": "text", "data": "body", "media_type": "text/plain"}}
    assert (
        turn("messages", "chat", {"messages": [{"role": "user", "content": [words]}]})["messages"][0]["content"]
        == "T\nbody"
    )


# -- any conversation

WORDS = st.text(alphabet='ab é海😀\n"\\<', min_size=1, max_size=5)
SETTINGS = {
    "max_tokens": st.integers(1, 99),
    "temperature": st.sampled_from([0, 0.5, 1]),
    "top_p": st.sampled_from([0.1, 1.0]),
    "effort": st.sampled_from(["low", "high"]),
    "user": WORDS,
    "parallel": st.just(False),
    "format": st.just(Format("json_schema", SCHEMA, "answer")),
}
TOOLS = (Tool("look", "look", "d", SCHEMA), Tool("g", "g", "", {"type": "object", "properties": {}}))
IMAGES = st.sampled_from([Image("https://x.test/a.png"), Image("", "image/png", "iVBORw==")])
FILES = st.just(File("doc", "", "application/pdf", "JVBERg=="))


@st.composite
def conversations(draw: st.DrawFn) -> Prompt:
    """Turns of a user and an assistant, with calls and their results in between, and some settings."""
    turns = [Turn("system", (Text(draw(WORDS)),))] if draw(st.booleans()) else []
    count = 0
    for _ in range(draw(st.integers(1, 3))):
        turns.append(
            Turn("user", tuple(draw(st.lists(st.one_of(WORDS.map(Text), IMAGES, FILES), min_size=1, max_size=3))))
        )
        thought = [Thought(draw(WORDS))] if draw(st.booleans()) else []
        calls: list[ToolCall] = []
        for _ in range(draw(st.integers(0, 2))):
            count += 1
            arguments = draw(st.sampled_from(["{}", '{"n": 42}', '{"s": "海\\u00e9"}']))
            calls.append(ToolCall(f"call_{count}", draw(st.sampled_from(["look", "g"])), arguments))
        said = [Text(draw(WORDS))] if not calls or draw(st.booleans()) else []
        turns.append(Turn("assistant", (*thought, *said, *calls)))
        for one in calls:
            parts = tuple(draw(st.lists(st.one_of(WORDS.map(Text), IMAGES), min_size=1, max_size=2)))
            turns.append(Turn("tool", (Result(one.call_id, parts, draw(st.booleans())),)))
    turns.append(Turn("user", (Text(draw(WORDS)),)))
    settings = {name: Setting(draw(value), name) for name, value in SETTINGS.items() if draw(st.booleans())}
    choice = draw(st.sampled_from([None, Choice("auto"), Choice("none"), Choice("required"), Choice("one", "g")]))
    return Prompt(tuple(turns), TOOLS, choice, settings)


def content(prompt: Prompt) -> Any:
    """All that was said, as a list of who said what, lines that follow each other as one text."""
    said: list[Any] = []
    for one in prompt.turns:
        for part in one.parts:
            for inner in part.parts if isinstance(part, Result) else (part,):
                new = part.call_id if isinstance(part, Result) else one.role, type(inner).__name__, _said(inner)
                if said and said[-1][:2] == new[:2] and isinstance(inner, Text):
                    new = *new[:2], (f"{said.pop()[2][0]}\n{new[2][0]}",)
                said.append(new)
    return said


def _said(part: Any) -> tuple[Any, ...]:
    if isinstance(part, ToolCall):
        return part.call_id, part.name, json.loads(part.arguments)
    if isinstance(part, Image):
        return part.url, part.data
    return (part.data,) if isinstance(part, File) else (part.text,)


@pytest.mark.parametrize("route", ["responses", "messages"])
@given(prompt=conversations())
def test_what_is_asked_is_what_is_read(route: str, prompt: Prompt) -> None:
    prompt = _unmarked(prompt) if route == "responses" else prompt
    if route == "messages":  # an unsigned thought can only be told
        turns = [replace(one, parts=tuple(p for p in one.parts if not isinstance(p, Thought))) for one in prompt.turns]
        prompt = replace(prompt, turns=tuple(turns))
    read = DIALECTS[route].parse(json.loads(json.dumps(DIALECTS[route].ask(prompt, "m", False))))
    assert content(read) == content(prompt)
    assert [(tool.name, tool.parameters) for tool in read.tools] == [(tool.name, tool.parameters) for tool in TOOLS]
    kinds = [one.choice.kind if one.choice is not None else "auto" for one in (read, prompt)]
    assert kinds[0] == kinds[1]
    for name, setting in prompt.settings.items():
        kept = read.get(name)
        if name == "parallel" and prompt.choice == Choice("none"):
            continue
        assert kept == setting.value or (name == "format" and kept.schema == SCHEMA), name
    assert not read.unread


def _unmarked(prompt: Prompt) -> Prompt:
    """Without the flag of failed tools, which becomes words elsewhere."""
    turns = []
    for one in prompt.turns:
        turns.append(
            replace(one, parts=tuple(replace(p, is_error=False) if isinstance(p, Result) else p for p in one.parts))
        )
    return replace(prompt, turns=tuple(turns))


@pytest.mark.parametrize("through", ["messages", "responses"])
@given(prompt=conversations())
def test_chat_comes_back_from_a_journey(through: str, prompt: Prompt) -> None:
    first = DIALECTS["chat"].ask(_plain(prompt), "m", False)
    there = DIALECTS[through].ask(DIALECTS["chat"].parse(json.loads(json.dumps(first))), "m", False)
    back = DIALECTS["chat"].ask(DIALECTS[through].parse(json.loads(json.dumps(there))), "m", False)
    assert [_flat(message) for message in back["messages"]] == [_flat(message) for message in first["messages"]]
    kept = [{**tool, "function": {"strict": False, **tool["function"]}} for tool in first["tools"]]
    assert back["tools"] == (kept if through == "responses" else first["tools"])
    assert back.get("tool_choice", "auto") == first.get("tool_choice", "auto")


def _plain(prompt: Prompt) -> Prompt:
    """A conversation without what chat says in words of its own: pictures from tools, and unsigned thoughts."""
    turns = []
    for one in _unmarked(prompt).turns:
        parts = tuple(part for part in one.parts if not isinstance(part, Thought))
        if one.role == "tool":
            given = parts[0]
            assert isinstance(given, Result)
            parts = (replace(given, parts=tuple(p for p in given.parts if isinstance(p, Text)) or (Text("x"),)),)
        turns.append(replace(one, parts=parts))
    return replace(prompt, turns=tuple(turns))


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls}
