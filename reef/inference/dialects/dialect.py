"""What a dialect can do. Knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reef.inference.dialects.answer import AnswerReader, Head, Outcome, Piece, StreamEncoder, TokenLogprob
from reef.inference.dialects.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire format: requests in and out, answers in and out."""

    parse: Callable[[Mapping[str, Any]], Prompt]
    """A client's request body as a Prompt."""

    ask: Callable[[Prompt, str, bool], dict[str, Any]]
    """A Prompt as a request body for a provider: prompt, model, whether to stream."""

    plain: Callable[[Head, Sequence[Piece], Outcome, Sequence[TokenLogprob]], dict[str, Any]]
    """An answer as the object a client reads."""

    stream: Callable[[Head], StreamEncoder]
    """An answer as the events a client reads."""

    reader: Callable[[], AnswerReader]
    """A provider's answer as Pieces."""
