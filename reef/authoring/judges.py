"""Runs a derived processor's judgments when it is told to, and in the thread that tells it. Used by authoring.stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from reef.train.processors.derived import DerivedProcessor, Item


class Judges:
    """Judgments one at a time, when an event says so; the judge is asked once for each item."""

    def __init__(self, verdicts: dict[str, Any]) -> None:
        self._verdicts = verdicts
        self._waiting: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def take(self, processor: DerivedProcessor) -> None:
        """Stand in for the processor's private worker, and remember what its judge says of the same item."""
        asked, known = processor.judge, self._verdicts

        async def judge(item: Item) -> Any:
            key = f"{item.key}/{','.join(item.record_ids)}"
            if key not in known:
                try:
                    known[key] = await asked(item)
                except Exception as error:
                    known[key] = error
            if isinstance(known[key], Exception):
                raise known[key]
            return known[key]

        processor.judge = judge  # type: ignore[method-assign]
        processor._worker = self  # type: ignore[assignment]

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Keep ``work`` until its turn."""
        self._waiting.append(work)

    def end(self, number: int) -> None:
        """The ``number``-th of those that run comes to its end."""
        if self._waiting:
            asyncio.run(self._waiting.pop(number % len(self._waiting))())

    def end_all(self) -> None:
        """All of them do."""
        while self._waiting:
            self.end(0)

    def close(self) -> None:
        """Nothing to end."""
