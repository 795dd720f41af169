"""Tools as each dialect offers them, read into one form and named so that every dialect can say the name.

Knows which kinds of tools only a provider can run. Called by the dialects.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from reef.inference.dialects.fields import mapping, refuse, sequence, string
from reef.inference.dialects.prompt import Choice, Prompt, Tool, ToolCall

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_FREE_TEXT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_EXTRAS = ("web_search", "web_fetch", "image_generation", "tool_search", "code_interpreter", "code_execution")
"""Kinds a provider runs by itself and agents offer beside their own tools. Elsewhere they cannot exist; the model is not told
of them and the agent's own tools still work. A request that offers nothing else is refused."""
_NAME_CHARS = 64


def wire_name(namespace: str, name: str) -> str:
    """One flat name of at most 64 characters, the same for the same tool in every request."""
    flat = f"{namespace}__{name}" if namespace else name
    if len(flat) <= _NAME_CHARS:
        return flat
    return f"{flat[:55]}_{hashlib.sha256(flat.encode('utf-8', 'replace')).hexdigest()[:8]}"


class Toolbox:
    """Collects the tools of one request."""

    def __init__(self) -> None:
        self.tools: list[Tool] = []
        self._extras: list[tuple[str, str]] = []

    def function(self, spec: Mapping[str, Any], schema: str, at: str, namespace: str = "") -> None:
        """A function tool; ``schema`` is the key its dialect keeps the parameters under."""
        name = _name(spec, at)
        parameters = mapping(spec.get(schema), f"{at}.{schema}") or _NO_PARAMETERS
        examples = sequence(spec.get("input_examples"), f"{at}.input_examples")
        if examples:
            parameters = {**parameters, "examples": examples}
        strict = spec.get("strict") if isinstance(spec.get("strict"), bool) else None
        words = string(spec.get("description"), f"{at}.description")
        self._add(Tool(name, wire_name(namespace, name), words, parameters, strict, namespace, False, at))

    def custom(self, spec: Mapping[str, Any], at: str, namespace: str = "") -> None:
        """A tool whose input is free text, perhaps bound by a grammar, which only words can pass on."""
        name, words = _name(spec, at), string(spec.get("description"), f"{at}.description")
        form = mapping(spec.get("format"), f"{at}.format")
        grammar = mapping(form.get("grammar"), f"{at}.format.grammar") or form
        if form.get("type") == "grammar":
            rule = f"The input must match this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}"
            words = f"{words}\n{rule}" if words else rule
        self._add(Tool(name, wire_name(namespace, name), words, _FREE_TEXT, None, namespace, True, at))

    def hosted(self, kind: Any, at: str) -> None:
        """A tool the provider would run, or one whose use it has taught its models; most cannot be done without."""
        if not isinstance(kind, str) or not kind.startswith(_EXTRAS):
            refuse(at, f"a tool of type {kind!r} exists at its own provider only")
        self._extras.append((kind, at))

    def choose(
        self, kind: Any, name: str = "", namespace: str = "", among: Iterable[str] | None = None
    ) -> Choice | None:
        """The choice of that kind (none given: None); ``among`` leaves only those tools in the box."""
        if among is not None:
            allowed = set(among)
            self.tools = [tool for tool in self.tools if tool.wire in allowed]
        if kind is None:
            return None
        kinds = {"auto": "auto", "none": "none", "required": "required", "any": "required", "one": "one"}
        if kind not in kinds:
            refuse("tool_choice", f"{kind!r} is not known, or is a tool of its own provider")
        wire = wire_name(namespace, name)
        if kinds[kind] in ("required", "one") and not any(kind != "one" or tool.wire == wire for tool in self.tools):
            refuse("tool_choice", f"no tool {name!r} is offered" if name else "no tool is offered")
        return Choice(kinds[kind], wire)  # type: ignore[arg-type]

    def packed(self) -> tuple[Tool, ...]:
        """The tools; refused where all that was offered is out of reach."""
        if self._extras and not self.tools:
            kind, at = self._extras[0]
            refuse(at, f"{kind!r} is run by its own provider, and no other tool is offered")
        return tuple(self.tools)

    def _add(self, tool: Tool) -> None:
        known = next((one for one in self.tools if one.wire == tool.wire), None)
        if known is None:
            self.tools.append(tool)
        elif replace(known, at=tool.at) != tool:
            refuse(f"{tool.at}.name", f"{tool.name!r} is the name of another tool too")


def _name(spec: Mapping[str, Any], at: str) -> str:
    if not isinstance(spec.get("name"), str) or not spec["name"]:
        refuse(f"{at}.name", "must be the name of a tool")
    return str(spec["name"])


def read_call(call_id: Any, name: Any, arguments: Any, at: str, namespace: Any = "", where: str = "") -> ToolCall:
    """A call of the history. ``arguments``: their JSON text, an object, or None; ``where`` is their own field."""
    if not isinstance(name, str) or not name:
        refuse(f"{at}.name", "must be the name of a tool")
    text = (
        arguments
        if isinstance(arguments, str)
        else json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    )
    wire = wire_name(str(namespace or ""), name)
    return ToolCall(str(call_id or ""), wire, text, where or f"{at}.arguments")


def decoded(call: ToolCall) -> dict[str, Any]:
    """A call's arguments as an object, decoded once; empty text stands for none."""
    try:
        arguments = json.loads(call.arguments) if call.arguments.strip() else {}
    except ValueError:
        refuse(call.at, "is not valid JSON")
    if not isinstance(arguments, dict):
        refuse(call.at, "must hold a JSON object, encoded once")
    return arguments


def free_text(arguments: str) -> str:
    """What a custom tool is given: the ``input`` of well-formed arguments, else all that the model wrote."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    if isinstance(found, dict) and found.keys() == {"input"} and isinstance(found["input"], str):
        return found["input"]
    return arguments


def offered(prompt: Prompt, wire: str) -> Tool:
    """The tool a model calls by ``wire``; one that nobody offered keeps the name the model made up."""
    return prompt.tool(wire) or Tool(wire, wire, "", _NO_PARAMETERS)
