"""What an answer is made of, in no dialect: Pieces in their order and an Outcome.

Knows no dialect and no engine. Made by parsers and by the dialects' readers, rendered by their writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from reef.inference.dialects.prompt import Prompt
from reef.inference.sse import Event


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token with its log-prob and the best alternatives."""

    token: str
    token_bytes: tuple[int, ...]
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer, or the next bit of the part before it.

    A ``call`` begins a tool call: ``name`` and ``call_id`` (empty: the writer makes one), ``text`` the arguments so far;
    ``arguments`` continue it. ``seal`` closes a reasoning: what its provider signed it with, ready for another dialect.
    """

    kind: Literal["text", "reasoning", "refusal", "call", "arguments"]
    text: str
    name: str = ""
    call_id: str = ""
    seal: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens: all of the prompt, those of it read from and written to a cache, all of the answer, those of it thought."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    reasoning_tokens: int = 0


FinishWord = Literal["stop", "length", "calls", "filter", "pause"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended. ``finish`` None: nobody said, and nobody may guess. ``usage`` None: not counted.

    ``stop_text`` is the stop string that was met, if any.
    """

    finish: FinishWord | None
    usage: Usage | None = None
    stop_text: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of an answer before its first token."""

    call_id: str
    model: str
    created_s: int
    prompt: Prompt
    input_tokens: int = 0


class StreamEncoder(Protocol):
    """Renders one streamed answer; every method returns bytes to send, possibly none."""

    def begin(self) -> bytes:
        """The events before the first token."""

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """The events for new pieces; ``logprobs`` are those of tokens no piece carries."""

    def end(self, outcome: Outcome) -> bytes:
        """The closing events with finish reason, usage and end mark."""


class AnswerReader(Protocol):
    """Reads one answer of a provider; ModelFault when it says that it failed, TypeError and the like when it is odd."""

    model: str
    ended: bool
    untold: str

    def read(self, event: Event) -> list[Piece]:
        """The pieces an event of a stream brings."""

    def whole(self, body: Mapping[str, Any]) -> list[Piece]:
        """The pieces of a plain answer."""

    def close(self) -> list[Piece]:
        """What was held back, now that nothing more comes; ``ended`` tells whether the answer is whole."""

    def outcome(self) -> Outcome:
        """How it ended, as far as it was said."""


def gather(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of the same kind as one piece, empty ones dropped; each call with all its arguments."""
    joined: list[tuple[Piece, list[str], list[TokenLogprob]]] = []
    for piece in pieces:
        if not (piece.text or piece.seal or piece.kind == "call"):
            continue
        if joined and _goes_on(joined[-1][0], piece):
            first, texts, probs = joined[-1]
            joined[-1] = replace(first, seal=piece.seal), texts, probs
            texts.append(piece.text)
            probs.extend(piece.logprobs)
        else:
            joined.append((piece, [piece.text], list(piece.logprobs)))
    return [replace(first, text="".join(texts), logprobs=tuple(probs)) for first, texts, probs in joined]


def _goes_on(last: Piece, piece: Piece) -> bool:
    if piece.kind == "arguments":
        return last.kind == "call"
    return piece.kind == last.kind != "call" and not last.seal


def count(value: Any) -> int:
    """A number of tokens as a provider gives it; anything else counts as none."""
    return value if type(value) is int and value > 0 else 0
