"""OpenAI's chat completions, to a client: Pieces to an object or to chunks.

Knows nothing of templates, tokens or HTTP. Called by the engine backend and by translation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reef.inference.dialects.answer import Head, Outcome, Piece, TokenLogprob, gather
from reef.inference.dialects.tools import offered
from reef.inference.sse import DONE, frame

LOGPROB_FLOOR = -9999.0
"""What a client sees for a log-prob that is not finite and so has no JSON form."""

_FINISH = {"stop": "stop", "length": "length", "calls": "tool_calls", "filter": "content_filter"}
_KEYS = {"text": "content", "reasoning": "reasoning_content", "refusal": "refusal"}


def plain(
    head: Head, pieces: Sequence[Piece], outcome: Outcome, logprobs: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    """The chat.completion object."""
    parts = gather(pieces)
    calls = [part for part in parts if part.kind == "call"]
    said = {key: "".join(part.text for part in parts if part.kind == kind) for kind, key in _KEYS.items()}
    message: dict[str, Any] = {"role": "assistant", "content": said["content"] or (None if calls else "")}
    message |= {key: text for key, text in said.items() if key != "content" and text}
    details = [_sealed(index, part.text, part.seal) for index, part in enumerate(p for p in parts if p.seal)]
    if details:
        message["reasoning_details"] = details
    if calls:
        message["tool_calls"] = [_call(head, index, part, part.text or "{}") for index, part in enumerate(calls)]
    probs = [one for part in parts for one in part.logprobs] or logprobs
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(head, probs),
        "finish_reason": _finish_reason(outcome, bool(calls)),
    }
    body = {
        "id": f"chatcmpl-{head.call_id}",
        "object": "chat.completion",
        "created": head.created_s,
        "model": head.model,
        "choices": [choice],
    }
    return body if outcome.usage is None else {**body, "usage": _usage(outcome)}


class ChatStream:
    """Renders chunks: role first, deltas, finish reason, usage when asked for, ``[DONE]``."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._calls = 0
        self._bare = False  # the open call has no arguments yet
        self._thought: list[str] = []
        self._seals = 0

    def begin(self) -> bytes:
        """The chunk that names the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Chunks for the pieces; log-probs ride on the first, or on an empty one when no piece is ready."""
        sent = []
        for piece in pieces:
            probs = piece.logprobs or logprobs
            for delta in self._deltas(piece):
                sent.append(self._chunk(delta, logprobs=probs))
                probs = ()
            if not probs:
                logprobs = ()
        if logprobs and self._head.prompt.get("logprobs") is not None:
            sent.append(self._chunk({}, logprobs=logprobs))
        return b"".join(sent)

    def end(self, outcome: Outcome) -> bytes:
        """Finish reason, usage, end mark."""
        last = b"".join(self._chunk(delta) for delta in self._close_call())
        last += self._chunk({}, finish_reason=_finish_reason(outcome, self._calls > 0))
        if self._head.prompt.include_usage and outcome.usage is not None:
            last += frame({**self._frame(), "choices": [], "usage": _usage(outcome)})
        return last + DONE

    def _deltas(self, piece: Piece) -> list[dict[str, Any]]:
        if piece.kind == "arguments":
            self._bare = self._bare and not piece.text
            function = {"arguments": piece.text}
            return [{"tool_calls": [{"index": self._calls - 1, "function": function}]}] if piece.text else []
        deltas = self._close_call()
        if piece.kind != "reasoning":
            self._thought = []
        if piece.kind == "call":
            call = {"index": self._calls, **_call(self._head, self._calls, piece, piece.text)}
            self._calls += 1
            self._bare = not piece.text
            return [*deltas, {"tool_calls": [call]}]
        if piece.text or piece.logprobs:
            deltas.append({_KEYS[piece.kind]: piece.text})
        if piece.kind == "reasoning":
            self._thought.append(piece.text)
        if piece.seal:
            deltas.append({"reasoning_details": [_sealed(self._seals, "".join(self._thought), piece.seal)]})
            self._seals, self._thought = self._seals + 1, []
        return deltas

    def _close_call(self) -> list[dict[str, Any]]:
        """No arguments are an empty object: clients parse the text."""
        bare, self._bare = self._bare, False
        return [{"tool_calls": [{"index": self._calls - 1, "function": {"arguments": "{}"}}]}] if bare else []

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


def _call(head: Head, index: int, piece: Piece, arguments: str) -> dict[str, Any]:
    function = {"name": offered(head.prompt, piece.name).name, "arguments": arguments}
    return {"id": piece.call_id or f"call_{head.call_id}_{index}", "type": "function", "function": function}


def _sealed(index: int, text: str, seal: str) -> dict[str, Any]:
    """What clients that hand reasoning back hand back with it."""
    if text:
        return {"index": index, "type": "reasoning.text", "text": text, "signature": seal}
    return {"index": index, "type": "reasoning.encrypted", "data": seal}


def _finish_reason(outcome: Outcome, called: bool) -> str | None:
    return "tool_calls" if called and outcome.finish == "stop" else _FINISH.get(outcome.finish or "")


def _usage(outcome: Outcome) -> dict[str, Any]:
    assert outcome.usage is not None
    usage = outcome.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _logprobs(head: Head, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    if head.prompt.get("logprobs") is None:
        return None
    return {"content": [{**show_logprob(one), "top_logprobs": list(map(show_logprob, one.top))} for one in logprobs]}


def show_logprob(one: TokenLogprob) -> dict[str, Any]:
    """One token as OpenAI's dialects show it; one that is not finite shows a floor."""
    shown = one.logprob if one.logprob > LOGPROB_FLOOR else LOGPROB_FLOOR
    return {"token": one.token, "logprob": shown, "bytes": list(one.token_bytes)}
