"""Output parsers: the same pieces however the text is cut, and no part of a tag as text."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import BadConfig
from reef.inference.dialects.answer import Piece, gather
from reef.inference.parsers import check_parsers, output_parser

CALL = '<tool_call>\n{"name": "look", "arguments": {"n": 42, "s": "a b"}}\n</tool_call>'
FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', '{"name": "f"', "<", "<t",
    "</", " ", "\n", "text", "naïve 海", CALL, '"</tool_call>"', "[", "]", "{", "}",
]  # fmt: skip


def parse(text: str, cuts: list[int] | None = None, **options: object) -> list[Piece]:
    settings = {"tool": "hermes", "reasoning": "think", "tools": True, "prompt": ""} | options
    parser = output_parser(
        str(settings["tool"]),
        str(settings["reasoning"]),
        tools_offered=bool(settings["tools"]),
        prompt_text=str(settings["prompt"]),
    )
    edges = [0, *sorted(cuts or []), len(text)]
    pieces = [piece for start, end in itertools.pairwise(edges) for piece in parser.feed(text[start:end])]
    return gather([*pieces, *parser.close()])


@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=8),
    st.sampled_from(["hermes", "json", "none"]),
    st.booleans(),
    st.data(),
)
def test_pieces_do_not_depend_on_the_cut(parts: list[str], tool: str, inside: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    options = {"tool": tool, "prompt": "<think>\n" if inside else ""}
    whole = parse(text, **options)
    assert parse(text, cuts, **options) == whole
    assert parse(text, list(range(len(text))), **options) == whole
    for piece in whole:
        if piece.kind == "call":
            assert isinstance(json.loads(piece.text), dict)


def test_reasoning_text_and_calls_come_in_order() -> None:
    assert parse(f"<think>\nhm\n</think>\n\nI look.\n{CALL}\n{CALL}") == [
        Piece("reasoning", "hm"),
        Piece("text", "I look."),
        Piece("call", '{"n": 42, "s": "a b"}', "look"),
        Piece("call", '{"n": 42, "s": "a b"}', "look"),
    ]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "f", "arguments": {}}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"arguments": { "n" :42.0 }, "name": "f"}', '{ "n" :42.0 }'),
        ('{"name": "f", "parameters": {"x": 1}}', '{"x": 1}'),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', '{"x": 1}'),
        ('{"name": "f", "arguments": {"x": "</tool_call>"}}', '{"x": "</tool_call>"}'),
    ],
)
def test_arguments_are_verbatim(written: str, arguments: str) -> None:
    assert parse(f"<tool_call>{written}</tool_call>") == [Piece("call", arguments, "f")]


@pytest.mark.parametrize(
    "inner",
    ["not json", '{"name": 1}', '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": {"x": NaN}}', "{}"],
)
def test_what_is_no_call_stays_text_with_its_tags(inner: str) -> None:
    text = f"<tool_call>{inner}</tool_call>"
    assert parse(text) == [Piece("text", text)]


def test_an_unfinished_call_is_text_and_a_whole_one_without_its_tag_is_a_call() -> None:
    assert parse('<tool_call>{"name": "f", "argu') == [Piece("text", '<tool_call>{"name": "f", "argu')]
    assert parse('<tool_call>\n{"name": "f"}\n</tool_c') == [Piece("call", "{}", "f")]


def test_a_half_tag_at_the_end_is_text_and_comes_out_only_then() -> None:
    parser = output_parser("hermes", "none", tools_offered=True, prompt_text="")
    assert parser.feed("a <tool_") == [Piece("text", "a")]
    assert parser.close() == [Piece("text", " <tool_")]


def test_without_tools_nothing_is_parsed() -> None:
    assert parse(CALL, tools=False) == [Piece("text", CALL)]
    assert parse(CALL, tool="none") == [Piece("text", CALL)]


def test_a_template_that_opens_the_reasoning() -> None:
    assert parse("hm\n</think>\nyes", prompt="...<think>\n") == [Piece("reasoning", "hm"), Piece("text", "yes")]
    assert parse("only thought", prompt="<think>\n") == [Piece("reasoning", "only thought")]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', ["f"]),
        ('[{"name": "f"}, {"name": "g"}]', ["f", "g"]),
        ('{"name": "f"}; {"name": "g"}', ["f", "g"]),
        ('{"answer": 1}', []),
        ("plain {", []),
    ],
)
def test_json_calls(text: str, calls: list[str]) -> None:
    pieces = parse(text, tool="json", reasoning="none")
    assert [piece.name for piece in pieces if piece.kind == "call"] == calls
    if not calls:
        assert pieces == [Piece("text", text)]


def test_unknown_parsers_are_named() -> None:
    with pytest.raises(BadConfig, match="tool_parser") as told:
        check_parsers("mystery", "none")
    assert "hermes" in told.value.hint
