"""Dialects, inwards, and the chat template: what clients send becomes one prompt, or a 400 that names the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reef.errors import BadConfig, BadRequest
from reef.inference.base import ROUTES
from reef.inference.dialects import DIALECTS
from reef.inference.template import ChatTemplate
from reef.inference.textprompt import TextPrompt, text_prompt
from tests.inference.conftest import CAPTURES

TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}


def parse(route: str, **body: Any) -> TextPrompt:
    return text_prompt(DIALECTS[route].parse(body))


def roles(prompt: TextPrompt) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in prompt.messages]


def captured() -> list[Any]:
    return [
        pytest.param(json.loads(line), id=f"{path.stem}-{number}")
        for path in sorted(CAPTURES.glob("*.jsonl"))
        for number, line in enumerate(path.read_text().splitlines())
        if json.loads(line).get("method") == "POST"
    ]


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures of real clients are not on this machine")
@pytest.mark.parametrize("request_seen", captured())
def test_real_requests_become_prompts(request_seen: dict[str, Any], template: ChatTemplate) -> None:
    path = request_seen["path"].split("?")[0].removesuffix("/count_tokens")
    body = request_seen["body"]
    prompt = parse(ROUTES[path], **body)
    text = template.render(prompt)
    assert template.encode(text)
    for spoken in _texts(body.get("messages") or body.get("input")):
        assert spoken in text or json.dumps(spoken, ensure_ascii=False)[1:-1] in text
    offered = [tool for tool in body.get("tools") or () if tool.get("type", "function") == "function"]
    assert len(prompt.tools) == len(offered)


def _texts(value: Any) -> list[str]:
    """Every text and tool output of a request's conversation."""
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, dict):
        return [text for key in ("text", "content", "output") for text in _texts(value.get(key))]
    return [value] if isinstance(value, str) else []


def test_roles_anywhere_and_content_in_parts() -> None:
    prompt = parse(
        "chat",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "system", "content": [{"type": "text", "text": "and kind"}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None},
            {"role": "developer", "content": "now in French"},
            USER,
        ],
    )
    assert roles(prompt) == [
        ("system", "be brief\n\nand kind"),
        ("user", "a\nb"),
        ("assistant", ""),
        ("system", "now in French"),
        ("user", "hi"),
    ]


def test_anthropic_results_come_first_and_next_to_their_calls_and_nothing_is_lost() -> None:
    def use(call_id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": call_id, "name": "look", "input": {"id": call_id}}

    def result(call_id: str, text: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": text}]}

    prompt = parse(
        "messages",
        system=[{"type": "text", "text": "sys", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "go"},
            {"role": "system", "content": "late"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look"}, use("A"), use("B")]},
            {"role": "user", "content": [{"type": "text", "text": "note"}, result("A", "42 rows")]},
            {"role": "user", "content": [result("B", "7 rows"), {"type": "text", "text": "only Tuesdays please"}]},
        ],
    )
    assert roles(prompt) == [
        ("system", "sys"),
        ("user", "go"),
        ("system", "late"),
        ("assistant", "I look"),
        ("tool", "42 rows"),
        ("tool", "7 rows"),
        ("user", "note"),
        ("user", "only Tuesdays please"),
    ]
    assert prompt.messages[3]["tool_calls"][1]["function"] == {"name": "look", "arguments": {"id": "B"}}


def test_results_follow_the_order_of_the_calls_and_reused_ids_pair_with_the_newest_call() -> None:
    def calls(*ids: str) -> dict[str, Any]:
        made = [{"id": one, "function": {"name": "look", "arguments": "{}"}} for one in ids]
        return {"role": "assistant", "content": None, "tool_calls": made}

    def result(call_id: str, text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    prompt = parse(
        "chat", messages=[USER, calls("a", "b"), result("b", "2"), result("a", "1"), calls("a"), result("a", "3")]
    )
    assert [content for role, content in roles(prompt) if role == "tool"] == ["1", "2", "3"]
    prompt = parse("chat", messages=[USER, calls("a"), USER, calls("a"), result("a", "4")])
    assert [role for role, _ in roles(prompt)] == ["user", "assistant", "user", "assistant", "tool"]
    with pytest.raises(BadRequest, match="no earlier message calls") as told:
        parse("chat", messages=[USER, result("x", "1")])
    assert told.value.field == "messages[1]"


def test_responses_items_of_one_turn_are_one_message() -> None:
    prompt = parse(
        "responses",
        instructions="sys",
        input=[
            {"role": "developer", "content": [{"type": "input_text", "text": "dev"}]},
            {"type": "message", "role": "user", "content": "go"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "zzz"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"x": 1}'},
            {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "b", "output": "done"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1 row"}]},
        ],
        tools=[
            {"type": "function", "name": "look", "parameters": {}},
            {"type": "web_search"},
            {"type": "namespace", "tools": []},
        ],
    )
    assert [role for role, _ in roles(prompt)] == ["system", "user", "assistant", "tool", "tool"]
    said = prompt.messages[2]
    assert (said["content"], said["reasoning_content"]) == ("I look", "hm")
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == [{"x": 1}, {"input": "*** Begin"}]
    assert roles(prompt)[3:] == [("tool", "1 row"), ("tool", "done")] and len(prompt.tools) == 1


@pytest.mark.parametrize(
    ("arguments", "decoded"),
    [('{"city": "Ulm"}', {"city": "Ulm"}), ("", {}), (None, {}), ({"city": "Ulm"}, {"city": "Ulm"})],
)
def test_arguments_are_decoded_once_for_the_template(arguments: Any, decoded: Any, template: ChatTemplate) -> None:
    call = {"id": "a", "function": {"name": "look", "arguments": arguments}}
    prompt = parse("chat", messages=[USER, {"role": "assistant", "tool_calls": [call]}], tools=[TOOL])
    assert prompt.messages[1]["tool_calls"][0]["function"]["arguments"] == decoded
    assert f'"arguments": {json.dumps(decoded)}}}' in template.render(prompt)


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("chat", {"messages": [USER], "n": 2}, "n"),
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": [{"role": "robot"}]}, "messages[0].role"),
        ("chat", {"messages": [USER], "tool_choice": "required"}, "tool_choice"),
        ("chat", {"messages": [USER], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ("chat", {"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
        ("chat", {"messages": [USER], "frequency_penalty": 0.5}, "frequency_penalty"),
        ("chat", {"messages": [USER], "temperature": "hot"}, "temperature"),
        ("chat", {"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens"),
        ("chat", {"messages": [USER], "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        (
            "chat",
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            "chat",
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '"{}"'}}]},
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
        ),
        ("responses", {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
        ("responses", {"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ("responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ("messages", {"messages": [USER], "tool_choice": {"type": "any"}}, "tool_choice"),
        ("messages", {"messages": [USER], "stop_sequences": [1]}, "stop_sequences"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(route: str, body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as told:
        parse(route, **body)
    assert told.value.field == field and field.split("[")[0] in told.value.message


def test_sampling_fields() -> None:
    prompt = parse(
        "chat",
        messages=[USER],
        max_completion_tokens=5,
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        stop="END",
        seed=3,
        logprobs=True,
        top_logprobs=2,
        stream_options={"include_usage": True},
        tools=[TOOL],
        tool_choice="none",
        unheard_of={"x": 1},
    )
    assert (prompt.max_tokens, prompt.temperature, prompt.top_p, prompt.stop, prompt.seed) == (5, 0.0, 0.5, ("END",), 3)
    assert prompt.top_logprobs == 2 and prompt.tools == ()
    prompt = parse(
        "messages", messages=[USER], max_tokens=7, top_k=4, stop_sequences=["A", "B"], thinking={"type": "adaptive"}
    )
    assert (prompt.max_tokens, prompt.top_k, prompt.stop) == (7, 4, ("A", "B"))
    prompt = parse("responses", input="x", max_output_tokens=8, reasoning={"effort": "none"})
    assert prompt.max_tokens == 8 and prompt.template_options["enable_thinking"] is False


def test_a_begun_answer_is_continued(template: ChatTemplate) -> None:
    prompt = parse("messages", messages=[USER, {"role": "assistant", "content": "The answer is "}])
    assert template.render(prompt).endswith("<|im_start|>assistant\nThe answer is")


def test_text_documents_are_read_and_sealed_thinking_is_passed_over() -> None:
    document = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "data": "body", "media_type": "text/plain"},
    }
    said = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "ok"},
    ]
    prompt = parse(
        "messages", messages=[{"role": "user", "content": [document]}, {"role": "assistant", "content": said}, USER]
    )
    assert roles(prompt)[0] == ("user", "T\nbody")
    assert prompt.messages[1]["reasoning_content"] == "hm"


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}<|im_start|>system\nDefault"
    "<|im_end|>\n{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "{{ '<' + message.role + '>' + message['content'] }}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
QUOTING = (
    "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.arguments | string | tojson if call.function.arguments is string else call.function.arguments }}"
    "{% endfor %}{% endfor %}{{ tools }}"
)
WORDS = (
    "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}"
    "{% for call in message.tool_calls or [] %}"
    "{{ call.function.name + call.function.arguments }}{% endfor %}{% endfor %}{{ tools }}"
)


@pytest.fixture
def write_template(model_folder: Path, tmp_path: Path) -> Any:
    def write(source: str) -> Path:
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            (tmp_path / name).write_bytes((model_folder / name).read_bytes())
        (tmp_path / "chat_template.jinja").write_text(source)
        return tmp_path

    return write


CONVERSATION = [
    {"role": "system", "content": "sys"},
    {"role": "user", "content": "go"},
    {
        "role": "assistant",
        "content": "I look",
        "tool_calls": [
            {"id": "a", "function": {"name": "look", "arguments": '{"x": "é"}'}},
            {"id": "b", "function": {"name": "look", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "two"},
    {"role": "tool", "tool_call_id": "a", "content": "one"},
    {"role": "user", "content": "and?"},
]


def test_a_template_without_tools_gets_them_in_words(write_template: Any) -> None:
    text = ChatTemplate(write_template(CHATML)).render(parse("chat", messages=CONVERSATION, tools=[TOOL]))
    head, _, rest = text.partition("<|im_end|>\n")
    assert head.startswith("<|im_start|>system\nsys\n\n") and '"name": "look"' in head and "<tool_call>" in head
    assert rest == (
        "<|im_start|>user\ngo<|im_end|>\n"
        '<|im_start|>assistant\nI look\n<tool_call>\n{"name": "look", "arguments": {"x": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_strict_template_gets_alternating_turns_with_every_word(write_template: Any) -> None:
    text = ChatTemplate(write_template(STRICT)).render(
        parse(
            "chat",
            messages=[*CONVERSATION, {"role": "assistant", "content": "x"}, {"role": "system", "content": "late"}],
        )
    )
    assert text.startswith("<user>sys\n\ngo<assistant>I look\n<tool_call>")
    assert text.endswith("</tool_response>\n\nand?<assistant>x<user>late<model>")


def test_a_template_that_wants_argument_text_gets_it_and_one_that_quotes_twice_is_refused(write_template: Any) -> None:
    text = ChatTemplate(write_template(WORDS)).render(parse("chat", messages=CONVERSATION[1:3], tools=[TOOL]))
    assert 'look{"x": "é"}look{}' in text
    with pytest.raises(BadConfig, match="twice"):
        ChatTemplate(write_template(QUOTING))


def test_template_problems_are_told(write_template: Any, tmp_path: Path) -> None:
    refusing = ChatTemplate(write_template("{{ raise_exception('not today') }}"))
    with pytest.raises(BadRequest, match="not today"):
        refusing.render(parse("chat", messages=[USER]))
    with pytest.raises(BadConfig, match="cannot be read"):
        ChatTemplate(write_template("{% for %}"))
    with pytest.raises(BadConfig, match=r"tokenizer\.json"):
        ChatTemplate(tmp_path / "nowhere")


def test_half_a_surrogate_pair_is_refused(template: ChatTemplate) -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        template.encode(template.render(parse("chat", messages=[{"role": "user", "content": "\ud83d"}])))


def test_token_bytes_add_up_to_the_text(template: ChatTemplate) -> None:
    text = "naïve 海 😀\n\ttab"
    assert b"".join(template.token_bytes(token) for token in template.encode(text)).decode() == text
