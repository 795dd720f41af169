"""Anthropic's messages, to a client: Pieces to a message or to its event sequence.

Knows nothing of templates, tokens or HTTP. Called by the engine backend and by translation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from reef.inference.dialects.answer import Head, Outcome, Piece, TokenLogprob, Usage, gather
from reef.inference.dialects.tools import offered
from reef.inference.sse import frame

_REASONS = {"length": "max_tokens", "calls": "tool_use", "filter": "refusal", "pause": "pause_turn"}
_DELTAS = {
    "text": ("text", "text_delta"),
    "refusal": ("text", "text_delta"),
    "reasoning": ("thinking", "thinking_delta"),
    "call": ("partial_json", "input_json_delta"),
    "arguments": ("partial_json", "input_json_delta"),
}


def plain(
    head: Head, pieces: Sequence[Piece], outcome: Outcome, logprobs: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    """The message object."""
    content: list[dict[str, Any]] = []
    kinds: set[str] = set()
    calls = 0
    for piece in gather(pieces):
        if piece.kind == "reasoning" and not head.prompt.show_reasoning:
            continue
        content.append(_block(head, piece, calls))
        kinds.add(piece.kind)
        calls += piece.kind == "call"
    return {**_message(head, content), **_stop(outcome, kinds), "usage": _usage(head, outcome)}


class MessagesStream:
    """Renders the event sequence: one message, blocks opened, filled and closed in order, indexes rising."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._open: str | None = None
        self._index = -1
        self._calls = 0
        self._kinds: set[str] = set()

    def begin(self) -> bytes:
        """``message_start``."""
        return frame({"type": "message_start", "message": _message(self._head, [])}, "message_start")

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Block events for the pieces; log-probs have no place in this dialect."""
        return b"".join(
            self._add(piece) for piece in pieces if piece.kind != "reasoning" or self._head.prompt.show_reasoning
        )

    def end(self, outcome: Outcome) -> bytes:
        """Close the block, then stop reason, usage and ``message_stop``."""
        closing = self._close()
        delta = {"type": "message_delta", "delta": _stop(outcome, self._kinds), "usage": _usage(self._head, outcome)}
        return closing + frame(delta, "message_delta") + frame({"type": "message_stop"}, "message_stop")

    def _add(self, piece: Piece) -> bytes:
        sent = b""
        if piece.kind == "reasoning" and not piece.text and piece.seal and self._open != "reasoning":
            return self._close() + self._start(piece) + self._close()
        if piece.kind == "call" or (piece.kind not in ("arguments", self._open) and piece.text):
            sent = self._close() + self._start(Piece(piece.kind, "", piece.name, piece.call_id))
        if piece.text:
            key, kind = _DELTAS[piece.kind]
            sent += self._event("content_block_delta", delta={"type": kind, key: piece.text})
        if piece.seal:
            sent += self._event("content_block_delta", delta={"type": "signature_delta", "signature": piece.seal})
            sent += self._close()
        return sent

    def _start(self, piece: Piece) -> bytes:
        self._index += 1
        self._open = piece.kind
        self._kinds.add(piece.kind)
        block = _block(self._head, piece, self._calls)
        self._calls += piece.kind == "call"
        return self._event("content_block_start", content_block=block)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return self._event("content_block_stop")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return frame({"type": kind, "index": self._index, **fields}, kind)


def _block(head: Head, piece: Piece, calls: int) -> dict[str, Any]:
    """A content block. A thinking block has no signature but its provider's own; arguments that are no JSON stay text."""
    if piece.kind in ("text", "refusal"):
        return {"type": "text", "text": piece.text}
    if piece.kind == "reasoning":
        if piece.seal and not piece.text:
            return {"type": "redacted_thinking", "data": piece.seal}
        return {"type": "thinking", "thinking": piece.text, "signature": piece.seal}
    try:
        arguments = json.loads(piece.text) if piece.text.strip() else {}
    except ValueError:
        arguments = piece.text
    name = offered(head.prompt, piece.name).name
    return {
        "type": "tool_use",
        "id": piece.call_id or f"toolu_{head.call_id}_{calls}",
        "name": name,
        "input": arguments,
    }


def _message(head: Head, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{head.call_id}",
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": head.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }


def _stop(outcome: Outcome, kinds: set[str]) -> dict[str, Any]:
    reason = _REASONS.get(outcome.finish or "")
    if outcome.finish == "stop":
        if "call" in kinds:
            reason = "tool_use"
        elif outcome.stop_text is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": outcome.stop_text}
        else:
            reason = "refusal" if "refusal" in kinds else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(head: Head, outcome: Outcome) -> dict[str, Any]:
    """Tokens as this dialect counts them: the prompt without what was read from a cache or written to one."""
    usage = outcome.usage or Usage(head.input_tokens)
    thought = {"output_tokens_details": {"thinking_tokens": usage.reasoning_tokens}} if usage.reasoning_tokens else {}
    return {
        "input_tokens": max(usage.input_tokens - usage.cached_tokens - usage.written_tokens, 0),
        "cache_creation_input_tokens": usage.written_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        **thought,
    }
