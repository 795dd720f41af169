"""Anthropic's messages, outwards: a Prompt to the body of a request. Knows no other dialect. Called by translation."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Any

from reef.inference.dialects.asking import cannot_say, refuse_part, write_settings
from reef.inference.dialects.fields import refuse
from reef.inference.dialects.prompt import File, Image, Part, Prompt, Result, Text, Thought, Tool, ToolCall, Turn, named
from reef.inference.dialects.tools import decoded
from reef.inference.dialects.turns import leading

MAX_TOKENS = 32000
"""Longest answer when the client names none, which this dialect demands: what Claude Code asks for."""
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NOT_ID = re.compile(r"[^a-zA-Z0-9_-]")
_FIELDS = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop": "stop_sequences",
}
_DONE = (
    "effort",
    "format",
    "parallel",
    "user",
    "safety_identifier",
    "service_tier",
    "metadata",  # labels of an object that a provider keeps, and none is kept here
    "store",
)


def ask(prompt: Prompt, model: str, stream: bool) -> dict[str, Any]:
    """The request's body; BadRequest names what messages cannot say."""
    if not prompt.begun and prompt.turns and prompt.turns[-1].role == "assistant":
        refuse(prompt.turns[-1].at, "an assistant's last word would be continued by this upstream; end with a user's")
    first, rest = leading(prompt.turns)
    body: dict[str, Any] = {"model": model, "max_tokens": MAX_TOKENS, "messages": _messages(rest)}
    system = [_system(part) for turn in first for part in named(turn) if not (isinstance(part, Text) and not part.text)]
    if system:
        body["system"] = system
    if stream:
        body["stream"] = True
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
        _choose(body, prompt)
    _shape(body, prompt)
    write_settings(body, prompt, "messages", _FIELDS, _DONE)
    return body


def _choose(body: dict[str, Any], prompt: Prompt) -> None:
    alone = {"disable_parallel_tool_use": True} if prompt.get("parallel") is False else {}
    kind = prompt.choice.kind if prompt.choice is not None else None
    if kind is None and alone:
        kind = "auto"
    if kind == "one" and prompt.choice is not None:
        body["tool_choice"] = {"type": "tool", "name": prompt.choice.name, **alone}
    elif kind is not None:
        body["tool_choice"] = {"type": "any" if kind == "required" else kind, **(alone if kind != "none" else {})}


def _shape(body: dict[str, Any], prompt: Prompt) -> None:
    """Effort, format and who asks, each in its own object here."""
    output: dict[str, Any] = {}
    effort = prompt.get("effort")
    if effort == "none":
        body["thinking"] = {"type": "disabled"}
    elif effort is not None:
        body["thinking"] = {"type": "adaptive"}
        output["effort"] = "low" if effort == "minimal" else effort
    form = prompt.get("format")
    if form is not None:
        if form.kind != "json_schema":
            cannot_say(prompt.settings["format"].at, "messages")
        output["format"] = {"type": "json_schema", "schema": form.schema}
    if output:
        body["output_config"] = output
    user = prompt.get("safety_identifier") or prompt.get("user")
    if user:
        body["metadata"] = {"user_id": str(user)}
    if prompt.get("service_tier") == "default":
        body["service_tier"] = "standard_only"
    elif prompt.get("service_tier"):
        cannot_say(prompt.settings["service_tier"].at, "messages")


def _tool(tool: Tool) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": tool.wire, "description": tool.description, "input_schema": tool.parameters}
    if not tool.description:
        del shown["description"]
    if tool.strict is not None:
        shown["strict"] = tool.strict
    return shown


def _system(part: Part) -> dict[str, Any]:
    if not isinstance(part, Text):
        refuse_part(part, "messages")
    return {"type": "text", "text": part.text}


def _messages(turns: list[Turn]) -> list[dict[str, Any]]:
    """All messages, neighbours of one role as one, so that results and what a user adds to them are one message."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        role = "user" if turn.role == "tool" else turn.role
        blocks = [block for part in named(turn) for block in _blocks(part)]
        if not blocks:
            continue  # nothing was said, and this dialect has no empty message
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    if not messages:
        refuse("messages", "must hold at least one message that is no system message")
    return messages


def _blocks(part: Part) -> list[dict[str, Any]]:
    if isinstance(part, Text):
        return [{"type": "text", "text": part.text}] if part.text else []
    if isinstance(part, Thought):
        return _thought(part)
    if isinstance(part, ToolCall):
        return [{"type": "tool_use", "id": _id(part.call_id), "name": part.name, "input": decoded(part)}]
    if isinstance(part, Image):
        return [{"type": "image", "source": _source(part)}]
    if isinstance(part, File):
        return [_document(part)]
    if not isinstance(part, Result):
        refuse_part(part, "messages")
    blocks = [block for inner in part.parts for block in _blocks(inner)]
    error = {"is_error": True} if part.is_error else {}
    return [{"type": "tool_result", "tool_use_id": _id(part.call_id), "content": blocks, **error}]


def _id(call_id: str) -> str:
    """The id of a call, of the characters this dialect allows; the same for the same id."""
    if _ID.fullmatch(call_id):
        return call_id
    return f"{_NOT_ID.sub('_', call_id)}_{hashlib.sha256(call_id.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _thought(thought: Thought) -> list[dict[str, Any]]:
    """A thought with its own provider's seal as it was; without one it can only be told, since nobody else may sign."""
    if thought.sealed_by == "messages" and thought.text:
        return [{"type": "thinking", "thinking": thought.text, "signature": thought.seal}]
    if thought.sealed_by == "messages":
        return [{"type": "redacted_thinking", "data": thought.seal}]
    return [{"type": "text", "text": f"<thinking>\n{thought.text}\n</thinking>"}] if thought.text else []


def _source(part: Image | File) -> dict[str, Any]:
    if part.url.startswith("data:"):
        refuse(part.at, "a data URL must be base64")
    if part.url:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _document(part: File) -> dict[str, Any]:
    titled = {"title": part.name} if part.name else {}
    source = _source(part)
    if part.media_type.startswith("text/"):
        try:
            text = base64.b64decode(part.data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            refuse(part.at, "is no UTF-8 text in base64")
        source = {"type": "text", "media_type": "text/plain", "data": text}
    elif part.data and part.media_type != "application/pdf":
        refuse(part.at, f"a document of type {part.media_type!r} cannot be said in Anthropic's messages")
    return {"type": "document", "source": source, **titled}
