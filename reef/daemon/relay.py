"""Passes a streamed answer on and keeps it: live slices, a held-back end, comments over silence, errors as events.

Knows nothing of routes or of who answers. Built by the gateway once the open row is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reef.core.records_types import Delivery, Finish, RecordState
from reef.daemon.redact import costly, masked_answer
from reef.daemon.services import Services
from reef.daemon.wire import error_event
from reef.errors import ReefError, StoreFull, Unavailable, UpstreamError, UpstreamTimeout
from reef.inference.base import Answer, Call
from reef.inference.translated import is_events
from reef.records import Exchange
from reef.scenario import Scenario

_END_MARKS = {
    "chat": (b"data: [DONE]", b"data:[DONE]"),
    "messages": (b"event: message_stop", b'data: {"type":"message_stop"', b'data: {"type": "message_stop"'),
    "responses": tuple(
        start % kind
        for start in (b"event: response.%b", b'data: {"type":"response.%b"', b'data: {"type": "response.%b"')
        for kind in (b"completed", b"incomplete", b"failed")
    ),
}
_BLANK_LINE = re.compile(rb"\n\r?\n|\r\r")
_WHOLE = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""What the last event ends with, where none is cut."""
_MARK_BYTES = 64
_LINGER_S = 1.0
"""How long a whole stream waits for its connection to end, so that it can be used again."""


class Relay(Response):
    """Passes slices on as they come and holds back the end until the record is complete on disk.

    Where the answer is no readable event stream (plain JSON, an error, a content coding) the last slice is held back, and
    nothing of ours is ever put between its bytes.
    """

    def __init__(
        self,
        services: Services,
        scenario: Scenario,
        call: Call,
        exchange: Exchange,
        pending: asyncio.Future[Answer],
        status: int,
        headers: list[tuple[str, str]],
        started: float,
        recorded: bool,
    ) -> None:
        self.status_code = status
        self.background = None
        self.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._services, self._scenario, self._call, self._exchange = services, scenario, call, exchange
        self._pending, self._started, self._recorded = pending, started, recorded
        self._sent = bytearray()
        self._waiting = b""  # the last slice of a body without events, held back until the row is complete
        self._read_as = status, headers
        self._events = is_events(headers)
        self._headers_were_late = not pending.done()
        self._first_ms: float | None = None
        self._heard_s = time.monotonic()
        self._sending = False
        self._took_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the answer has ended or the client is gone."""
        relaying = asyncio.ensure_future(self._relay(send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((relaying, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not relaying.done():  # the client, or the daemon, goes away
                relaying.cancel()
                await asyncio.wait((relaying,))
        scope["reef.upstream_s"] = self._took_s
        if not relaying.cancelled():
            relaying.result()

    async def _relay(self, send: Send) -> None:
        got: Answer | None = None
        reason: str | None = "client_gone"
        held = b""
        bridging: asyncio.Future[None] | None = None
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            bridging = asyncio.ensure_future(self._bridge(send))
            got = await self._pending
            held, reason = await self._pass_on(send, got)
        except ReefError as error:
            reason, held = error.reason, self._waiting + self._told(error)
        except Exception:  # a bug, which is not the client's leaving
            reason = "reef_failed"
            raise
        finally:
            if bridging is not None:
                bridging.cancel()
            closing = asyncio.ensure_future(self._record(got, reason))
            self._services.keep(closing)
            await asyncio.shield(closing)
        if (refusal := closing.result()) is not None:
            held = self._told(refusal)
        await send({"type": "http.response.body", "body": held, "more_body": False})

    async def _record(self, got: Answer | None, reason: str | None) -> StoreFull | None:
        """Complete the row, let the upstream go; an error when the deployment wants no unrecorded answers."""
        finish = Finish(RecordState.ABORTED if reason == "client_gone" else RecordState.FAILED, reason)
        if got is not None:
            sent, left = bytes(self._sent), reason if reason == "client_gone" else None
            much = costly(sent, dict(self._read_as[1]))
            finish = await asyncio.to_thread(got.finish, sent, left) if much else got.finish(sent, left)
            self._services.keep(asyncio.ensure_future(got.aclose()))
        else:
            let_go(self._services, self._pending)
        status, headers = self._read_as
        self._took_s = time.perf_counter() - self._started
        delivery = Delivery(bytes(self._sent), status, dict(headers), self._took_s * 1000, self._first_ms)
        try:
            await complete(self._services, self._scenario, self._exchange, finish, delivery, self._recorded)
        except StoreFull as error:
            return error
        return None

    def _told(self, error: ReefError) -> bytes:
        """``error`` as the stream's last event, apart from half of one; nothing where an event would not be understood."""
        if not self._events:
            return b""
        apart = b"" if not self._sent or self._sent.endswith(_WHOLE) else b"\n\n"
        return apart + error_event(self._call.route, error)

    async def _pass_on(self, send: Send, got: Answer) -> tuple[bytes, str | None]:
        """Relay slices; returns the held-back end and why the stream is not whole (None when it is)."""
        if self._headers_were_late:
            self._read_as = got.status, got.headers
            if got.status >= 300 or not is_events(got.headers):
                return await self._too_late(got)
        marks = _END_MARKS[self._call.route]
        async for chunk in got.slices():
            self._heard_s = time.monotonic()
            if self._first_ms is None:
                self._first_ms = (time.perf_counter() - self._started) * 1000
            before = len(self._sent)
            self._sent += chunk
            cut = _end_at(self._sent, before, marks) if self._events else None
            start = len(self._sent) if cut is None else max(cut, before)
            passed = bytes(self._sent[before:start]) if cut is not None else chunk
            if not self._events:
                passed, self._waiting = self._waiting, chunk
            if passed:
                self._sending = True
                await send({"type": "http.response.body", "body": passed, "more_body": True})
                self._sending = False
            if cut is not None:
                await self._read_on(got, cut)
                return bytes(self._sent[start:]), None
        if not self._events:
            return self._waiting, None
        sent = bytes(self._sent)
        finish = await asyncio.to_thread(got.finish, sent) if costly(sent, {}) else got.finish(sent)
        if finish.state is RecordState.INCOMPLETE:
            error = ReefError("the model's server ended the stream before its end", code=finish.reason or "no_end_mark")
            return self._told(error), finish.reason
        return b"", None

    async def _read_on(self, got: Answer, cut: int) -> None:
        """What follows the end mark at ``cut``; a server that stays on the line after its last event is not waited for,
        whether it is silent or talks on, and one that breaks off there has ended all the same."""
        clock = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError, UpstreamError, UpstreamTimeout):
            async with asyncio.timeout(None) as limit:
                rest, look = got.slices(), cut
                while True:
                    ended = self._call.route == "chat" or _BLANK_LINE.search(self._sent, look)
                    if ended and limit.when() is None:
                        limit.reschedule(clock.time() + _LINGER_S)
                    look = max(cut, len(self._sent) - 3)  # a blank line may be cut by the slice
                    try:
                        self._sent += await anext(rest)
                    except StopAsyncIteration:
                        return

    async def _too_late(self, got: Answer) -> tuple[bytes, str | None]:
        """An answer that is no event stream, after the client was promised one: it can only be told in an event."""
        async for chunk in got.slices():
            self._sent += chunk
        code = f"upstream_{got.status}" if got.status >= 300 else "no_event_stream"
        said = bytes(self._sent[:2000]).decode("utf-8", "replace")
        error = UpstreamError(f"the model's server answered {got.status}: {said}", code=code)
        return self._told(error), error.code

    async def _bridge(self, send: Send) -> None:
        """A comment to the client whenever the upstream has been silent for long, before its headers as between events."""
        while True:
            left_s = self._heard_s + self._services.keepalive_s - time.monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                self._heard_s = time.monotonic()
                await self._comment(send)

    async def _comment(self, send: Send) -> None:
        whole = not self._sent or self._sent.endswith(_WHOLE)
        if not self._events or not whole or self._sending:
            return  # never inside an event, and never in a body that has no events
        comment = b'event: ping\ndata: {"type": "ping"}\n\n' if self._call.route == "messages" else b": keep-alive\n\n"
        await send({"type": "http.response.body", "body": comment, "more_body": True})


def _end_at(sent: bytearray, before: int, marks: tuple[bytes, ...]) -> int | None:
    """Where the protocol's end begins in what has been received, None when it has not come yet."""
    start = max(0, before - _MARK_BYTES)
    found = [at for mark in marks if (at := sent.find(mark, start)) >= 0 and (at == 0 or sent[at - 1] in b"\r\n")]
    return min(found) if found else None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def let_go(services: Services, pending: asyncio.Future[Answer]) -> None:
    """Ask no more for an answer that nobody takes; one that has come, or still comes, is closed."""

    def close(done: asyncio.Future[Answer]) -> None:
        if not done.cancelled() and done.exception() is None:
            services.keep(asyncio.ensure_future(done.result().aclose()))

    pending.cancel()
    pending.add_done_callback(close)


async def complete(
    services: Services, scenario: Scenario, exchange: Exchange, finish: Finish, delivery: Delivery, recorded: bool
) -> None:
    """Complete an open row; when the store fails now it is marked aborted as soon as it can be."""
    if not recorded:
        return
    sent, coded = delivery.sent, "content-encoding" in delivery.headers
    if exchange.lent or coded or any(needle in sent for needle in services.needles):
        keys = *services.secrets, *exchange.lent
        if costly(sent, delivery.headers):
            finish, delivery = await asyncio.to_thread(masked_answer, finish, delivery, keys)
        else:
            finish, delivery = masked_answer(finish, delivery, keys)
    try:
        await asyncio.wrap_future(services.records.submit_exchange(exchange, finish, delivery, opened=True))
    except (StoreFull, Unavailable) as error:
        services.records.abandon(exchange.record_id, f"{error.code}: the answer's end could not be stored")
        services.unrecorded_header(error)
        return
    services.last_store_error = None
    if services.bus.listened:
        services.say_recorded(exchange, finish, delivery)
    scenario.answered()
