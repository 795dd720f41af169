"""OpenAI's responses, inwards: a request's body to a Prompt. Knows no engine and no other dialect.

Stateless: what refers to an earlier response is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reef.inference.dialects.fields import Fields, mapping, refuse, sequence, string
from reef.inference.dialects.parts import read_file, read_format, read_image
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
    Turn,
)
from reef.inference.dialects.seals import carried
from reef.inference.dialects.tools import Toolbox, read_call, wire_name
from reef.inference.dialects.turns import arrange

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_STATEFUL = ("previous_response_id", "conversation", "background", "prompt")
_NOT_FOR_THE_MODEL = (
    "model",  # read by whoever sends the call
    "stream",
    "stream_options",  # padding against eavesdroppers
    "client_metadata",  # an agent's own notes
    "prompt_cache_key",  # where a provider finds its own cache
    "prompt_cache_retention",
    "prompt_cache_options",
    "max_tool_calls",  # bounds tools that a provider runs
    "truncation",  # lets a provider shorten the history; here it stays whole
    "context_management",
)
_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})


def parse(body: Mapping[str, Any]) -> Prompt:
    """The Prompt of a responses request; BadRequest names the field that is wrong or that nobody could honour."""
    fields = Fields(body)
    fields.passed_over(_NOT_FOR_THE_MODEL)
    for name in _STATEFUL:
        if fields.get(name):
            refuse(name, "needs responses kept by the server; send the whole input instead")
    box = Toolbox()
    _offer(box, fields.get("tools"), "tools")
    turns: list[Turn] = []
    instructions = fields.get("instructions")
    if instructions:
        turns.append(Turn("system", tuple(_parts(instructions, "instructions")), "instructions"))
    turns += _input(fields.get("input"), box)
    choice = _choice(box, fields.get("tool_choice"))
    settings = _settings(fields)
    options: dict[str, Any] = {}
    if "effort" in settings:
        effort = settings["effort"].value
        options = {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}
    return Prompt(
        arrange(turns),
        box.packed(),
        choice,
        settings,
        unread=tuple(fields.unread()),
        template_options=options,
    )


def _settings(fields: Fields) -> dict[str, Setting]:
    """Everything that shapes the answer, where it was given and is not the default."""
    text, reasoning = fields.inner("text"), fields.inner("reasoning")
    reasoning.passed_over(("summary", "generate_summary", "context"))  # how much of the thoughts is shown, and kept
    form = mapping(text.get("format"), "text.format")
    shown = "message.output_text.logprobs" in sequence(fields.get("include"), "include")
    top = fields.whole("top_logprobs")
    given: dict[str, tuple[Any, str]] = {
        "max_tokens": (fields.whole("max_output_tokens"), "max_output_tokens"),
        "temperature": (fields.number("temperature"), "temperature"),
        "top_p": (fields.number("top_p"), "top_p"),
        "logprobs": (top or 0 if shown or top else None, "top_logprobs" if top else "include"),
        "format": (read_format(form, form, "text.format"), "text.format"),
        "verbosity": (None if text.get("verbosity") == "medium" else text.get("verbosity"), "text.verbosity"),
        "effort": (reasoning.get("effort"), "reasoning.effort"),
        "parallel": (None if fields.get("parallel_tool_calls") is not False else False, "parallel_tool_calls"),
    }
    for name in ("user", "safety_identifier", "metadata", "store"):
        given[name] = fields.get(name) or None, name
    tier = fields.get("service_tier")
    given["service_tier"] = (None if tier == "auto" else tier), "service_tier"
    return {name: Setting(value, at) for name, (value, at) in given.items() if value is not None}


def _offer(box: Toolbox, tools: Any, name: str, namespace: str = "") -> None:
    """Put tools into the box, those of a namespace under its name."""
    for index, tool in enumerate(sequence(tools, name)):
        at = f"{name}[{index}]"
        kind = mapping(tool, at).get("type")
        if kind == "function":
            box.function(tool, "parameters", at, namespace)
        elif kind == "custom":
            box.custom(tool, at, namespace)
        elif kind == "namespace" and not namespace:
            _offer(box, tool.get("tools"), f"{at}.tools", string(tool.get("name"), f"{at}.name"))
        else:
            box.hosted(kind, at)


def _choice(box: Toolbox, given: Any) -> Choice | None:
    if not isinstance(given, dict):
        return box.choose(given)
    kind = given.get("type")
    if kind in ("function", "custom"):
        return box.choose("one", str(given.get("name") or ""), str(given.get("namespace") or ""))
    if kind == "allowed_tools":
        allowed = [mapping(one, "tool_choice.tools") for one in sequence(given.get("tools"), "tool_choice.tools")]
        names = [wire_name(str(one.get("namespace") or ""), str(one.get("name") or "")) for one in allowed]
        return box.choose(given.get("mode"), among=names)
    return box.choose(kind)


def _input(given: Any, box: Toolbox) -> list[Turn]:
    """Input items as turns; an assistant's reasoning, text and calls that follow each other are one turn."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items = sequence(given, "input")
    if not items:
        refuse("input", "must be a string or hold at least one item")
    turns: list[Turn] = []
    spoken: list[Part] = []
    start = ""

    def end_turn() -> None:
        nonlocal spoken
        if spoken:
            turns.append(Turn("assistant", tuple(spoken), start))
            spoken = []

    for index, item in enumerate(items):
        at = f"input[{index}]"
        kind = mapping(item, at).get("type") or ("message" if "role" in item else None)
        if kind == "message" and item.get("role") != "assistant":
            end_turn()
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                refuse(f"{at}.role", f"{item.get('role')!r} is not known")
            turns.append(Turn(role, tuple(_parts(item.get("content"), f"{at}.content")), at))  # type: ignore[arg-type]
        elif kind in ("function_call_output", "custom_tool_call_output"):
            end_turn()
            turns.append(Turn("tool", (_result(item, at),), at))
        elif kind == "additional_tools":
            _offer(box, item.get("tools"), f"{at}.tools")
        else:
            new = _spoken(kind, item, at)
            if spoken and not _goes_on(spoken, kind):
                end_turn()
            start = start if spoken else at
            spoken += new
    end_turn()
    return turns


def _goes_on(spoken: list[Part], kind: Any) -> bool:
    """Whether an item belongs to the open turn: calls always do, text and thoughts behind thoughts."""
    return kind not in ("reasoning", "message") or isinstance(spoken[-1], Thought)


def _spoken(kind: Any, item: Mapping[str, Any], at: str) -> list[Part]:
    """The parts of an assistant's item."""
    if kind == "message":
        return _parts(item.get("content"), f"{at}.content") or [Text("", f"{at}.content")]
    if kind == "reasoning":
        content = sequence(item.get("content"), f"{at}.content") or sequence(item.get("summary"), f"{at}.summary")
        text = "\n".join(part.text for part in _parts(content, at) if isinstance(part, Text))
        seal, owner = carried(string(item.get("encrypted_content"), f"{at}.encrypted_content"), "responses")
        return [Thought(text, seal, owner, at)]
    if kind not in ("function_call", "custom_tool_call"):
        refuse(f"{at}.type", f"an item of type {kind!r} cannot be given to this model")
    arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
    return [read_call(item.get("call_id"), item.get("name"), arguments, at, item.get("namespace"))]


def _result(item: Mapping[str, Any], at: str) -> Result:
    parts = _parts(item.get("output"), f"{at}.output")
    kept = tuple(part for part in parts if isinstance(part, Text | Image | File | Other))
    return Result(str(item.get("call_id") or ""), kept, at=at)


def _parts(content: Any, at: str) -> list[Part]:
    """The parts of a content field, given as a string, null or a list."""
    if content is None or isinstance(content, str):
        return [Text(content, at)] if content else []
    return [_part(part, f"{at}[{index}]") for index, part in enumerate(sequence(content, at))]


def _part(part: Any, at: str) -> Part:
    if isinstance(part, str):
        return Text(part, at)
    kind = mapping(part, at).get("type")
    if kind in _TEXTS or kind == "refusal":
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            refuse(f"{at}.text", "must be a string")
        return Text(text, at, refusal=kind == "refusal")
    if kind == "input_image":
        if part.get("file_id"):
            return Other("file_id", at)
        return read_image(part.get("image_url"), part.get("detail"), at)
    if kind == "input_file":
        return read_file(part.get("file_data"), part.get("file_url"), part.get("filename"), at)
    return Other(str(kind), at)
