"""OpenAI's responses, outwards: a Prompt to the body of a request. Knows no other dialect. Called by translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reef.inference.dialects.asking import address, cannot_say, refuse_part, write_settings, write_user
from reef.inference.dialects.prompt import (
    File,
    Format,
    Image,
    Part,
    Prompt,
    Result,
    Text,
    Thought,
    Tool,
    ToolCall,
    Turn,
    marked,
    named,
    words,
)
from reef.inference.dialects.turns import leading

_FIELDS = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "safety_identifier": "safety_identifier",
    "service_tier": "service_tier",
    "metadata": "metadata",
    "store": "store",
}
_DONE = ("user", "effort", "format", "logprobs", "parallel", "verbosity")


def ask(prompt: Prompt, model: str, stream: bool) -> dict[str, Any]:
    """The request's body; BadRequest names what responses cannot say. Nothing is stored but what the client wants stored."""
    if prompt.begun:
        cannot_say(prompt.turns[-1].at, "responses")
    first, rest = leading(prompt.turns)
    body: dict[str, Any] = {"model": model, "input": [item for turn in rest for item in _items(turn)], "store": False}
    if first:
        body["instructions"] = "\n\n".join(words(named(turn), "a system message") for turn in first)
    if stream:
        body["stream"] = True
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
        if prompt.choice is not None:
            one = {"type": "function", "name": prompt.choice.name}
            body["tool_choice"] = one if prompt.choice.kind == "one" else prompt.choice.kind
        if prompt.get("parallel") is False:
            body["parallel_tool_calls"] = False
    text: dict[str, Any] = {}
    if prompt.get("format") is not None:
        text["format"] = _format(prompt.get("format"), prompt)
    if prompt.get("verbosity") is not None:
        text["verbosity"] = prompt.get("verbosity")
    if text:
        body["text"] = text
    if prompt.get("effort") is not None:
        body["reasoning"] = {"effort": prompt.get("effort"), "summary": "auto"}
    if prompt.get("logprobs") is not None:
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": prompt.get("logprobs")}
    write_user(body, prompt)
    write_settings(body, prompt, "responses", _FIELDS, _DONE)
    return body


def _format(form: Format, prompt: Prompt) -> dict[str, Any]:
    if form.kind == "json_object":
        return {"type": "json_object"}
    if form.kind != "json_schema":
        cannot_say(prompt.settings["format"].at, "responses")
    spec: dict[str, Any] = {"type": "json_schema", "name": form.name or "answer", "schema": form.schema}
    spec |= {"description": form.description} if form.description else {}
    return spec | ({"strict": form.strict} if form.strict is not None else {})


def _tool(tool: Tool) -> dict[str, Any]:
    """A function; this dialect makes schemas strict by itself unless it is told not to."""
    return {
        "type": "function",
        "name": tool.wire,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict or False,
    }


def _items(turn: Turn) -> list[dict[str, Any]]:
    """One turn as items, in its own order."""
    if turn.role in ("user", "system"):
        return [{"type": "message", "role": turn.role, "content": [_part(part) for part in named(turn)]}]
    items: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []
    for part in named(turn):
        if isinstance(part, Text):
            if not said:
                items.append({"type": "message", "role": "assistant", "content": said})
            said.append(
                {"type": "refusal", "refusal": part.text}
                if part.refusal
                else {"type": "output_text", "text": part.text, "annotations": []}
            )
        else:
            said = []
            items += _spoken(part)
    return items


def _spoken(part: Part) -> list[dict[str, Any]]:
    """What is no message of its own: results, calls and thoughts."""
    if isinstance(part, Result):
        return [_result(part)]
    if isinstance(part, ToolCall):
        arguments = part.arguments if part.arguments.strip() else "{}"
        return [{"type": "function_call", "call_id": part.call_id, "name": part.name, "arguments": arguments}]
    if not isinstance(part, Thought):
        refuse_part(part, "responses")
    if part.sealed_by == "responses":
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        return [{"type": "reasoning", "summary": summary, "encrypted_content": part.seal}]
    told = [{"type": "reasoning_text", "text": part.text}]
    return [{"type": "reasoning", "summary": [], "content": told}] if part.text else []


def _result(result: Result) -> dict[str, Any]:
    parts: Sequence[Part] = marked(result)
    item: dict[str, Any] = {"type": "function_call_output", "call_id": result.call_id}
    if all(isinstance(part, Text) for part in parts):
        return {**item, "output": "\n".join(part.text for part in parts if isinstance(part, Text))}
    return {**item, "output": [_part(part) for part in parts]}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": address(part), "detail": part.detail or "auto"}
    if not isinstance(part, File):
        refuse_part(part, "responses")
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "document", "file_data": address(part)}
