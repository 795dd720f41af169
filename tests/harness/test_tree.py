"""Trees: what may be in one, its content id, edits and differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import BadRequest, NotFound
from reef.harness.tree import ENTRIES, ENTRY_BYTES, Delete, Entry, Put, Tree, diff

SKILL = "---\nname: tidy\ndescription: Use it to tidy up.\n---\nTidy.\n"
RULES = Entry("rules", "base", "Be brief.\n")


@pytest.mark.parametrize(
    ("kind", "name", "text", "said"),
    [
        ("rules", "../x", "a", "is no name"),
        ("rules", "a/b", "a", "is no name"),
        ("rules", "", "a", "is no name"),
        ("rules", "-a", "a", "is no name"),
        ("rules", "A", "a", "is no name"),
        ("rules", "a" * 65, "a", "is no name"),
        ("rules", "a\n", "a", "is no name"),
        ("rules", "é", "a", "is no name"),
        ("hooks", "a", "a", "no known kind"),
        ("code_extension", "a", "x", "no suffix of code"),
        ("code_extension", "../a.ts", "x", "is no name"),
        ("code_extension", ".ts", "x", "is no name"),
        ("rules", "a", "", "is empty"),
        ("rules", "a", " \n", "is empty"),
        ("rules", "a", "\0", "the character"),
        ("rules", "a", "\x1b[2J", "the character"),
        ("rules", "a", "\ud800", "the character"),
        ("rules", "a", "x" * (ENTRY_BYTES + 1), "bytes"),
        ("config", "pi", "[]", "no JSON object"),
        ("config", "pi", "{", "is not JSON"),
        ("config", "pi", '{"a": NaN}', "is not JSON"),
        ("config", "pi", "[" * 60_000, "is not JSON"),
        ("skill", "tidy", "Tidy.", "front matter"),
        ("skill", "other", SKILL, "front matter"),
        ("skill", "tidy", "---\nname: tidy\n---\n", "front matter"),
        ("skill", "tidy", "---\n[\n---\n", "front matter"),
    ],
)
def test_what_is_no_entry_is_refused_with_the_rule(kind: str, name: str, text: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said) as refused:
        Entry(kind, name, text)
    assert refused.value.hint and refused.value.field == "entries"


def test_a_tree_does_not_depend_on_the_order_and_comes_back_from_its_json() -> None:
    entries = [RULES, Entry("skill", "tidy", SKILL), Entry("code_extension", "guard.ts", "export default 1")]
    tree = Tree.of(entries)
    assert tree == Tree.of(reversed(entries)) == Tree.from_json(tree.to_json())
    assert tree.content_id == Tree.from_dict(tree.as_dict()).content_id
    assert len(tree.content_id) == 64
    assert Tree.of(entries[:2]).content_id != tree.content_id


def test_the_content_id_of_a_tree_never_changes() -> None:
    """Releases are named by it: another canonical form would orphan all that exist."""
    assert Tree.of([RULES]).to_json() == (
        '{"entries":[{"kind":"rules","name":"base","text":"Be brief.\\n"}],"version":1}'
    )
    assert Tree.of([RULES]).content_id == "e03661c522510d3a3654ad4b40fa764e0a78d271f2b674433c786f5184aacaa7"


@pytest.mark.parametrize(
    "document",
    [
        None, [], {}, {"version": 2, "entries": []}, {"version": 1}, {"version": 1, "entries": [{}]},
        {"version": 1, "entries": [{"kind": "rules", "name": "a", "text": "b", "mode": 1}]},
        {"version": 1, "entries": [{"kind": "rules", "name": 1, "text": "b"}]},
        {"version": 1, "entries": [{"kind": "rules", "name": "a", "text": None}]},
        {"version": 1, "entries": [{"kind": [], "name": "a", "text": "b"}]},
        {"version": 1, "entries": [{"kind": "rules", "name": "a", "text": "b"}] * 2},
        {"version": 1, "entries": [{"kind": "rules", "name": f"a{n}", "text": "b"} for n in range(ENTRIES + 1)]},
        {"version": 1, "entries": [{"kind": "rules", "name": f"a{n}", "text": "b" * 60_000} for n in range(9)]},
    ],
)  # fmt: skip
def test_a_document_that_is_no_tree_is_refused(document: object) -> None:
    with pytest.raises(BadRequest):
        Tree.from_json(json.dumps(document))


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(BadRequest):
        Tree.from_json(f"x{text}")


def test_edits_and_what_they_change() -> None:
    tree = Tree.of([RULES, Entry("skill", "tidy", SKILL)])
    after = tree.edit([Put(Entry("rules", "base", "Be long.\n")), Delete("skill", "tidy")])
    assert [one.name for one in after] == ["base"]
    said = diff(tree, after)
    assert "-Be brief." in said and "+Be long." in said and "--- a/skill/tidy" in said and "+++ /dev/null" in said
    assert diff(tree, tree) == ""
    with pytest.raises(NotFound, match="no skill/none"):
        tree.edit([Delete("skill", "none")])
    with pytest.raises(BadRequest, match="edited twice"):
        tree.edit([Put(RULES), Delete("rules", "base")])


def test_a_folder_is_a_tree_and_nothing_foreign_gets_in(tmp_path: Path) -> None:
    for path, text in {"rules/base.md": "Be brief.\n", "skill/tidy.md": SKILL, "code_extension/g.ts": "1"}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    assert [f"{one.kind}/{one.name}" for one in Tree.from_folder(tmp_path)] == [
        "code_extension/g.ts", "rules/base", "skill/tidy",
    ]  # fmt: skip
    (tmp_path / "rules" / "more.md").symlink_to("/etc/hostname")
    with pytest.raises(BadRequest, match="is a link"):
        Tree.from_folder(tmp_path)
    (tmp_path / "rules" / "more.md").unlink()
    (tmp_path / "skill" / "deep").mkdir()
    (tmp_path / "skill" / "deep" / "x.md").write_text("x")
    with pytest.raises(BadRequest, match="is no entry"):
        Tree.from_folder(tmp_path)
