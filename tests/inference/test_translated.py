"""Streamed answers from one dialect to another: any answer in any cut of its bytes, whole or broken off anywhere."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.core.records_types import RecordState
from reef.errors import UpstreamError
from reef.inference.assembly import assemble
from reef.inference.base import Finish
from reef.inference.dialects import DIALECTS
from reef.inference.dialects.answer import Head, Outcome, Piece, gather
from reef.inference.dialects.prompt import Prompt
from reef.inference.protocol import check_stream
from reef.inference.translated import TranslatedStream
from tests.inference.test_readers import HEAD, call, calls, carried, chat, read
from tests.inference.test_render import OUTCOMES, PIECES

PAIRS = list(itertools.permutations(DIALECTS, 2))
ASKED = Head("c2", "asked", 1700000001, Prompt(include_usage=True))
CUTS = st.lists(st.integers(0, 6000), max_size=40)


@dataclass(slots=True)
class Source:
    """A provider's answer whose body comes in the given slices, and breaks off after them when ``breaks``."""

    chunks: Sequence[bytes]
    breaks: bool = False
    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=lambda: [("content-type", "text/event-stream")])
    release_id: str | None = None

    async def slices(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk
        if self.breaks:
            raise UpstreamError("broke off")

    def finish(self, sent: bytes, reason: str | None = None) -> Finish:
        raise AssertionError("the translation judges what it sends")

    async def aclose(self) -> None:
        pass


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(one for one in cuts if one < len(raw)), len(raw)]
    return [raw[start:end] for start, end in itertools.pairwise(edges)]


def translate(route: str, target: str, source: Source) -> tuple[bytes, Finish]:
    """Every byte the client gets, and the verdict."""

    async def run() -> tuple[bytes, Finish]:
        stream = TranslatedStream(route, ASKED, target, source, [])
        sent = b""
        try:
            async for chunk in stream.slices():
                sent += chunk
        except UpstreamError:
            assert not assemble(route, "text/event-stream", sent).complete, "an error behind the end"
        return sent, stream.finish(sent)

    return asyncio.run(run())


def written(target: str, pieces: list[Piece], outcome: Outcome) -> bytes:
    encoder = DIALECTS[target].stream(HEAD)
    return encoder.begin() + b"".join(encoder.add([piece]) for piece in pieces) + encoder.end(outcome)


@pytest.mark.parametrize(("route", "target"), PAIRS)
@given(pieces=PIECES, outcome=OUTCOMES, cuts=CUTS)
def test_any_answer_in_any_cut(route: str, target: str, pieces: list[Piece], outcome: Outcome, cuts: list[int]) -> None:
    raw = written(target, pieces, outcome)
    sent, finish = translate(route, target, Source([raw]))
    assert translate(route, target, Source(cut(raw, cuts))) == (sent, finish)
    check_stream(route, sent)
    given_, reader = read(target, raw)
    assert carried(route, read(route, sent)[0]) == carried(route, given_)
    ended = reader.outcome()
    known = ended.finish is not None and (ended.finish != "pause" or route == "messages")
    assert finish.state is (RecordState.COMPLETE if known else RecordState.INCOMPLETE)
    assert finish.model == "far"
    assert finish.usage.get("output_tokens") == (ended.usage and ended.usage.output_tokens)


@pytest.mark.parametrize(("route", "target"), PAIRS)
@given(pieces=PIECES, outcome=OUTCOMES, cuts=CUTS, at=st.floats(0, 1), breaks=st.booleans())
def test_an_answer_that_breaks_off_anywhere_has_no_made_up_end(
    route: str, target: str, pieces: list[Piece], outcome: Outcome, cuts: list[int], at: float, breaks: bool
) -> None:
    whole = written(target, pieces, outcome)
    last = whole.rfind(b"data: ", 0, whole.rfind(b'"finish_reason"')) if target == "chat" else whole.rfind(b"event: ")
    raw = whole[: int(at * last)]
    sent, finish = translate(route, target, Source([raw], breaks))
    assert translate(route, target, Source(cut(raw, cuts), breaks)) == (sent, finish)
    check_stream(route, sent, whole=False)
    assert not assemble(route, "text/event-stream", sent).complete
    assert finish.state is RecordState.INCOMPLETE
    full, _ = translate(route, target, Source([whole]))
    for kind in ("text", "reasoning", "arguments"):
        some, all_ = ["".join(p.text for p in read(route, raw)[0] if p.kind == kind) for raw in (sent, full)]
        assert all_.startswith(some)


def test_what_follows_the_end_mark_changes_nothing() -> None:
    whole = written("chat", [Piece("text", "a")], Outcome("stop"))
    sent, finish = translate("messages", "chat", Source([whole]))
    assert translate("messages", "chat", Source([whole, whole], breaks=True)) == (sent, finish)
    assert finish.state is RecordState.COMPLETE


def test_what_waited_for_its_turn_is_passed_on_when_the_source_breaks_off() -> None:
    first, second = calls(call(0, '{"k"', "look", "a")), calls(call(1, '{"k": 2}', "list", "b"))
    sent, finish = translate("messages", "chat", Source([chat(first, second, finish=None, done=False)], breaks=True))
    check_stream("messages", sent, whole=False)
    assert [(piece.name, piece.text) for piece in gather(read("messages", sent)[0])] == [
        ("look", '{"k"'),
        ("list", '{"k": 2}'),
    ]
    assert (finish.state, finish.reason) == (RecordState.INCOMPLETE, "upstream_broke_off")
