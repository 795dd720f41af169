"""OpenAI's chat completions, inwards: a request's body to a Prompt. Knows no engine and no other dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reef.inference.dialects.fields import Fields, mapping, refuse, sequence, string, texts
from reef.inference.dialects.parts import read_file, read_format, read_image
from reef.inference.dialects.prompt import (
    Choice,
    Other,
    Part,
    Prompt,
    Result,
    Setting,
    Text,
    Thought,
    ToolCall,
    Turn,
)
from reef.inference.dialects.seals import carried
from reef.inference.dialects.tools import Toolbox, read_call, wire_name
from reef.inference.dialects.turns import arrange

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_NOT_FOR_THE_MODEL = (
    "model",  # read by whoever sends the call
    "stream",
    "prediction",  # makes the same answer come sooner
    "prompt_cache_key",  # where a provider finds its own cache
    "prompt_cache_retention",
    "prompt_cache_options",
)


def parse(body: Mapping[str, Any]) -> Prompt:
    """The Prompt of a chat request; BadRequest names the field that is wrong or that nobody could honour."""
    fields = Fields(body)
    fields.passed_over(_NOT_FOR_THE_MODEL)
    for name in ("functions", "audio"):
        if fields.get(name):
            refuse(name, "is not supported" + ("; use tools" if name == "functions" else ""))
    if any(kind != "text" for kind in sequence(fields.get("modalities"), "modalities")):
        refuse("modalities", "this model writes text only")
    found = sequence(fields.get("messages"), "messages")
    if not found:
        refuse("messages", "must hold at least one message")
    turns = [_turn(mapping(message, f"messages[{at}]"), f"messages[{at}]") for at, message in enumerate(found)]
    tools, choice = _tools(fields)
    settings = _settings(fields)
    options = dict(mapping(body.get("chat_template_kwargs"), "chat_template_kwargs"))
    effort = settings.get("effort")
    if effort is not None:
        options.setdefault("reasoning_effort", effort.value)
        if effort.value == "none":
            options.setdefault("enable_thinking", False)
    streaming = mapping(fields.get("stream_options"), "stream_options")
    return Prompt(
        arrange(turns),
        tools.packed(),
        choice,
        settings,
        include_usage=bool(streaming.get("include_usage")),
        unread=tuple(fields.unread()),
        template_options=options,
    )


def _settings(fields: Fields) -> dict[str, Setting]:
    """Everything that shapes the answer, where it was given and is not the default."""
    limit = "max_tokens" if fields.whole("max_completion_tokens") is None else "max_completion_tokens"
    top = fields.whole("top_logprobs") or 0
    if top > 20:
        refuse("top_logprobs", "must be at most 20")
    form = mapping(fields.get("response_format"), "response_format")
    schema = mapping(form.get("json_schema"), "response_format.json_schema")
    given: dict[str, tuple[Any, str]] = {
        "max_tokens": (fields.whole(limit), limit),
        "seed": (fields.whole("seed"), "seed"),
        "top_k": (fields.whole("top_k"), "top_k"),
        "stop": (texts(fields.get("stop"), "stop") or None, "stop"),
        "logprobs": (top if fields.get("logprobs") else None, "logprobs"),
        "format": (read_format(form, schema, "response_format"), "response_format"),
        "effort": (fields.get("reasoning_effort"), "reasoning_effort"),
        "parallel": (None if fields.get("parallel_tool_calls") is not False else False, "parallel_tool_calls"),
    }
    if fields.get("n") not in (None, 1):
        given["n"] = fields.get("n"), "n"
    for name in ("temperature", "top_p", "min_p"):
        given[name] = fields.number(name), name
    for name in ("frequency_penalty", "presence_penalty"):
        given[name] = fields.number(name) or None, name
    if fields.get("verbosity") not in (None, "medium"):
        given["verbosity"] = fields.get("verbosity"), "verbosity"
    for name in ("logit_bias", "user", "safety_identifier", "metadata", "store"):
        given[name] = fields.get(name) or None, name
    tier = fields.get("service_tier")
    given["service_tier"] = (None if tier == "auto" else tier), "service_tier"
    return {name: Setting(value, at) for name, (value, at) in given.items() if value is not None}


def _tools(fields: Fields) -> tuple[Toolbox, Choice | None]:
    box = Toolbox()
    for index, tool in enumerate(sequence(fields.get("tools"), "tools")):
        at = f"tools[{index}]"
        kind = mapping(tool, at).get("type", "function")
        if kind == "function":
            box.function(mapping(tool.get("function"), f"{at}.function"), "parameters", at)
        elif kind == "custom":
            box.custom(mapping(tool.get("custom"), f"{at}.custom"), at)
        else:
            box.hosted(kind, at)
    given = fields.get("tool_choice")
    if not isinstance(given, dict):
        return box, box.choose(given)
    kind = given.get("type")
    if kind in ("function", "custom"):
        return box, box.choose("one", str(mapping(given.get(kind), f"tool_choice.{kind}").get("name") or ""))
    if kind == "allowed_tools":
        allowed = mapping(given.get("allowed_tools"), "tool_choice.allowed_tools")
        names = []
        for one in sequence(allowed.get("tools"), "tool_choice.allowed_tools.tools"):
            spec = mapping(one, "tool_choice.allowed_tools.tools")
            inner = mapping(spec.get(str(spec.get("type"))), "tool_choice.allowed_tools.tools")
            names.append(wire_name("", str(inner.get("name") or "")))
        return box, box.choose(allowed.get("mode"), among=names)
    return box, box.choose(kind)


def _turn(message: Mapping[str, Any], at: str) -> Turn:
    """One message."""
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        refuse(f"{at}.role", f"{message.get('role')!r} is not known")
    parts = content_parts(message.get("content"), f"{at}.content")
    if role == "tool":
        kept = tuple(part for part in parts if not isinstance(part, Thought | ToolCall | Result))
        return Turn("tool", (Result(str(message.get("tool_call_id") or ""), kept, at=at),), at)
    name = message["name"] if isinstance(message.get("name"), str) else ""
    if role == "assistant":
        said = string(message.get("refusal"), f"{at}.refusal")
        declined = [Text(said, f"{at}.refusal", refusal=True)] if said else []
        parts = [*_thoughts(message, at), *parts, *declined, *_calls(message, at)]
        if message.get("function_call"):
            refuse(f"{at}.function_call", "is not supported; use tool_calls")
    return Turn(role, tuple(parts), at, name)  # type: ignore[arg-type]


def _calls(message: Mapping[str, Any], at: str) -> list[ToolCall]:
    calls = []
    for index, call in enumerate(sequence(message.get("tool_calls"), f"{at}.tool_calls")):
        where = f"{at}.tool_calls[{index}]"
        if mapping(call, where).get("type") == "custom":
            custom = mapping(call.get("custom"), f"{where}.custom")
            calls.append(
                read_call(call.get("id"), custom.get("name"), {"input": custom.get("input")}, f"{where}.custom")
            )
        else:
            function = mapping(call.get("function"), f"{where}.function")
            calls.append(
                read_call(call.get("id"), function.get("name"), function.get("arguments"), f"{where}.function")
            )
    return calls


def _thoughts(message: Mapping[str, Any], at: str) -> list[Thought]:
    """The sealed thoughts that a client handed back, else the reasoning in words."""
    sealed = []
    details = message.get("reasoning_details")
    for index, one in enumerate(details if isinstance(details, list) else ()):
        held = (one.get("signature") or one.get("data")) if isinstance(one, dict) else None
        seal, owner = carried(held, "chat") if isinstance(held, str) else ("", "")
        if owner not in ("", "chat"):
            text = string(one.get("text"), f"{at}.reasoning_details[{index}].text")
            sealed.append(Thought(text, seal, owner, f"{at}.reasoning_details[{index}]"))
    if sealed:
        return sealed
    name = "reasoning_content" if message.get("reasoning_content") else "reasoning"
    told = message.get(name)
    return [Thought(told, at=f"{at}.{name}")] if isinstance(told, str) and told else []


def content_parts(content: Any, at: str) -> list[Part]:
    """The parts of a content field, given as a string, null or a list."""
    if content is None or isinstance(content, str):
        return [Text(content, at)] if content else []
    return [_part(part, f"{at}[{index}]") for index, part in enumerate(sequence(content, at))]


def _part(part: Any, at: str) -> Part:
    if isinstance(part, str):
        return Text(part, at)
    kind = mapping(part, at).get("type")
    if kind in ("text", "refusal"):
        if not isinstance(part.get(kind), str):
            refuse(f"{at}.text", "must be a string")
        return Text(part[kind], at, refusal=kind == "refusal")
    if kind == "image_url":
        given = part.get("image_url")
        spec = {"url": given} if isinstance(given, str) else mapping(given, f"{at}.image_url")
        return read_image(spec.get("url"), spec.get("detail"), at)
    if kind == "file":
        spec = mapping(part.get("file"), f"{at}.file")
        return read_file(spec.get("file_data"), None, spec.get("filename"), at)
    return Other(str(kind), at)
