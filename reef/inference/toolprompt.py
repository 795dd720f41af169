"""Tools, calls and results in plain words, for chat templates that know none of them.

The call form is the one the ``hermes`` parser reads. Pure functions, called by ``template``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_HOW_TO_CALL = (
    "You can use tools. Each line between <tools> and </tools> describes one:\n"
    "<tools>\n{tools}\n</tools>\n"
    "To use a tool, write its name and arguments as one JSON object in tool_call tags, one pair of tags per use:\n"
    '<tool_call>\n{{"name": "tool name", "arguments": {{"argument": "value"}}}}\n</tool_call>'
)


def spell_out_tools(messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The same conversation with nothing but system, user and assistant texts."""
    spelled: list[dict[str, Any]] = []
    if tools:
        offer = _HOW_TO_CALL.format(tools="\n".join(_dump(tool["function"]) for tool in tools))
        if messages and messages[0]["role"] == "system":
            offer = f"{messages[0]['content']}\n\n{offer}"
            messages = messages[1:]
        spelled.append({"role": "system", "content": offer})
    in_results = False
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if in_results:
                spelled[-1]["content"] += "\n" + text
            else:
                spelled.append({"role": "user", "content": text})
            in_results = True
            continue
        in_results = False
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
        kept["content"] = "\n".join([*([kept["content"]] if kept["content"] else []), *calls])
        spelled.append(kept)
    return spelled


def _call(function: dict[str, Any]) -> str:
    name, arguments = _dump(function["name"]), _dump(function["arguments"])
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
