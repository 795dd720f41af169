"""OpenAI's responses, from a provider: events or a whole response to Pieces. Knows no other dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reef.inference.dialects.answer import FinishWord, Outcome, Piece, TokenLogprob, Usage, count
from reef.inference.dialects.chat.read import read_logprobs
from reef.inference.dialects.line import Line
from reef.inference.dialects.seals import carry
from reef.inference.faults import Fault, ModelFault, read_fault
from reef.inference.sse import Event, load

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_KINDS: Mapping[str, str] = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning",
    "response.reasoning_summary_text": "reasoning",
}
_REASONS: Mapping[str, FinishWord] = {"max_output_tokens": "length", "content_filter": "filter"}


@dataclass(slots=True)
class _Item:
    """What has been said of one output item; ``source`` is which of two forms of its reasoning came first."""

    said: dict[str, list[str]] = field(default_factory=dict)
    source: str = ""
    summary: int = 0
    begun: bool = False
    over: bool = False


class ResponsesReader:
    """Reads events in any cut: items by index, each text from whichever event has it, ends with the whole response."""

    def __init__(self) -> None:
        self.model = ""
        self.ended = False
        self.untold = ""
        self._finish: FinishWord | None = None
        self._usage: Usage | None = None
        self._line = Line()
        self._items: dict[int, _Item] = {}

    def read(self, event: Event) -> list[Piece]:
        """The pieces of one event."""
        if self.ended or event.data.strip() == b"[DONE]":
            return []
        value = load(event.data)
        kind, index = str(value.get("type") or ""), value.get("output_index") or 0
        base, _, step = kind.rpartition(".")
        if kind in _ENDS:
            self._response(value["response"])
            self.ended = True
            return self._line.close()
        if kind == "error" or (value.get("error") and not kind):
            raise ModelFault(read_fault({key: field for key, field in value.items() if key != "type"}))
        if isinstance(value.get("response"), dict):
            self.model = str(value["response"].get("model") or self.model)
        elif kind == "response.output_item.added":
            self._begin(index, value["item"])
        elif kind == "response.output_item.done":
            self._end(index, value["item"])
        elif base in _KINDS and step == "delta":
            self._delta(index, base, value)
        elif base == "response.function_call_arguments":
            self._arguments(index, value, step)
        return self._line.take()

    def whole(self, body: Mapping[str, Any]) -> list[Piece]:
        """The pieces of a response object."""
        self._response(body)
        self.ended = True
        return self._line.close()

    def close(self) -> list[Piece]:
        """What waited."""
        return self._line.close()

    def outcome(self) -> Outcome:
        """Status and usage; a status nobody knows is no reason."""
        return Outcome(self._finish, self._usage)

    def _response(self, response: Mapping[str, Any]) -> None:
        """The closing object: status, usage, and whatever no event has told."""
        self.model = str(response.get("model") or self.model)
        status = response.get("status")
        if response.get("error") or status == "failed":
            fault = read_fault(response.get("error") or {})
            raise ModelFault(Fault(fault.message, fault.kind or fault.code or "", fault.code, fault.param))
        for index, item in enumerate(response["output"] or ()):
            if not self._item(index).over:
                self._end(index, item)
        details = response.get("incomplete_details") or {}
        self._finish = "stop" if status == "completed" else _REASONS.get(str(details.get("reason")))
        if isinstance(response.get("usage"), dict):
            self._usage = _usage(response["usage"])

    def _item(self, index: int) -> _Item:
        return self._items.setdefault(index, _Item())

    def _begin(self, index: int, item: Mapping[str, Any]) -> None:
        kind, state = item.get("type"), self._item(index)
        if kind == "function_call" and not state.begun:
            state.begun = True
            call = Piece("call", "", str(item.get("name") or ""), str(item.get("call_id") or item.get("id") or ""))
            self._line.add(index, call)
        elif kind in ("message", "reasoning"):
            self._line.begin(index)
        elif kind != "function_call":
            self.untold = self.untold or f"item_{kind}"

    def _delta(self, index: int, source: str, value: Mapping[str, Any]) -> None:
        state, kind, text = self._item(index), _KINDS[source], value["delta"]
        if kind == "reasoning":
            state.source = state.source or source
            if state.source != source:  # the same thoughts again, in the other form
                return
            part = value.get("summary_index") or 0
            text, state.summary = ("\n\n" if part > state.summary else "") + text, part
        self._say(index, kind, text, read_logprobs(value.get("logprobs")))

    def _say(self, index: int, kind: str, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        self._item(index).said.setdefault(kind, []).append(text)
        if text or logprobs:
            self._line.add(index, Piece(kind, text, logprobs=logprobs))  # type: ignore[arg-type]

    def _arguments(self, index: int, value: Mapping[str, Any], step: str) -> None:
        if step == "delta":
            self._say(index, "arguments", value["delta"])
        else:
            self._rest(index, "arguments", value.get("arguments"))

    def _rest(self, index: int, kind: str, whole: Any) -> None:
        """What a closing event has of a text beyond what was streamed."""
        said = "".join(self._item(index).said.get(kind, ()))
        if isinstance(whole, str) and whole.startswith(said) and whole != said:
            self._say(index, kind, whole[len(said) :])

    def _end(self, index: int, item: Mapping[str, Any]) -> None:
        """The end of an item, which holds all of it once more."""
        self._begin(index, item)
        state = self._item(index)
        state.over = True
        if item.get("type") == "function_call":
            self._rest(index, "arguments", item.get("arguments"))
        elif item.get("type") == "message":
            for kind, key in (("text", "text"), ("refusal", "refusal")):
                parts = [part for part in item.get("content") or () if part.get(key)]
                if not state.said.get(kind):
                    self._tell_parts(index, kind, key, parts)
                self._rest(index, kind, "".join(part[key] for part in parts))
        elif item.get("type") == "reasoning":
            told = item.get("content") or item.get("summary") or ()
            if not state.source:
                self._rest(index, "reasoning", "\n\n".join(part.get("text") or "" for part in told))
            if item.get("encrypted_content"):
                seal = carry("responses", str(item["encrypted_content"]))
                self._line.add(index, Piece("reasoning", "", seal=seal))
        self._line.end(index)

    def _tell_parts(self, index: int, kind: str, key: str, parts: list[Mapping[str, Any]]) -> None:
        for part in parts:
            self._say(index, kind, part[key], read_logprobs(part.get("logprobs")))


def _usage(given: Mapping[str, Any]) -> Usage:
    inner, outer = given.get("input_tokens_details") or {}, given.get("output_tokens_details") or {}
    return Usage(
        count(given.get("input_tokens")),
        count(given.get("output_tokens")),
        count(inner.get("cached_tokens")),
        count(inner.get("cache_write_tokens")),
        count(outer.get("reasoning_tokens")),
    )
