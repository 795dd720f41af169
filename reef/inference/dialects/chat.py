"""OpenAI's chat completions: request to Prompt, generation to an object or to chunks.

Knows nothing of templates, tokens or HTTP. Called by the engine backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reef.inference.dialects.values import (
    Dialect,
    Head,
    Outcome,
    Piece,
    Prompt,
    TokenLogprob,
    arrange,
    content_text,
    function_tool,
    gather,
    mapping,
    number,
    refuse,
    sequence,
    texts,
    tool_call,
    tool_choice,
    whole,
)
from reef.inference.sse import DONE, frame

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
LOGPROB_FLOOR = -9999.0
"""What a client sees for a log-prob that is not finite and so has no JSON form."""


def parse(body: Mapping[str, Any]) -> Prompt:
    """The Prompt of a chat request; BadRequest names the field that cannot be honoured."""
    _refuse_unsupported(body)
    messages = [_message(message, f"messages[{at}]", at) for at, message in _messages(body)]
    tools = []
    for at, tool in enumerate(sequence(body.get("tools"), "tools")):
        if isinstance(tool, dict) and tool.get("type", "function") == "function":
            tools.append(
                function_tool(mapping(tool.get("function"), f"tools[{at}].function"), "parameters", f"tools[{at}]")
            )
    options = dict(mapping(body.get("chat_template_kwargs"), "chat_template_kwargs"))
    if body.get("reasoning_effort") is not None:
        options.setdefault("reasoning_effort", body["reasoning_effort"])
        if body["reasoning_effort"] == "none":
            options.setdefault("enable_thinking", False)
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    top = whole(body, "top_logprobs", 0) or 0
    if top > 20:
        refuse("top_logprobs", "must be at most 20")
    return Prompt(
        messages=arrange(messages, "messages"),
        tools=tuple(tools) if tool_choice(body.get("tool_choice")) else (),
        max_tokens=whole(body, limit, 1),
        temperature=number(body, "temperature", 1.0, 0.0, 10.0),
        top_p=number(body, "top_p", 1.0, 0.0, 1.0),
        top_k=whole(body, "top_k", -1) or -1,
        min_p=number(body, "min_p", 0.0, 0.0, 1.0),
        seed=whole(body, "seed", -(2**63)),
        stop=texts(body.get("stop"), "stop"),
        top_logprobs=top if body.get("logprobs") else None,
        include_usage=bool(mapping(body.get("stream_options"), "stream_options").get("include_usage")),
        template_options=options,
    )


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Fields that would change the answer and cannot be honoured; everything unknown is let through."""
    if body.get("n") not in (None, 1):
        refuse("n", "this engine gives one answer per call; send the call again for another")
    for name in ("frequency_penalty", "presence_penalty"):
        if body.get(name):
            refuse(name, "is not supported; leave it out or set it to 0")
    for name in ("logit_bias", "functions", "audio"):
        if body.get(name):
            refuse(name, "is not supported" + ("; use tools" if name == "functions" else ""))
    if any(kind != "text" for kind in sequence(body.get("modalities"), "modalities")):
        refuse("modalities", "this model writes text only")
    kind = mapping(body.get("response_format"), "response_format").get("type", "text")
    if kind != "text":
        refuse("response_format", f"{kind!r} cannot be enforced by this engine; ask for JSON in the prompt instead")


def _messages(body: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    found = sequence(body.get("messages"), "messages")
    if not found:
        refuse("messages", "must hold at least one message")
    return [(at, mapping(message, f"messages[{at}]")) for at, message in enumerate(found)]


def _message(message: Mapping[str, Any], name: str, at: int) -> dict[str, Any]:
    """One message in template form."""
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        refuse(f"{name}.role", f"{message.get('role')!r} is not known")
    read: dict[str, Any] = {"role": role, "content": content_text(message.get("content"), f"{name}.content")}
    if role == "tool":
        return {**read, "tool_call_id": str(message.get("tool_call_id") or ""), "at": at}
    if isinstance(message.get("name"), str):
        read["name"] = message["name"]
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            read["reasoning_content"] = reasoning
        calls = []
        for index, call in enumerate(sequence(message.get("tool_calls"), f"{name}.tool_calls")):
            where = f"{name}.tool_calls[{index}].function"
            function = mapping(mapping(call, where).get("function"), where)
            calls.append(tool_call(call.get("id"), function.get("name"), function.get("arguments"), where))
        if calls:
            read["tool_calls"] = calls
    return read


def plain(
    head: Head, pieces: Sequence[Piece], outcome: Outcome, logprobs: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    """The chat.completion object."""
    parts = gather(pieces)
    calls = [_call(head, index, piece) for index, piece in enumerate(part for part in parts if part.kind == "call")]
    text = "".join(part.text for part in parts if part.kind == "text")
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    reasoning = "".join(part.text for part in parts if part.kind == "reasoning")
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(head, logprobs),
        "finish_reason": _finish_reason(outcome, bool(calls)),
    }
    return {
        "id": f"chatcmpl-{head.call_id}",
        "object": "chat.completion",
        "created": head.created_s,
        "model": head.model,
        "choices": [choice],
        "usage": _usage(head, outcome),
    }


class ChatStream:
    """Renders chunks: role first, deltas, finish reason, usage when asked for, ``[DONE]``."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._calls = 0

    def begin(self) -> bytes:
        """The chunk that names the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """One chunk per piece; log-probs ride on the first, or on an empty one when no piece is ready."""
        sent = []
        for piece in pieces:
            if piece.kind == "call":
                call = {"index": self._calls, **_call(self._head, self._calls, piece)}
                self._calls += 1
                sent.append(self._chunk({"tool_calls": [call]}, logprobs=logprobs))
            else:
                key = "content" if piece.kind == "text" else "reasoning_content"
                sent.append(self._chunk({key: piece.text}, logprobs=logprobs))
            logprobs = ()
        if logprobs and self._head.prompt.top_logprobs is not None:
            sent.append(self._chunk({}, logprobs=logprobs))
        return b"".join(sent)

    def end(self, outcome: Outcome) -> bytes:
        """Finish reason, usage, end mark."""
        last = self._chunk({}, finish_reason=_finish_reason(outcome, self._calls > 0))
        if self._head.prompt.include_usage:
            last += frame({**self._frame(), "choices": [], "usage": _usage(self._head, outcome)})
        return last + DONE

    def _frame(self) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._head.call_id}",
            "object": "chat.completion.chunk",
            "created": self._head.created_s,
            "model": self._head.model,
        }

    def _chunk(
        self, delta: Mapping[str, Any], finish_reason: str | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> bytes:
        shown = _logprobs(self._head, logprobs) if logprobs else None
        choice = {"index": 0, "delta": delta, "logprobs": shown, "finish_reason": finish_reason}
        return frame({**self._frame(), "choices": [choice]})


def _call(head: Head, index: int, piece: Piece) -> dict[str, Any]:
    function = {"name": piece.name, "arguments": piece.text}
    return {"id": f"call_{head.call_id}_{index}", "type": "function", "function": function}


def _finish_reason(outcome: Outcome, called: bool) -> str:
    return "tool_calls" if called and outcome.finish == "stop" else outcome.finish


def _usage(head: Head, outcome: Outcome) -> dict[str, Any]:
    return {
        "prompt_tokens": head.input_tokens,
        "completion_tokens": outcome.output_tokens,
        "total_tokens": head.input_tokens + outcome.output_tokens,
        "prompt_tokens_details": {"cached_tokens": outcome.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": outcome.reasoning_tokens},
    }


def _logprobs(head: Head, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    if head.prompt.top_logprobs is None:
        return None
    return {"content": [{**_token(one), "top_logprobs": [_token(other) for other in one.top]} for one in logprobs]}


def _token(one: TokenLogprob) -> dict[str, Any]:
    shown = one.logprob if one.logprob > LOGPROB_FLOOR else LOGPROB_FLOOR
    return {"token": one.token, "logprob": shown, "bytes": list(one.token_bytes)}


CHAT = Dialect(parse, plain, ChatStream)
"""The chat route's dialect."""
