"""A provider's answer in another dialect than the client's, plain or streamed, turned into the client's as it comes.

Knows nothing of how the call was sent or of records. Called by translation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from reef.core.records_types import RecordState
from reef.errors import ReefError, UpstreamError
from reef.inference.assembly import assemble, unpack
from reef.inference.base import Answer, Call, Finish
from reef.inference.dialects import DIALECTS
from reef.inference.dialects.answer import AnswerReader, Head, Piece, StreamEncoder, Usage
from reef.inference.dialects.prompt import Prompt
from reef.inference.faults import ModelFault, fault_body, fault_event, read_fault
from reef.inference.sse import Event, EventCutter, dump, load

_JSON = ("content-type", "application/json")
_EVENTS = ("content-type", "text/event-stream; charset=utf-8")
_ENDS = {
    "messages": ("message_stop",),
    "responses": ("response.completed", "response.incomplete", "response.failed"),
}
_LINGER_S = 1.0
"""How long a whole answer waits for its connection to end."""
_MUCH_BYTES = 2**16
"""What is longer may unpack to very much, and is read off the event loop."""
_ODD = (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError)
"""What reading an answer of any shape can raise where the shape is not the dialect's."""


@dataclass(slots=True)
class WholeAnswer:
    """An Answer that is here already, and judged."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    judged: Finish
    release_id: str | None = None

    async def slices(self) -> AsyncIterator[bytes]:
        """The body, at once."""
        yield self.body

    def finish(self, sent: bytes, reason: str | None = None) -> Finish:
        """What was judged when it was read."""
        return self.judged

    async def aclose(self) -> None:
        """Nothing is open."""


async def read_whole(answer: Answer, dialect: str | None = None) -> WholeAnswer:
    """An answer read to its end, its bytes as they are; behind the last event of a stream in ``dialect`` nothing is waited
    for."""
    parts: list[bytes] = []
    cutter = EventCutter() if dialect is not None and is_events(answer.headers) else None
    clock = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as limit:
            async for chunk in answer.slices():
                parts.append(chunk)
                if cutter is None or limit.when() is not None:
                    continue
                if any(_is_end(dialect, event) for event in [*cutter.feed(chunk), *cutter.pending()]):
                    limit.reschedule(clock.time() + _LINGER_S)
    except TimeoutError:  # the linger's
        pass
    except ReefError:
        if limit.when() is None:  # what happens behind the end is no matter
            raise
    finally:
        await answer.aclose()
    body = b"".join(parts)
    judged = await asyncio.to_thread(answer.finish, body) if len(body) > _MUCH_BYTES else answer.finish(body)
    return WholeAnswer(answer.status, answer.headers, body, judged)


async def translate_answer(call: Call, prompt: Prompt, target: str, answer: Answer) -> Answer:
    """The answer of a provider of dialect ``target`` in the dialect of the call; UpstreamError when it cannot be read."""
    headers = _headers(call.route, answer.headers)
    if 300 <= answer.status < 400:
        await answer.aclose()
        place = dict(answer.headers).get("location")
        raise UpstreamError(f"the model's server redirects to {place}", hint="set reef.upstream_url to it")
    head = Head(call.call_id, str(call.body.get("model") or ""), int(time.time()), prompt)
    if call.stream and answer.status < 300:
        return TranslatedStream(call.route, head, target, answer, [*headers, _EVENTS])
    whole = await read_whole(answer, target)
    raw = await asyncio.to_thread(unpacked, whole) if len(whole.body) > _MUCH_BYTES else unpacked(whole)
    if answer.status >= 300:
        body = dump(fault_body(call.route, _fault(raw, answer.status), answer.status))
        failed = Finish(RecordState.FAILED, f"upstream_{answer.status}")
        return WholeAnswer(answer.status, [*headers, _JSON], body, failed)
    reader = DIALECTS[target].reader()
    pieces = read_pieces(reader, raw, dict(answer.headers).get("content-type", ""))
    head = replace(head, model=reader.model or head.model)
    body = dump(DIALECTS[call.route].plain(head, pieces, reader.outcome(), ()))
    return WholeAnswer(200, [*headers, _JSON], body, _judged(call.route, body, reader))


def is_events(headers: list[tuple[str, str]]) -> bool:
    """Whether the body is events that can be read as they come."""
    found = dict(headers)
    coding = found.get("content-encoding", "identity")
    return found.get("content-type", "").startswith("text/event-stream") and coding == "identity"


def _is_end(dialect: str | None, event: Event) -> bool:
    """Whether a provider of ``dialect`` says no more after ``event``, whose data may be a half yet."""
    if dialect not in _ENDS:
        return event.data.strip() == b"[DONE]"
    if not any(word.encode() in event.data for word in _ENDS[dialect]):
        return False
    try:
        said = load(event.data)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("type") in _ENDS[dialect]


def read_pieces(reader: AnswerReader, raw: bytes, content_type: str) -> list[Piece]:
    """All pieces of an answer that is here as a whole; UpstreamError when it is none, or says that it failed."""
    try:
        if content_type.startswith("text/event-stream") or raw[:64].lstrip()[:5] in (b"data:", b"event"):
            cutter = EventCutter()
            pieces = [piece for event in [*cutter.feed(raw), *cutter.close()] for piece in reader.read(event)]
            pieces += reader.close()
        else:
            pieces = reader.whole(load(raw))
    except _ODD as odd:
        raise _unreadable(odd) from odd
    if not reader.ended:
        raise UpstreamError("the model's server ended its answer before its end", code="no_end_mark")
    return pieces


class TranslatedStream:
    """A streamed Answer. Asked for slices again, it goes on where it was."""

    def __init__(self, route: str, head: Head, target: str, source: Answer, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers = 200, headers
        self.release_id: str | None = None
        self._route, self._head, self._target, self._source = route, head, target, source
        self._reader: AnswerReader = DIALECTS[target].reader()
        self._encoder: StreamEncoder | None = None
        self._ended = self._failed = False
        self._broken: str | None = None
        self._iterator: AsyncIterator[bytes] | None = None

    def slices(self) -> AsyncIterator[bytes]:
        """Event bytes; UpstreamError or UpstreamTimeout when the source breaks off or cannot be read."""
        if self._iterator is None:
            self._iterator = self._render()
        return self._iterator

    async def _render(self) -> AsyncIterator[bytes]:
        """What is said of a failure is the provider's own error event, or the exception; an end was never sent before."""
        try:
            async for sent in self._translate():
                if sent:
                    yield sent
        except ReefError as error:
            if self._ended:  # whatever happens behind the end mark
                return
            if left := self._say(self._reader.close()):
                yield left
            if not isinstance(error, ModelFault):
                self._broken = "upstream_broke_off" if error.code == UpstreamError.code else error.code
                raise
            self._failed = True
            yield fault_event(self._route, error.fault)

    async def _translate(self) -> AsyncIterator[bytes]:
        """The source to its end, slice by slice; an answer that is no readable stream as a whole."""
        if not is_events(self._source.headers):
            whole = await read_whole(self._source)
            kind = dict(whole.headers).get("content-type", "")
            raw = await asyncio.to_thread(unpacked, whole) if len(whole.body) > _MUCH_BYTES else unpacked(whole)
            yield self._say(read_pieces(self._reader, raw, kind))
            yield self._end()
            return
        cutter = EventCutter()
        async for chunk in self._source.slices():
            events = cutter.feed(chunk)
            if not self._ended:
                events += [event for event in cutter.pending() if _is_end(self._target, event)]
            async for sent in self._read(events):
                yield sent
        async for sent in self._read(cutter.close()):
            yield sent
        if not self._ended:
            yield self._say(self._reader.close())
            if self._reader.ended:
                yield self._end()

    async def _read(self, events: list[Event]) -> AsyncIterator[bytes]:
        """What the client gets for some events; those before a failure count, however the bytes were cut."""
        sent: list[bytes] = []
        fault: Exception | None = None
        for event in events if not self._ended else ():
            try:
                sent.append(self._say(self._reader.read(event)))
            except (ReefError, *_ODD) as error:
                fault = error
                break
            if self._reader.ended:
                sent.append(self._end())
                break
        if sent:
            yield b"".join(sent)
        if fault is not None:
            raise fault if isinstance(fault, ReefError) else _unreadable(fault) from fault

    def _say(self, pieces: list[Piece]) -> bytes:
        """The pieces as events; the first of them, or the model's name, begins the answer."""
        if self._encoder is None and not pieces and not self._reader.model:
            return b""
        begun = self._begin()
        assert self._encoder is not None
        return begun + self._encoder.add(pieces)

    def _begin(self) -> bytes:
        if self._encoder is not None:
            return b""
        self._head = replace(self._head, model=self._reader.model or self._head.model)
        self._encoder = DIALECTS[self._route].stream(self._head)
        return self._encoder.begin()

    def _end(self) -> bytes:
        self._ended = True
        begun = self._begin()
        assert self._encoder is not None
        return begun + self._encoder.end(self._reader.outcome())

    def finish(self, sent: bytes, reason: str | None = None) -> Finish:
        """Judge the bytes passed on; an answer that is whole counts as complete even when the reader left after it."""
        read = assemble(self._route, _EVENTS[1], sent)
        if read.complete and self._ended:
            return _judged(self._route, sent, self._reader)
        if self._failed:
            state, code = RecordState.FAILED, "upstream_error_event"
        elif reason is not None and self._broken is None:
            state, code = RecordState.ABORTED, reason
        else:
            state, code = RecordState.INCOMPLETE, self._broken or (read.flags[0] if read.flags else "no_end_mark")
        return Finish(state, code, None, _counted(self._reader.outcome().usage), read.model)

    async def aclose(self) -> None:
        """Give the connection back; one that is still sending is cut, which cancels the work upstream."""
        await self._source.aclose()


def _judged(route: str, body: bytes, reader: AnswerReader) -> Finish:
    """How a whole answer ended, judged from the bytes the client gets; what nobody said is not taken for an end."""
    read = assemble(route, "", body)
    outcome = reader.outcome()
    state, code = RecordState.COMPLETE, read.flags[0] if read.flags else "empty_answer" if read.empty else None
    if outcome.finish is None or (outcome.finish == "pause" and route != "messages"):  # which only messages can say
        state, code = RecordState.INCOMPLETE, "no_finish_reason"
    elif reader.untold:
        state, code = RecordState.INCOMPLETE, f"not_translated: the answer holds a part of type {reader.untold}"
    return Finish(state, code, read.finish_reason, _counted(outcome.usage), read.model)


def _counted(usage: Usage | None) -> dict[str, int]:
    """Tokens under the names of records; whatever the client was shown, they were counted."""
    if usage is None:
        return {}
    more = {
        "cached_tokens": usage.cached_tokens,
        "cache_creation_tokens": usage.written_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }
    total = usage.input_tokens + usage.output_tokens
    counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "total_tokens": total}
    return counts | {name: tokens for name, tokens in more.items() if tokens}


def _headers(route: str, given: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The provider's headers but for those of its body; its request id under the name the route's clients look for."""
    kept = [pair for pair in given if not pair[0].startswith("content-") and pair[0] != "etag"]
    names = ("request-id", "x-request-id") if route == "messages" else ("x-request-id", "request-id")
    found = dict(kept)
    if names[0] not in found and names[1] in found:
        kept.append((names[0], found[names[1]]))
    return kept


def unpacked(whole: WholeAnswer) -> bytes:
    """A body without its coding; none is asked for, but not every server listens."""
    try:
        return unpack(whole.body, dict(whole.headers).get("content-encoding", ""))
    except ReefError as error:
        raise UpstreamError(f"the model's server used a coding that cannot be read: {error.message}") from error


def _fault(raw: bytes, status: int) -> Any:
    try:
        said: Any = load(raw)
    except ValueError:
        said = raw[:2000].decode("utf-8", "replace").strip()
    return read_fault(said, f"the model's server answered {status}")


def _unreadable(odd: BaseException) -> UpstreamError:
    code = "event_not_json" if isinstance(odd, ValueError) else "odd_shape"
    return UpstreamError(f"the model's server sent an answer that cannot be read ({odd!r})"[:300], code=code)
