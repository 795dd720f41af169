"""OpenAI's chat completions, from a provider: chunks or a whole object to Pieces. Knows no other dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reef.inference.dialects.answer import FinishWord, Outcome, Piece, TokenLogprob, Usage, count
from reef.inference.dialects.chat.ask import REASONING_FIELDS
from reef.inference.dialects.line import Line
from reef.inference.dialects.seals import carry
from reef.inference.faults import ModelFault, read_fault
from reef.inference.sse import Event, dump, load

_FINISH: Mapping[str, FinishWord] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "calls",
    "function_call": "calls",
    "content_filter": "filter",
}


@dataclass(slots=True)
class _Call:
    key: int
    index: Any
    call_id: str = ""
    given_id: str = ""
    name: str = ""
    begun: bool = False
    held: list[str] = field(default_factory=list)


class ChatReader:
    """Reads chunks in any cut: tool calls by index, an empty list of them is none, ends with ``[DONE]`` or a finish reason."""

    def __init__(self) -> None:
        self.model = ""
        self.ended = False
        self.untold = ""
        self._finish: FinishWord | None = None
        self._reasoned = False
        self._usage: Usage | None = None
        self._line = Line()
        self._calls: list[_Call] = []
        self._open: tuple[str, int] | None = None
        self._reasoning_field = REASONING_FIELDS[0]
        self._parts = 0

    def read(self, event: Event) -> list[Piece]:
        """The pieces of one chunk."""
        if self.ended:
            return []
        if event.data.strip() == b"[DONE]":
            self.ended = True
            return self._rest()
        self._chunk(load(event.data))
        return self._line.take()

    def whole(self, body: Mapping[str, Any]) -> list[Piece]:
        """The pieces of a chat.completion object."""
        self._chunk(body)
        self.ended = bool(body["choices"])
        return self._rest()

    def close(self) -> list[Piece]:
        """What waited; a finish reason is an end too, where ``[DONE]`` did not come."""
        self.ended = self.ended or self._reasoned
        return self._rest()

    def outcome(self) -> Outcome:
        """Finish reason and usage; a word nobody knows is no reason."""
        return Outcome(self._finish, self._usage)

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            raise ModelFault(read_fault(chunk))
        self.model = str(chunk.get("model") or self.model)
        if isinstance(chunk.get("usage"), dict):
            self._usage = _usage(chunk["usage"])
        for choice in chunk.get("choices") or ():
            if (choice.get("index") or 0) != 0:  # one answer was asked for
                continue
            delta, logprobs = choice.get("delta"), _logprobs(choice.get("logprobs"))
            self._delta(delta or choice.get("message") or {}, logprobs, whole=not delta)
            if choice.get("finish_reason"):
                self._reasoned = True
                self._finish = _FINISH.get(str(choice["finish_reason"]))

    def _delta(self, delta: Mapping[str, Any], logprobs: tuple[TokenLogprob, ...], whole: bool) -> None:
        name = next((one for one in REASONING_FIELDS if isinstance(delta.get(one), str) and delta[one]), None)
        if name is not None:
            self._say(Piece("reasoning", delta[name]))
            self._reasoning_field = name
        for kind, text in self._texts(delta.get("content")):
            self._say(Piece(kind, text, logprobs=logprobs))  # type: ignore[arg-type]
            logprobs = ()
        if delta.get("refusal"):
            self._say(Piece("refusal", delta["refusal"], logprobs=logprobs))
        for position, given in enumerate(delta.get("tool_calls") or ()):
            self._call(given, position if whole else None)

    def _texts(self, content: Any) -> list[tuple[str, str]]:
        """Content as kinds and texts; some servers send a list of parts."""
        if isinstance(content, str) or content is None:
            return [("text", content or "")]
        found = []
        for part in content:
            if part.get("type") == "thinking":
                found.append(("reasoning", "".join(one.get("text") or "" for one in part["thinking"])))
            elif part.get("type") == "text":
                found.append(("text", part["text"]))
            else:
                self.untold = self.untold or f"part_{part.get('type')}"
        return found

    def _say(self, piece: Piece) -> None:
        """Words go on with the part that is open, or begin another."""
        if not piece.text and not piece.logprobs:
            return
        if self._open is None or self._open[0] != piece.kind:
            self._end_words()
            self._open = piece.kind, self._parts
            self._parts += 1
        self._line.add(self._open, piece)

    def _end_words(self) -> None:
        """The end of a part of words; thoughts under another name than the usual are to go back under it."""
        if self._open is None:
            return
        if self._open[0] == "reasoning" and self._reasoning_field != REASONING_FIELDS[0]:
            self._line.add(self._open, Piece("reasoning", "", seal=carry("chat", self._reasoning_field)))
        self._line.end(self._open)
        self._open = None

    def _call(self, given: Mapping[str, Any], position: int | None) -> None:
        index, call_id = given.get("index", position), given.get("id") or ""
        function = given.get("function") or {}
        call = self._find(index, call_id)
        if call is None:
            self._end_words()
            call = _Call(len(self._calls), index)
            self._calls.append(call)
            self._line.begin(call.key)  # its place in the order, though its name may come later
        if call_id and not call.given_id:  # some servers give several calls one id: the first keeps it
            call.call_id = "" if any(one.given_id == call_id for one in self._calls) else call_id
            call.given_id = call_id
        call.name = call.name or function.get("name") or ""
        text = function.get("arguments") or ""
        call.held.append(text if isinstance(text, str) else dump(text).decode())
        if call.name:
            self._tell(call)

    def _find(self, index: Any, call_id: str) -> _Call | None:
        """The call a piece belongs to: by id, else by index; a new id under a used index is another call."""
        found: _Call | None = None
        for call in self._calls:
            if call_id and call.given_id == call_id and (index is None or call.index in (None, index)):
                return call
            if index is not None and call.index == index:
                found = call
        if found is None and index is None and not call_id and self._calls:
            return self._calls[-1]
        return None if found is not None and call_id and found.given_id not in ("", call_id) else found

    def _tell(self, call: _Call) -> None:
        text = "".join(call.held)
        call.held = []
        if not call.begun:
            call.begun = True
            self._line.add(call.key, Piece("call", text, call.name, call.call_id))
        elif text:
            self._line.add(call.key, Piece("arguments", text))

    def _rest(self) -> list[Piece]:
        self._end_words()
        for call in self._calls:
            if not call.begun:  # it never got a name
                self._tell(call)
        return self._line.close()


def _usage(given: Mapping[str, Any]) -> Usage:
    inner, outer = given.get("prompt_tokens_details") or {}, given.get("completion_tokens_details") or {}
    return Usage(
        count(given.get("prompt_tokens")),
        count(given.get("completion_tokens")),
        count(inner.get("cached_tokens") or given.get("prompt_cache_hit_tokens")),
        count(inner.get("cache_write_tokens")),
        count(outer.get("reasoning_tokens")),
    )


def _logprobs(given: Any) -> tuple[TokenLogprob, ...]:
    return read_logprobs(given.get("content") if isinstance(given, dict) else None)


def read_logprobs(given: Sequence[Mapping[str, Any]] | None) -> tuple[TokenLogprob, ...]:
    """Log-probs as OpenAI's dialects write them; null for one that is not finite."""
    return tuple(
        TokenLogprob(
            str(one.get("token") or ""),
            tuple(one.get("bytes") or str(one.get("token") or "").encode("utf-8", "replace")),
            float("-inf") if one.get("logprob") is None else float(one["logprob"]),
            read_logprobs(one.get("top_logprobs")),
        )
        for one in given or ()
    )
