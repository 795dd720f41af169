"""Text as it comes: whole characters, stop texts held back and cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from reef.train.torch_runtime.text import TextStream


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


def spoken(tokenizer: Tokenizer, text: str, *stops: str, keep: bool = False) -> tuple[list[str], str | None]:
    """The pieces that come out when ``text`` is generated, and the stop text that was found."""
    stream = TextStream(tokenizer, stops, keep_stop=keep, skip_special=True)
    pieces = []
    for token in tokenizer.encode(text).ids:
        piece, stop = stream.push(token)
        pieces.append(piece)
        if stop is not None:
            return pieces, stop
    return [*pieces, stream.finish()], None


@given(text=st.text(max_size=40))
def test_pieces_join_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    pieces, _ = spoken(tokenizer, text)
    assert "".join(pieces) == tokenizer.decode(tokenizer.encode(text).ids)


def test_a_piece_never_holds_half_a_character(tokenizer: Tokenizer) -> None:
    pieces, _ = spoken(tokenizer, "né 🐠 ok")
    assert len(pieces) > 8 and all("\ufffd" not in piece for piece in pieces)


def test_a_stop_text_is_cut_and_never_shown(tokenizer: Tokenizer) -> None:
    pieces, stop = spoken(tokenizer, "yes no\n\nUser: more", "User:", "zzz")
    assert (stop, "".join(pieces)) == ("User:", "yes no\n\n")
    pieces, _ = spoken(tokenizer, "yes no\n\nUser: more", "User:", keep=True)
    assert "".join(pieces) == "yes no\n\nUser:"


def test_what_only_began_like_a_stop_text_is_shown_in_the_end(tokenizer: Tokenizer) -> None:
    pieces, stop = spoken(tokenizer, "abc Us", "User:")
    assert (stop, "".join(pieces)) == (None, "abc Us")
    assert "U" not in "".join(pieces[:-1])


def test_special_tokens_are_not_text(tokenizer: Tokenizer) -> None:
    assert "".join(spoken(tokenizer, "a<|im_end|>b")[0]) == "ab"
