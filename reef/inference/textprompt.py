"""A Prompt for a model that reads text only: what a chat template takes, and every number a sampler needs.

What cannot be honoured by sampling from a template is refused by the name of its field. Knows no dialect and no engine.
Called by the engine backend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reef.inference.dialects.fields import refuse
from reef.inference.dialects.prompt import Prompt, Result, Thought, Tool, ToolCall, Turn, marked, words
from reef.inference.dialects.tools import decoded
from reef.inference.dialects.turns import leading


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """One request in template form.

    ``messages`` hold ``role`` (system, user, assistant, tool), ``content`` (text) and where present
    ``reasoning_content``, ``tool_calls`` (arguments as objects), ``tool_call_id``, ``name``. ``tools`` are function
    tools in the chat form. ``prefill`` is the beginning of the answer, to be continued. ``top_logprobs`` None: none
    asked for.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    prefill: str = ""
    template_options: Mapping[str, Any] = field(default_factory=dict)


_READER = "this model"
_UNENFORCED = "cannot be enforced by this engine; ask for JSON in the prompt instead"


def text_prompt(prompt: Prompt) -> TextPrompt:
    """The template form of ``prompt``; BadRequest names what this engine cannot honour. Fields nobody knows are let be."""
    _refuse_unsupported(prompt)
    turns, prefill = list(prompt.turns), ""
    if prompt.begun:
        prefill = words(tuple(p for p in turns.pop().parts if not isinstance(p, Thought)), _READER).rstrip()
    first, rest = leading(turns)
    messages = [_message(turn) for turn in rest]
    if first:
        text = "\n\n".join(words(turn.parts, _READER) for turn in first)
        messages.insert(0, {"role": "system", "content": text})
    usable = prompt.choice is None or prompt.choice.kind != "none"
    return TextPrompt(
        tuple(messages),
        tuple(_tool(tool) for tool in prompt.tools) if usable else (),
        max_tokens=_whole(prompt, "max_tokens", 1),
        temperature=_number(prompt, "temperature", 1.0, 10.0),
        top_p=_number(prompt, "top_p", 1.0, 1.0),
        top_k=_whole(prompt, "top_k", -1) or -1,
        min_p=_number(prompt, "min_p", 0.0, 1.0),
        seed=_whole(prompt, "seed", -(2**63)),
        stop=prompt.get("stop", ()),
        top_logprobs=prompt.get("logprobs"),
        prefill=prefill,
        template_options=prompt.template_options,
    )


def _refuse_unsupported(prompt: Prompt) -> None:
    """Settings that would change the answer and cannot be honoured."""
    why = {
        "n": "this engine gives one answer per call; send the call again for another",
        "frequency_penalty": "is not supported; leave it out or set it to 0",
        "presence_penalty": "is not supported; leave it out or set it to 0",
        "logit_bias": "is not supported",
    }
    for name, reason in why.items():
        if name in prompt.settings:
            refuse(prompt.settings[name].at, reason)
    form = prompt.settings.get("format")
    if form is not None:
        refuse(form.at, f"{form.value.kind!r} {_UNENFORCED}")
    choice = prompt.choice
    if choice is not None and choice.kind not in ("auto", "none"):
        refuse(choice.at, f"{choice.kind!r} cannot be enforced by this engine; use auto or none")


def _message(turn: Turn) -> dict[str, Any]:
    """One turn in template form."""
    if isinstance(turn.parts[0] if turn.parts else None, Result):
        result = turn.parts[0]
        assert isinstance(result, Result)
        return {"role": "tool", "content": words(marked(result), _READER), "tool_call_id": result.call_id}
    spoken = tuple(part for part in turn.parts if not isinstance(part, Thought | ToolCall))
    message: dict[str, Any] = {"role": turn.role, "content": words(spoken, _READER)}
    if turn.name:
        message["name"] = turn.name
    thought = [part.text for part in turn.parts if isinstance(part, Thought) and part.text]
    if thought:
        message["reasoning_content"] = "\n".join(thought)
    calls = [_call(part) for part in turn.parts if isinstance(part, ToolCall)]
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": decoded(call)}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.wire, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _number(prompt: Prompt, name: str, default: float, high: float) -> float:
    value = prompt.get(name, default)
    if not (math.isfinite(value) and 0 <= value <= high):
        refuse(prompt.settings[name].at, f"must be a number from 0 to {high:g}")
    return float(value)


def _whole(prompt: Prompt, name: str, low: int) -> int | None:
    value = prompt.get(name)
    if value is not None and value < low:
        refuse(prompt.settings[name].at, f"must be a whole number of at least {low}")
    return None if value is None else int(value)
