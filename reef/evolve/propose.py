"""The default proposer: shows the deployment's model the tree, the failed runs and what was tried before, and asks for edits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reef.evolve.values import Proposal, ProposeContext, Refusal, proposal_of

SYSTEM = """You improve the harness of an AI agent: the texts that are put into its prompt. You see the harness, runs in which
the agent failed, and what people said about them. Propose a small change that helps the agent with all work of this kind.

Answer with one JSON object and nothing else:
{"why": "one or two sentences", "edits": [{"action": "put", "kind": KIND, "name": NAME, "text": TEXT}]}

KIND is one of: %s. NAME has lower-case letters, digits and hyphens. An edit replaces a whole entry of the same kind and
name, or adds one; {"action": "delete", "kind": KIND, "name": NAME} removes one. A skill's text begins with a front matter:
---
name: NAME
description: when to use it, in one sentence
---
Write general advice. Do not copy names, values or sentences of a single run into it, and no keys or addresses."""


def propose(context: ProposeContext) -> Proposal:
    """One question, one answer, read strictly; raises Refusal for an answer that is no proposal."""
    system = SYSTEM % ", ".join(sorted(context.allowed))
    return proposal_of(read_answer(context.ask(system, question(context))))


def question(context: ProposeContext) -> str:
    """What the model is shown, in order: the tree, the runs, earlier proposals, the request."""
    parts = ["# The harness now"]
    parts += [f"## {one.kind}/{one.name}\n{one.text.strip()}" for one in context.tree] or ["(it is empty)"]
    for number, run in enumerate(context.runs, start=1):
        score = "no score" if run.score is None else f"score {run.score:g}"
        parts.append(
            f"# Failed run {number} ({score})\nWhat was said of it: {run.feedback or '(nothing)'}\n\n{run.text}"
        )
    return "\n\n".join([*parts, *ending(context)])


def ending(context: ProposeContext) -> list[str]:
    """What a question ends with, where there is any: earlier proposals that were not taken, and what the user asks for."""
    parts = []
    if context.rejected:
        tried = [f"- {one.summary}. Reason: {one.reason}" for one in context.rejected]
        parts.append("# Tried before and not taken: do not propose these again\n" + "\n".join(tried))
    if context.request:
        parts.append(f"# What the user asks for\n{context.request}")
    return parts


def read_answer(text: str) -> Any:
    """The JSON of an answer, alone or in a fenced block; raises Refusal when there is none."""
    fenced = re.findall(r"```(?:json)?\s*\n(.*?)```", text, flags=re.S)
    for part in (text, *fenced):
        try:
            found = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, Mapping | list):
            return found
    said = " ".join(text.split())
    raise Refusal(f"the model's answer holds no JSON object: {said[:160]!r}" if said else "the model's answer is empty")


def run_text(messages: Sequence[Any], answer: str, limit: int) -> str:
    """A conversation as text of at most ``limit`` characters; what is left out in its middle is said."""
    lines = [f"[{one.get('role') or one.get('type', '?')}] {message_text(one)}" for one in objects(messages)]
    return cut_middle("\n\n".join([*lines, f"[assistant] {answer}"]), limit)


def cut_middle(text: str, limit: int) -> str:
    """``text``, or its beginning and end with how much is missing between them."""
    if len(text) <= limit:
        return text
    mark = f"\n\n[... {len(text) - limit} characters left out ...]\n\n"
    room = max(limit - len(mark), 0)
    return text[: room // 2] + mark + text[len(text) - (room - room // 2) :]


def objects(found: Any) -> list[Mapping[str, Any]]:
    """The objects of a list in recorded JSON, where an agent or a provider may have put anything; empty for no list."""
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []


def message_text(message: Mapping[str, Any]) -> str:
    """All text of a message, with the calls it makes."""
    if "role" not in message:  # an item of the responses format: a call of a tool, or what came of it
        return " ".join(str(message[name]) for name in ("name", "arguments", "output") if message.get(name))
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [
        part.get("text") or part.get("content") or json.dumps(part, ensure_ascii=False)[:2000]
        if isinstance(part, Mapping)
        else part
        for part in parts
    ]
    functions = objects([call.get("function") for call in objects(message.get("tool_calls"))])
    calls = [f"(calls {one.get('name')} {one.get('arguments')})" for one in functions]
    return "\n".join(str(text) for text in [*texts, *calls] if text)
