"""Anthropic's messages, from a provider: events or a whole message to Pieces. Knows no other dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reef.inference.dialects.answer import FinishWord, Outcome, Piece, Usage, count
from reef.inference.dialects.line import Line
from reef.inference.dialects.seals import carry
from reef.inference.faults import ModelFault, read_fault
from reef.inference.sse import Event, dump, load

_FINISH: Mapping[str, FinishWord] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "calls",
    "refusal": "filter",
    "pause_turn": "pause",
}


@dataclass(slots=True)
class _Block:
    kind: str
    input: Any = None
    argued: bool = False


class MessagesReader:
    """Reads events in any cut: blocks by index, a tool's input from wherever it comes, ends with ``message_stop``."""

    def __init__(self) -> None:
        self.model = ""
        self.ended = False
        self.untold = ""
        self._finish: FinishWord | None = None
        self._stop_text: str | None = None
        self._usage: dict[str, Any] = {}
        self._line = Line()
        self._blocks: dict[int, _Block] = {}

    def read(self, event: Event) -> list[Piece]:
        """The pieces of one event."""
        if self.ended:
            return []
        value = load(event.data)
        kind, index = value.get("type"), value.get("index") or 0
        if kind == "message_start":
            self._message(value.get("message") or {})
        elif kind == "content_block_start":
            self._start(index, value.get("content_block") or {})
        elif kind == "content_block_delta":
            self._delta(index, value.get("delta") or {})
        elif kind == "content_block_stop":
            self._stop(index)
        elif kind == "message_delta":
            self._message({**(value.get("delta") or {}), "usage": value.get("usage")})
        elif kind == "message_stop":
            self.ended = True
            return self.close()
        elif kind == "error" or value.get("error"):
            raise ModelFault(read_fault(value))
        return self._line.take()

    def whole(self, body: Mapping[str, Any]) -> list[Piece]:
        """The pieces of a message object."""
        if body.get("type") == "error" or body.get("error"):
            raise ModelFault(read_fault(body))
        self._message(body)
        for index, block in enumerate(body["content"]):
            self._start(index, block)
            self._stop(index)
        self.ended = True
        return self.close()

    def close(self) -> list[Piece]:
        """What waited."""
        return self._line.close()

    def outcome(self) -> Outcome:
        """Stop reason and usage; a word nobody knows is no reason."""
        usage = self._usage
        cached, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
        details = usage.get("output_tokens_details") or {}
        total = Usage(
            count(usage.get("input_tokens")) + cached + written,
            count(usage.get("output_tokens")),
            cached,
            written,
            count(details.get("thinking_tokens") or details.get("reasoning_tokens")),
        )
        return Outcome(self._finish, total if usage else None, self._stop_text)

    def _message(self, given: Mapping[str, Any]) -> None:
        self.model = str(given.get("model") or self.model)
        if given.get("stop_reason"):
            self._finish = _FINISH.get(str(given["stop_reason"]))
            stop_text = given.get("stop_sequence")
            self._stop_text = stop_text if isinstance(stop_text, str) else None
        usage = given.get("usage")
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _start(self, index: int, block: Mapping[str, Any]) -> None:
        kind = str(block.get("type"))
        self._blocks[index] = _Block(kind, block.get("input"))
        if kind == "text":
            self._line.add(index, Piece("text", block.get("text") or ""))
        elif kind == "thinking":
            self._line.add(index, Piece("reasoning", block.get("thinking") or ""))
            self._seal(index, block.get("signature"))
        elif kind == "redacted_thinking":
            self._seal(index, block.get("data"))
        elif kind == "tool_use":
            self._line.add(index, Piece("call", "", str(block.get("name") or ""), str(block.get("id") or "")))
        else:
            self.untold = self.untold or f"block_{kind}"

    def _delta(self, index: int, delta: Mapping[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self._line.add(index, Piece("text", delta["text"]))
        elif kind == "thinking_delta":
            self._line.add(index, Piece("reasoning", delta["thinking"]))
        elif kind == "signature_delta":
            self._seal(index, delta.get("signature"))
        elif kind == "input_json_delta" and self._blocks[index].kind == "tool_use":
            self._blocks[index].argued |= bool(delta["partial_json"])
            self._line.add(index, Piece("arguments", delta["partial_json"]))

    def _seal(self, index: int, seal: Any) -> None:
        if isinstance(seal, str) and seal:
            self._line.add(index, Piece("reasoning", "", seal=carry("messages", seal)))

    def _stop(self, index: int) -> None:
        """The end of a block; an input that came with its begin and never again is its input."""
        block = self._blocks.get(index)
        if block is not None and block.kind == "tool_use" and not block.argued:
            given = block.input if isinstance(block.input, str) else dump(block.input or {}).decode()
            self._line.add(index, Piece("arguments", given))
        self._line.end(index)
