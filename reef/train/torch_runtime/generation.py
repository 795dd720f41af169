"""One request to the engine while it waits, runs and ends, and the events it gives. Knows nothing of slots or HTTP.

Shapes of the event are SGLang's ``/generate``; text, ids and log-probs of an event are what is new since the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reef.train.torch_runtime.sampling import Picked, Sampling
from reef.train.torch_runtime.text import TextStream

Event = dict[str, Any]
Sink = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What a client asked for; ``logprob_start`` below zero means no prompt log-probs."""

    rid: str
    prompt: tuple[int, ...]
    sampling: Sampling
    adapter: str | None = None
    logprobs: bool = False
    logprob_start: int = -1
    top_logprobs: int = 0
    stream: bool = False


@dataclass(eq=False)
class Running:
    """A request on its way. ``cached`` counts the tokens whose keys the slot holds, ``shared``
    those of them that were copied from another request, ``mixed`` says that some are of older weights; ``version`` names its
    weights."""

    request: GenerateRequest
    text: TextStream
    sink: Sink
    version: str
    stop_ids: frozenset[int]
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    shared: int = 0
    mixed: bool = False
    cancelled: bool = False
    finish: Mapping[str, Any] | None = None
    spans: list[list[Any]] = field(default_factory=list)
    prompt_logprobs: list[list[Any]] = field(default_factory=list)
    retractions: int = 0
    began_at: float = field(default_factory=time.monotonic)
    _new_text: list[str] = field(default_factory=list)
    _new_ids: list[int] = field(default_factory=list)
    _new_logprobs: list[list[Any]] = field(default_factory=list)
    _new_tops: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = list(self.request.prompt)

    @property
    def produced(self) -> int:
        """Tokens generated so far."""
        return len(self.ids) - len(self.request.prompt)

    @property
    def todo(self) -> int:
        """Tokens whose keys are still to be computed before the next one can be picked."""
        return len(self.ids) - self.cached

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt log-probs are asked for and not yet there."""
        return 0 <= self.request.logprob_start < len(self.request.prompt) and not self.produced

    def waits_for(self, earlier: Running) -> bool:
        """Whether ``earlier`` is computing the keys of the same prompt right now: they are copied when it is done."""
        same = (earlier.request.adapter, earlier.request.prompt) == (self.request.adapter, self.request.prompt)
        return same and earlier.todo > 1 and not self.wants_prompt_logprobs and not self.produced

    def accept(self, picked: Picked) -> None:
        """Take the next token and decide whether the request has ended."""
        sampling = self.request.sampling
        at = self.produced
        self.ids.append(picked.token)
        if self.spans and self.spans[-1][0] == self.version:
            self.spans[-1][2] = at + 1
        else:
            self.spans.append([self.version, at, at + 1])
        self._new_ids.append(picked.token)
        if self.request.logprobs:
            self._new_logprobs.append([picked.logprob, picked.token, None])
            self._new_tops.append([[logprob, token, None] for logprob, token in picked.top])
        stops = sampling.stop_token_ids if sampling.ignore_eos else self.stop_ids | sampling.stop_token_ids
        if picked.token in stops:
            if sampling.no_stop_trim:
                self._new_text.append(self.text.push(picked.token)[0])
            self.end({"type": "stop", "matched": picked.token})
            return
        fresh, stop = self.text.push(picked.token)
        self._new_text.append(fresh)
        if stop is not None:
            self.finish = {"type": "stop", "matched": stop}
        elif self.produced >= sampling.max_new_tokens:
            self.end({"type": "length", "length": self.produced})

    def end(self, finish: Mapping[str, Any]) -> None:
        """End the request and release the text that was held back."""
        self.finish = finish
        self._new_text.append(self.text.finish())

    def forget_keys(self) -> None:
        """The weights changed or the slot was given away: all keys are to be computed again."""
        self.cached = self.shared = 0
        self.mixed = False
        self.retractions += 1

    def event(self) -> Event:
        """What is new since the last event (everything, when nothing was sent before)."""
        meta: dict[str, Any] = {
            "id": self.request.rid,
            "finish_reason": self.finish,
            "prompt_tokens": len(self.request.prompt),
            "completion_tokens": self.produced,
            "cached_tokens": self.shared,
            "weight_version": self.version,
        }
        if self.request.logprobs:
            meta["output_token_logprobs"] = self._new_logprobs
            if self.request.top_logprobs:
                meta["output_top_logprobs"] = self._new_tops
        if self.prompt_logprobs:
            meta["input_token_logprobs"] = self.prompt_logprobs
        if self.finish is not None:
            meta["weight_versions"] = [{"version": v, "start": start, "end": end} for v, start, end in self.spans]
            meta["num_retractions"] = self.retractions
            meta["e2e_latency"] = time.monotonic() - self.began_at
        event = {"text": "".join(self._new_text), "output_ids": self._new_ids, "meta_info": meta}
        self._new_text, self._new_ids, self._new_logprobs, self._new_tops = [], [], [], []
        return event
