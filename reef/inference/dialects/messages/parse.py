"""Anthropic's messages, inwards: a request's body to a Prompt. Knows no engine and no other dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reef.inference.dialects.fields import Fields, mapping, refuse, sequence, string, texts
from reef.inference.dialects.parts import read_format
from reef.inference.dialects.prompt import (
    Choice,
    File,
    Image,
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
from reef.inference.dialects.tools import Toolbox, read_call
from reef.inference.dialects.turns import arrange

_NOT_FOR_THE_MODEL = (
    "model",  # read by whoever sends the call
    "stream",
    "cache_control",  # what a provider keeps in its own cache
    "context_management",  # lets a provider shorten the history; here it stays whole
    "diagnostics",  # facts about the provider's cache
    "speed",  # makes the same answer come sooner
)
_BUDGETS = ((4096, "low"), (16384, "medium"))
"""Efforts for thinking budgets up to so many tokens; a larger one is ``high``."""


def parse(body: Mapping[str, Any]) -> Prompt:
    """The Prompt of a messages request; BadRequest names the field that is wrong or that nobody could honour."""
    fields = Fields(body)
    fields.passed_over(_NOT_FOR_THE_MODEL)
    found = sequence(fields.get("messages"), "messages")
    if not found:
        refuse("messages", "must hold at least one message")
    turns: list[Turn] = []
    system = fields.get("system")
    if system:
        turns.append(Turn("system", tuple(_parts(system, "system")), "system"))
    for index, message in enumerate(found):
        turns += _turns(mapping(message, f"messages[{index}]"), f"messages[{index}]")
    box, choice, parallel = _tools(fields)
    thinking = fields.inner("thinking")
    thinks = thinking.get("type") in ("enabled", "adaptive") and thinking.get("display") != "omitted"
    settings = _settings(fields, thinking)
    if not parallel:
        settings["parallel"] = Setting(False, "tool_choice.disable_parallel_tool_use")
    if fields.get("mcp_servers"):
        refuse("mcp_servers", "are called by their own provider only")
    last = turns[-1]
    return Prompt(
        arrange(turns),
        box.packed(),
        choice,
        settings,
        show_reasoning=thinks,
        begun=last.role == "assistant" and not any(isinstance(part, ToolCall) for part in last.parts),
        unread=tuple(fields.unread()),
        template_options={"enable_thinking": thinking.get("type") in ("enabled", "adaptive")},
    )


def _settings(fields: Fields, thinking: Fields) -> dict[str, Setting]:
    """Everything that shapes the answer, where it was given and is not the default."""
    output = fields.inner("output_config")
    form = mapping(output.get("format"), "output_config.format")
    effort = (output.get("effort"), "output_config.effort")
    budget = thinking.whole("budget_tokens")
    if effort[0] is None and budget is not None:
        effort = next((word for most, word in _BUDGETS if budget <= most), "high"), "thinking.budget_tokens"
    tier = fields.get("service_tier")
    given: dict[str, tuple[Any, str]] = {
        "max_tokens": (fields.whole("max_tokens"), "max_tokens"),
        "temperature": (fields.number("temperature"), "temperature"),
        "top_p": (fields.number("top_p"), "top_p"),
        "top_k": (fields.whole("top_k"), "top_k"),
        "stop": (texts(fields.get("stop_sequences"), "stop_sequences") or None, "stop_sequences"),
        "format": (read_format(form, form, "output_config.format") if form else None, "output_config.format"),
        "effort": effort,
        "user": (fields.inner("metadata").get("user_id") or None, "metadata.user_id"),
        "service_tier": ("default" if tier == "standard_only" else None, "service_tier"),
    }
    return {name: Setting(value, at) for name, (value, at) in given.items() if value is not None}


def _tools(fields: Fields) -> tuple[Toolbox, Choice | None, bool]:
    """The tools, the choice among them, and whether several may be called at once."""
    box = Toolbox()
    for index, tool in enumerate(sequence(fields.get("tools"), "tools")):
        at = f"tools[{index}]"
        if mapping(tool, at).get("type") in (None, "custom"):
            box.function(tool, "input_schema", at)
        else:
            box.hosted(tool["type"], at)
    given = mapping(fields.get("tool_choice"), "tool_choice")
    kind = given.get("type")
    choice = box.choose("one" if kind == "tool" else kind, str(given.get("name") or ""))
    return box, choice, given.get("disable_parallel_tool_use") is not True


def _turns(message: Mapping[str, Any], at: str) -> list[Turn]:
    """One message as turns: tool results first, then the rest of it in its order."""
    role = message.get("role")
    if role not in ("user", "assistant", "system"):
        refuse(f"{at}.role", f"{role!r} is not known")
    results: list[Turn] = []
    rest: list[Part] = []
    for part in _parts(message.get("content"), f"{at}.content"):
        if isinstance(part, Result):
            if role != "user":
                refuse(part.at, "only a user gives back what a tool said")
            results.append(Turn("tool", (part,), part.at))
        else:
            if isinstance(part, ToolCall | Thought) and role != "assistant":
                refuse(part.at, "only an assistant calls tools and thinks")
            rest.append(part)
    return [*results, Turn(role, tuple(rest), at)] if rest or not results else results


def _parts(content: Any, at: str) -> list[Part]:
    """The parts of a content field, given as a string or a list of blocks."""
    if content is None or isinstance(content, str):
        return [Text(content, at)] if content else []
    parts: list[Part] = []
    for index, block in enumerate(sequence(content, at)):
        parts += [Text(block, f"{at}[{index}]")] if isinstance(block, str) else _block(block, f"{at}[{index}]")
    return parts


def _block(block: Any, at: str) -> list[Part]:
    kind = mapping(block, at).get("type")
    if kind == "text":
        if not isinstance(block.get("text"), str):
            refuse(f"{at}.text", "must be a string")
        return [Text(block["text"], at)]
    if kind == "tool_use":
        return [read_call(block.get("id"), block.get("name"), block.get("input"), at, where=f"{at}.input")]
    if kind == "tool_result":
        inner = [
            part
            for part in _parts(block.get("content"), f"{at}.content")
            if isinstance(part, Text | Image | File | Other)
        ]
        return [Result(str(block.get("tool_use_id") or ""), tuple(inner), block.get("is_error") is True, at)]
    if kind == "thinking":
        seal, owner = carried(string(block.get("signature"), f"{at}.signature"), "messages")
        return [Thought(string(block.get("thinking"), f"{at}.thinking"), seal, owner, at)]
    if kind == "redacted_thinking":
        return [Thought("", *carried(string(block.get("data"), f"{at}.data"), "messages"), at)]
    if kind == "image":
        return [_image(mapping(block.get("source"), at), at)]
    if kind == "document":
        return _document(block, at)
    if kind == "search_result":
        titles = [Text(str(block[key]), at) for key in ("title", "source") if block.get(key)]
        return [*titles, *_parts(block.get("content"), f"{at}.content")]
    if kind == "tool_reference":  # a tool that was found; all tools are offered from the start
        return [Text(str(block.get("tool_name") or ""), at)]
    return [Other(str(kind), at)]


def _image(source: Mapping[str, Any], at: str) -> Part:
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        return Image(source["url"], at=at)
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return Image("", str(source.get("media_type") or "image/png"), source["data"], at=at)
    return Other("image", at)  # a file at its own provider


def _document(block: Mapping[str, Any], at: str) -> list[Part]:
    """A document; one of text is its text, its title before it."""
    source = mapping(block.get("source"), f"{at}.source")
    kind = source.get("type")
    titles = [str(block[key]) for key in ("title", "context") if block.get(key)]
    if kind == "content":
        return [*(Text(title, at) for title in titles), *_parts(source.get("content"), f"{at}.source.content")]
    if kind == "text" and isinstance(source.get("data"), str):
        return [Text("\n".join([*titles, source["data"]]), at)]
    name = str(block.get("title") or "")
    context = [Text(str(block["context"]), at)] if block.get("context") else []
    if kind == "url" and isinstance(source.get("url"), str):
        return [*context, File(name, source["url"], at=at)]
    if kind == "base64" and isinstance(source.get("data"), str):
        return [*context, File(name, "", str(source.get("media_type") or "application/pdf"), source["data"], at)]
    return [Other("document", at)]
