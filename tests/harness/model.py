"""A scripted coding model in the chat format: one shell command, then an answer that says which marks it was shown."""

from __future__ import annotations

import json
import re
from typing import Any

from aiohttp import web

from reef.inference.testing import ScriptedProvider, Seen

_SHELLS = ("bash", "Bash", "exec_command", "shell")


class CodingModel(ScriptedProvider):
    """``[[run COMMAND]]`` in the prompt is run once; the answer is ``done`` and every ``MARK-x`` of the request."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/models", self._models), web.post("/v1/chat/completions", self._chat)]

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m-1", "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.seen.append(Seen("POST", request.path_qs, tuple(request.headers.items()), raw))
        body = json.loads(raw)
        self.bodies.append(body)
        message = _answer(body, raw.decode())
        reason = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        head = {"id": "chatcmpl-1", "created": 1, "model": "m-1"}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for delta, end in (({"role": "assistant", **_indexed(message)}, None), ({}, reason)):
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            await response.write(_event({**head, "object": "chat.completion.chunk", "choices": [choice]}))
        await response.write(_event({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _answer(body: dict[str, Any], text: str) -> dict[str, Any]:
    names = [tool.get("function", {}).get("name") for tool in body.get("tools") or []]
    shell = next((name for name in _SHELLS if name in names), None)
    asked = re.findall(r"\[\[run (.*?)\]\]", _text(body["messages"]))
    last = body["messages"][-1]
    if shell is not None and asked and last["role"] != "tool":
        key = "cmd" if shell == "exec_command" else "command"
        arguments = {key: asked[-1], **({"description": "does it"} if key == "command" else {})}
        call = {"id": f"call_{len(body['messages'])}", "type": "function"}
        return {
            "content": None,
            "tool_calls": [{**call, "function": {"name": shell, "arguments": json.dumps(arguments)}}],
        }
    return {"content": " ".join(["done", *sorted(set(re.findall(r"MARK-\w+", text)))])}


def _text(messages: list[dict[str, Any]]) -> str:
    """What the user said last."""
    said = [one["content"] for one in messages if one["role"] == "user"]
    return "\n".join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in said[-2:])


def _indexed(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls", ()))]
    return {**message, **({"tool_calls": calls} if calls else {})}


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"
