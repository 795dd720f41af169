"""The decode loop: continuous batching of many requests over one model, one forward pass at a time.

Knows nothing of HTTP. ``Engine`` owns the model and one thread; every other thread talks to it through ``submit``,
``abort`` and ``at_boundary``, which act between two passes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from torch import Tensor

from reef.errors import BadRequest
from reef.train.torch_runtime.adapters import AdapterPool
from reef.train.torch_runtime.attention import Piece, SlotCache, SlotLayout
from reef.train.torch_runtime.generation import Event, GenerateRequest, Running, Sink
from reef.train.torch_runtime.loading import forward_packed
from reef.train.torch_runtime.passes import common_prefix, kept_positions, score_prompt
from reef.train.torch_runtime.sampling import pick
from reef.train.torch_runtime.text import TextStream

log = logging.getLogger("reef.engine")

PREFILL_ALONE_TOKENS = 512
PREFILL_BESIDE_TOKENS = 64
SHARE_FROM_TOKENS = 8
KEEP_CAPACITY_TOKENS = 2048
RATE_WINDOW_S = 10.0

Result = TypeVar("Result")
Deliver = Callable[[list[tuple[Sink, Event]]], None]


class Engine:
    """Runs requests on ``model`` in its own thread; ``deliver`` gets the events of each pass, in that thread.

    ``failed`` is called when a pass raises: no further pass is made and the owner should start a new process.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        version: str,
        context: int,
        stop_ids: frozenset[int],
        slots: int,
        deliver: Deliver,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model
        self.version = version
        self.context = context
        self.slots = slots
        self.pool = AdapterPool(model)
        self.paused = False
        self.generated_tokens = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._deliver = deliver
        self._failed = failed
        self._cache = SlotCache(slots)
        self._rows: list[Running] = []
        self._waiting: deque[Running] = deque()
        self._leaving: set[str] = set()
        self._acts: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._device = next(model.parameters()).device
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the present pass; running requests get no further event."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Queue a request; raises BadRequest when it cannot be run at all."""
        if not request.prompt:
            raise BadRequest("input_ids is empty", field="input_ids")
        vocab = self.model.config.get_text_config().vocab_size
        if not all(0 <= token < vocab for token in request.prompt):
            raise BadRequest(f"input_ids holds an id outside 0..{vocab - 1}", field="input_ids")
        wanted = len(request.prompt) + request.sampling.max_new_tokens
        if wanted > self.context:
            raise BadRequest(
                f"Requested token count exceeds the model's maximum context length of {self.context} tokens. "
                f"You requested a total of {wanted} tokens: {len(request.prompt)} tokens from the input messages "
                f"and {request.sampling.max_new_tokens} tokens for the completion.",
                code="context_length_exceeded",
                field="input_ids",
            )
        text = TextStream(
            self._tokenizer,
            request.sampling.stop,
            keep_stop=request.sampling.no_stop_trim,
            skip_special=request.sampling.skip_special_tokens,
        )

        def act() -> None:
            row = Running(request, text, sink, request.adapter or self.version, self._stop_ids)
            if request.adapter is not None and request.adapter not in self.pool.ranks:
                row.end({"type": "abort", "message": f"adapter {request.adapter} was unloaded"})
                self._deliver([(sink, row.event())])
            else:
                self._waiting.append(row)

        with self._wake:
            if request.adapter is not None and (
                request.adapter not in self.pool.ranks or request.adapter in self._leaving
            ):
                raise BadRequest(f"no adapter {request.adapter!r} is loaded", field="lora_path")
            self._acts.append(act)
            self._wake.notify()

    def abort(self, rid: str | None) -> None:
        """End the request ``rid`` (all of them when None) at the next boundary, with what it has so far."""

        def act() -> None:
            for row in [*self._rows, *self._waiting]:
                if rid is None or row.request.rid == rid:
                    row.cancelled = True

        self._push(act)

    def at_boundary(self, act: Callable[[], Result]) -> Future[Result]:
        """Run ``act`` in the engine's thread between two passes; its result or error comes with the future."""
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(act())
            except Exception as error:
                future.set_exception(error)

        self._push(run)
        return future

    def load(self) -> dict[str, float]:
        """How many requests run and wait, how many tokens the slots hold, and tokens per second of late."""
        rows = list(self._rows)
        since_s = time.monotonic() - RATE_WINDOW_S
        return {
            "num_running_reqs": len(rows),
            "num_waiting_reqs": len(self._waiting),
            "num_used_tokens": sum(row.cached for row in rows),
            "generated_tokens": self.generated_tokens,
            "tokens_per_s": sum(tokens for at_s, tokens in list(self._recent) if at_s >= since_s) / RATE_WINDOW_S,
        }

    # What follows acts in the engine's thread, inside ``at_boundary``.

    def pause(self, mode: str) -> None:
        """Stop passes: ``abort`` ends all requests, ``retract`` drops their keys, ``in_place`` keeps them."""
        self.paused = True
        if mode == "abort":
            for row in [*self._rows, *self._waiting]:
                row.cancelled = True
            self._drop_cancelled()
        elif mode == "retract":
            for row in self._rows:
                row.forget_keys()

    def resume(self) -> None:
        """Go on after ``pause``."""
        self.paused = False

    def forget_keys(self) -> None:
        """All running requests compute their keys again before they go on."""
        for row in self._rows:
            row.forget_keys()

    def set_version(self, version: str) -> None:
        """Tokens from now on belong to ``version``, for requests without an adapter."""
        self.version = version
        for row in [*self._rows, *self._waiting]:
            if row.request.adapter is None:
                row.version = version
                row.mixed = row.cached > 0

    def unload(self, name: str) -> None:
        """Remove an adapter, as soon as no request uses it."""
        if name in self.pool.ranks:
            self._leaving.add(name)
            self._remove_leaving()

    def keep(self, name: str) -> None:
        """An adapter that was to leave is wanted again."""
        self._leaving.discard(name)

    def adapters(self) -> list[str]:
        """Names of the adapters new requests may use."""
        return sorted(set(self.pool.ranks) - self._leaving)

    def _push(self, act: Callable[[], None]) -> None:
        with self._wake:
            self._acts.append(act)
            self._wake.notify()

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:  # the edge of the thread: whoever waits must be told
            log.exception("a pass failed")
            for row in [*self._rows, *self._waiting]:
                row.end({"type": "abort", "message": "the engine failed"})
                self._deliver([(row.sink, row.event())])
            self._failed()

    def _loop(self) -> None:
        with torch.inference_mode():
            while True:
                with self._wake:
                    while not (self._closed or self._acts or self._has_work()):
                        self._wake.wait()
                    if self._closed:
                        return
                    acts = list(self._acts)
                    self._acts.clear()
                for act in acts:
                    act()
                self._drop_cancelled()
                if self._has_work():
                    self._pass()

    def _has_work(self) -> bool:
        return not self.paused and bool(self._rows or self._waiting)

    def _drop_cancelled(self) -> None:
        events: list[tuple[Sink, Event]] = []
        for row in [*self._rows, *self._waiting]:
            if row.cancelled:
                row.end({"type": "abort", "message": "Aborted"})
                events.append((row.sink, row.event()))
        if events:
            self._waiting = deque(row for row in self._waiting if not row.cancelled)
            self._remove_ended()
            self._deliver(events)

    def _pass(self) -> None:
        """One forward pass: admit, compute, pick, deliver."""
        while self._waiting and len(self._rows) < self.slots:
            self._rows.append(self._waiting.popleft())
        self._share_prompts()
        single, longer = self._plan()
        pieces = [*single, *longer]
        rows = [self._rows[piece.slot] for piece in pieces]
        self._cache.reserve(max(p.past + p.count for p in pieces), [row.cached for row in self._rows])
        keep, spans = kept_positions(rows, pieces)
        logits = self._forward(rows, pieces, SlotLayout(self._cache, single, longer, self._device), keep)
        for row, piece in zip(rows, pieces, strict=True):
            row.cached += piece.count
        self._take(rows, pieces, logits, spans)

    def _share_prompts(self) -> None:
        """Copy keys from a row that began with the same tokens: several answers to one prompt compute it once."""
        ready = [(slot, row) for slot, row in enumerate(self._rows) if row.todo == 1 and not row.mixed]
        for slot, row in enumerate(self._rows):
            if row.cached or row.wants_prompt_logprobs:
                continue
            limit = len(row.ids) - 1
            found = [
                (common_prefix(row.ids, other.ids, min(other.cached, limit)), other_slot)
                for other_slot, other in ready
                if (other.request.adapter, other.version) == (row.request.adapter, row.version)
            ]
            common, source = max(found, default=(0, 0))
            if common >= SHARE_FROM_TOKENS:
                self._cache.reserve(common, [one.cached for one in self._rows])
                self._cache.move(source, slot, common)
                row.cached = row.shared = common

    def _plan(self) -> tuple[list[Piece], list[Piece]]:
        """Which tokens to compute now: one for each row that decodes, and a limited number for rows that begin."""
        single: list[Piece] = []
        longer: list[Piece] = []
        for slot, row in enumerate(self._rows):
            if row.todo == 1 and not row.wants_prompt_logprobs:
                single.append(Piece(slot, row.cached, len(single), 1))
        budget = PREFILL_BESIDE_TOKENS if single else PREFILL_ALONE_TOKENS
        start = len(single)
        for slot, row in enumerate(self._rows):
            if row.cached == 0 and any(row.waits_for(earlier) for earlier in self._rows[:slot]):
                continue
            if budget and (row.todo > 1 or row.wants_prompt_logprobs):
                count = min(budget, row.todo)
                longer.append(Piece(slot, row.cached, start, count))
                start += count
                budget -= count
        return single, longer

    def _forward(self, rows: Sequence[Running], pieces: Sequence[Piece], layout: SlotLayout, keep: list[int]) -> Tensor:
        ids: list[int] = []
        positions: list[int] = []
        adapters: list[str | None] = []
        for row, piece in zip(rows, pieces, strict=True):
            ids += row.ids[piece.past : piece.past + piece.count]
            positions += range(piece.past, piece.past + piece.count)
            adapters += [row.request.adapter] * piece.count
        self.pool.assign(adapters)
        # The type is named: a pass in the middle of long prompts keeps no position, and an empty list would be floats.
        as_tensor = [torch.tensor(values, dtype=torch.long, device=self._device) for values in (ids, positions, keep)]
        logits: Tensor = forward_packed(self.model, as_tensor[0], as_tensor[1], layout, as_tensor[2])
        return logits

    def _take(
        self, rows: Sequence[Running], pieces: Sequence[Piece], logits: Tensor, spans: list[tuple[int, int]]
    ) -> None:
        """Pick a token for every row whose keys are complete, and send what is new."""
        ready: list[tuple[Running, int]] = []
        for row, piece, (first, last) in zip(rows, pieces, spans, strict=True):
            if row.wants_prompt_logprobs:
                score_prompt(row, piece, logits[first:last])
            if row.todo == 0:
                ready.append((row, last - 1))
        if ready:
            chosen = logits if len(ready) == logits.shape[0] else logits[[at for _, at in ready]]
            picked = pick(
                chosen,
                [row.request.sampling for row, _ in ready],
                [len(row.ids) for row, _ in ready],
                [row.request.top_logprobs for row, _ in ready],
            )
            for (row, _), token in zip(ready, picked, strict=True):
                if token is None:
                    row.end({"type": "abort", "message": "the model gave non-finite logits"})
                    self._cache.clear(self._rows.index(row))
                else:
                    row.accept(token)
            self._count(len(ready))
        events = [(row.sink, row.event()) for row, _ in ready if row.finish is not None or row.request.stream]
        self._remove_ended()
        self._deliver(events)

    def _count(self, tokens: int) -> None:
        self.generated_tokens += tokens
        now_s = time.monotonic()
        self._recent.append((now_s, tokens))
        while self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()

    def _remove_ended(self) -> None:
        """Close the gaps of ended rows: the last row moves into the gap, so slots stay neighbours."""
        for slot in range(len(self._rows) - 1, -1, -1):
            if self._rows[slot].finish is None:
                continue
            last = self._rows.pop()
            if slot < len(self._rows):
                self._cache.move(len(self._rows), slot, last.cached)
                self._rows[slot] = last
        if not self._rows and self._cache.capacity > KEEP_CAPACITY_TOKENS:
            self._cache.release()
        self._remove_leaving()

    def _remove_leaving(self) -> None:
        used = {row.request.adapter for row in [*self._rows, *self._waiting]}
        for name in self._leaving - used:
            self.pool.remove(name)
            self._leaving.discard(name)
