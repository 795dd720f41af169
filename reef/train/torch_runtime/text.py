"""Turns token ids into text as they come: whole characters only, stop texts held back and found.

Knows nothing of torch or HTTP. Called by the engine, one object for each running request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BROKEN = "\ufffd"


class TextStream:
    """The text of one reply. ``tokenizer`` is a ``tokenizers.Tokenizer``."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], *, keep_stop: bool, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._window = 0
        self._read = 0
        self._held = ""

    def push(self, token: int) -> tuple[str, str | None]:
        """Text that became certain with ``token``, and the stop text that was found, if any."""
        self._ids.append(token)
        before = self._decode(self._ids[self._window : self._read])
        after = self._decode(self._ids[self._window :])
        if len(after) <= len(before) or after.endswith(_BROKEN):
            return "", None
        self._window, self._read = self._read, len(self._ids)
        return self._release(after[len(before) :])

    def finish(self) -> str:
        """What was held back when the reply ends without a stop text, unfinished characters included."""
        before = self._decode(self._ids[self._window : self._read])
        after = self._decode(self._ids[self._window :])
        rest = self._held + after[len(before) :]
        self._held = ""
        self._read = len(self._ids)
        self._window = self._read
        return rest

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=self._skip_special))

    def _release(self, fresh: str) -> tuple[str, str | None]:
        text = self._held + fresh
        self._held = ""
        if not self._stops:
            return text, None
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            at, stop = min(found)
            return text[: at + len(stop)] if self._keep_stop else text[:at], stop
        hold = max(_overlap(text, stop) for stop in self._stops)
        if hold:
            self._held = text[-hold:]
            text = text[:-hold]
        return text, None


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` could be the beginning of ``stop``."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
