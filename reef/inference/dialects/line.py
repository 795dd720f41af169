"""Puts an answer whose parts may arrive interleaved into one order: each part from its begin to its end. Knows no dialect."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field

from reef.errors import UpstreamError
from reef.inference.dialects.answer import Piece


@dataclass(slots=True)
class _Part:
    key: Hashable
    waiting: list[Piece] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    ended: bool = False

    def is_over(self) -> bool:
        """Ended by its protocol, or a call whose arguments are whole JSON, after which nothing can follow."""
        if self.ended or not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return self.ended
        try:
            self.ended = isinstance(json.loads("".join(self.arguments)), dict)
        except ValueError:
            return False
        return self.ended


class Line:
    """Parts in the order they began. The first is passed on as it comes; the others wait until it is over."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._over: set[Hashable] = set()

    def begin(self, key: Hashable) -> _Part:
        """Part ``key``, which has its place in the order from the first mention on."""
        part = next((one for one in self._parts if one.key == key), None)
        if part is None:
            part = _Part(key)
            self._parts.append(part)
        return part

    def add(self, key: Hashable, piece: Piece) -> None:
        """The next piece of part ``key``. UpstreamError for a part that is over."""
        if key in self._over:
            if piece.text.strip():
                raise UpstreamError(
                    "the model's server went on with a part of its answer that it had finished", code="part_goes_on"
                )
            return
        part = self.begin(key)
        part.waiting.append(piece)
        if piece.kind in ("call", "arguments") and piece.text:
            part.arguments.append(piece.text)

    def end(self, key: Hashable) -> None:
        """Nothing more comes for part ``key``."""
        for part in self._parts:
            part.ended = part.ended or part.key == key

    def take(self) -> list[Piece]:
        """What can be said now."""
        said: list[Piece] = []
        while self._parts:
            first = self._parts[0]
            said += first.waiting
            first.waiting = []
            if not (first.ended or (len(self._parts) > 1 and first.is_over())):
                break
            self._over.add(first.key)
            del self._parts[0]
        return said

    def close(self) -> list[Piece]:
        """Everything that is left, in order."""
        said = [piece for part in self._parts for piece in part.waiting]
        self._parts = []
        return said
