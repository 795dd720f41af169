"""OpenAI's chat completions, outwards: a Prompt to the body of a request. Knows no other dialect. Called by translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reef.inference.dialects.asking import address, cannot_say, refuse_part, write_settings, write_user
from reef.inference.dialects.prompt import (
    File,
    Format,
    Image,
    Other,
    Part,
    Prompt,
    Result,
    Text,
    Thought,
    Tool,
    ToolCall,
    Turn,
    marked,
    words,
)
from reef.inference.dialects.turns import leading

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers keep reasoning; the first is what most of them read."""

_FIELDS = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",  # of many servers, not of OpenAI's, which refuses it by name
    "stop": "stop",
    "effort": "reasoning_effort",
    "verbosity": "verbosity",
    "safety_identifier": "safety_identifier",
    "service_tier": "service_tier",
}
_DONE = (
    "format",
    "logprobs",
    "parallel",
    "user",
    "metadata",  # labels of an object that a provider keeps, and it keeps none of a chat
    "store",
)


def ask(prompt: Prompt, model: str, stream: bool) -> dict[str, Any]:
    """The request's body; BadRequest names what chat cannot say."""
    if prompt.begun:
        cannot_say(prompt.turns[-1].at, "chat")
    body: dict[str, Any] = {"model": model, "messages": _messages(prompt.turns)}
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
        if prompt.choice is not None:
            named = {"type": "function", "function": {"name": prompt.choice.name}}
            body["tool_choice"] = named if prompt.choice.kind == "one" else prompt.choice.kind
        if prompt.get("parallel") is False:
            body["parallel_tool_calls"] = False
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    form = prompt.get("format")
    if form is not None:
        body["response_format"] = _format(form, prompt)
    if prompt.get("logprobs") is not None:
        body |= {"logprobs": True, "top_logprobs": prompt.get("logprobs")}
    write_user(body, prompt)
    write_settings(body, prompt, "chat", _FIELDS, _DONE)
    return body


def _format(form: Format, prompt: Prompt) -> dict[str, Any]:
    if form.kind == "json_object":
        return {"type": "json_object"}
    if form.kind != "json_schema":
        cannot_say(prompt.settings["format"].at, "chat")
    spec: dict[str, Any] = {"name": form.name or "answer", "schema": form.schema}
    spec |= {"description": form.description} if form.description else {}
    spec |= {"strict": form.strict} if form.strict is not None else {}
    return {"type": "json_schema", "json_schema": spec}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.wire, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """All messages; what a tool gave back beside text follows the results as a user's, since only users may show it."""
    first, rest = leading(turns)
    messages: list[dict[str, Any]] = []
    if first:
        text = "\n\n".join(words(turn.parts, "a system message") for turn in first)
        messages.append({"role": "system", "content": text})
    shown: list[dict[str, Any]] = []
    for turn in rest:
        if turn.role != "tool" and shown:
            messages.append({"role": "user", "content": shown})
            shown = []
        if turn.role == "tool":
            messages.append(_result(turn, shown))
        elif turn.role == "system":
            messages.append({"role": "system", "content": words(turn.parts, "a system message")})
        else:
            named = {"name": turn.name} if turn.name else {}
            messages.append({"role": turn.role, **named, **(_said(turn) if turn.role == "assistant" else _asked(turn))})
    if shown:
        messages.append({"role": "user", "content": shown})
    return messages


def _asked(turn: Turn) -> dict[str, Any]:
    if all(isinstance(part, Text) for part in turn.parts):
        return {"content": words(turn.parts, "a user message")}
    return {"content": [_part(part) for part in turn.parts]}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": {"url": address(part), **detail}}
    if not isinstance(part, File) or part.url:
        refuse_part(part, "chat")
    return {"type": "file", "file": {"filename": part.name or "document", "file_data": address(part)}}


def _said(turn: Turn) -> dict[str, Any]:
    """An assistant's words, thoughts and calls; a seal without words is left out, since no chat provider made it."""
    texts = tuple(part for part in turn.parts if isinstance(part, Text) and not part.refusal)
    declined = [part.text for part in turn.parts if isinstance(part, Text) and part.refusal]
    thoughts = [part for part in turn.parts if isinstance(part, Thought) and part.text]
    calls = [_call(part) for part in turn.parts if isinstance(part, ToolCall)]
    for part in turn.parts:
        if isinstance(part, Image | File | Other | Result):
            refuse_part(part, "chat")
    said: dict[str, Any] = {
        "content": words(texts, "an assistant message") if texts or not (calls or declined) else None
    }
    if thoughts:  # under the name its provider gave them, which may know no other
        own = thoughts[-1].sealed_by == "chat" and thoughts[-1].seal in REASONING_FIELDS
        said[thoughts[-1].seal if own else REASONING_FIELDS[0]] = "\n".join(part.text for part in thoughts)
    said |= {"refusal": "\n".join(declined)} if declined else {}
    return said | ({"tool_calls": calls} if calls else {})


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments if call.arguments.strip() else "{}"}
    return {"id": call.call_id, "type": "function", "function": function}


def _result(turn: Turn, shown: list[dict[str, Any]]) -> dict[str, Any]:
    """A tool's message; pictures and documents are put into ``shown``, their places named in both."""
    result = turn.parts[0]
    assert isinstance(result, Result)
    lines = []
    for part in marked(result):
        if isinstance(part, Text):
            lines.append(part.text)
            continue
        place = f"[{type(part).__name__.lower()} {len(shown) // 2 + 1}, given back by {result.call_id}]"
        shown += [{"type": "text", "text": place}, _part(part)]
        lines.append(place)
    return {"role": "tool", "tool_call_id": result.call_id, "content": "\n".join(lines)}
