"""Scripted models in the chat format: one whose answers are a function of the request, and a coder that is told what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from reef.inference.sse import DONE, frame
from reef.inference.testing import ScriptedProvider

Mind = Callable[[Mapping[str, Any]], Mapping[str, Any] | int | str]
"""The assistant message for a request's body, a status to fail with, or the answer's body as it is."""
SHELLS = {"bash": "command", "Bash": "command", "shell": "command", "exec_command": "cmd"}
"""The shell tool of each agent, and what it calls its command."""


class Thinker(ScriptedProvider):
    """Answers with what ``mind`` says of the request, streamed or not; ``bodies`` are the requests."""

    def __init__(self, mind: Mind) -> None:
        super().__init__()
        self.mind = mind
        self.bodies: list[dict[str, Any]] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/models", self._models), web.post("/v1/chat/completions", self._chat)]

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m-1", "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        message = self.mind(body)
        if isinstance(message, int):
            return web.json_response({"error": {"message": "the provider is down"}}, status=message)
        if isinstance(message, str):
            return web.Response(text=message, content_type="application/json")
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        head = {"id": "chatcmpl-1", "created": 1, "model": "m-1"}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls") or ())]
        first = {"role": "assistant", **message, **({"tool_calls": calls} if calls else {})}
        ends = (
            [{"index": 0, "delta": first, "finish_reason": None}],
            [{"index": 0, "delta": {}, "finish_reason": reason}],
            [],
        )
        for choices in ends:
            chunk = {**head, "object": "chat.completion.chunk", "choices": choices}
            await response.write(frame(chunk if choices else {**chunk, "usage": usage}))
        await response.write(DONE)
        return response


class CodingModel(Thinker):
    """``[[run COMMAND]]`` in the prompt is run once; the answer is ``done`` and every ``MARK-x`` of the request."""

    def __init__(self) -> None:
        super().__init__(_answer)


def run_in_shell(body: Mapping[str, Any], command: str) -> dict[str, Any] | None:
    """A message that has the agent run ``command``; None when it has run something already, or offers no shell."""
    names = [tool.get("function", {}).get("name") for tool in body.get("tools") or []]
    shell = next((name for name in names if name in SHELLS), None)
    if shell is None or body["messages"][-1]["role"] == "tool":
        return None
    arguments = {SHELLS[shell]: command, **({"description": "does it"} if SHELLS[shell] == "command" else {})}
    call = {"id": f"call_{len(body['messages'])}", "type": "function"}
    return {"content": None, "tool_calls": [{**call, "function": {"name": shell, "arguments": json.dumps(arguments)}}]}


def _answer(body: Mapping[str, Any]) -> dict[str, Any]:
    asked = re.findall(r"\[\[run (.*?)\]\]", _text(body["messages"]))
    ran = run_in_shell(body, asked[-1]) if asked else None
    return ran or {"content": " ".join(["done", *sorted(set(re.findall(r"MARK-\w+", json.dumps(body))))])}


def _text(messages: list[dict[str, Any]]) -> str:
    """What the user said last."""
    said = [one["content"] for one in messages if one["role"] == "user"]
    return "\n".join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in said[-2:])
