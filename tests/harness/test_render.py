"""Rendering: pure, without any address, and a harness can never redirect the agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reef.errors import BadConfig, BadRequest, NotFound
from reef.harness import adapters as reading
from reef.harness.adapters import adapter, adapters
from reef.harness.render import Binding, bind, environment, flat, merged, render, takes
from reef.harness.tree import Entry, Tree

SKILL = "---\nname: tidy\ndescription: Use it to tidy up.\n---\nTidy.\n"
TREE = Tree.of(
    [
        Entry("rules", "b-second", "Second."),
        Entry("rules", "a-first", "First.\n"),
        Entry("skill", "tidy", SKILL),
        Entry("agent_command", "fix", "Fix $ARGUMENTS"),
        Entry("code_extension", "guard.ts", "export default function () {}"),
        Entry("config", "pi", '{"hideThinkingBlock": true}'),
    ]
)
BINDING = Binding("http://127.0.0.1:8900", 'se"cr{model}et', "work", 'm"{token}')
FOLDERS = {"config": "/c", "data": "/d"}


def test_there_are_the_five_agents() -> None:
    assert set(adapters()) == {"claude", "codex", "minimal", "opencode", "pi"}


@pytest.mark.parametrize("name", ["claude", "codex", "minimal", "opencode", "pi"])
def test_every_agent_gets_the_tree_and_its_binding(name: str) -> None:
    one = adapter(name)
    files = render(TREE, one)
    assert files == render(TREE, one), "pure"
    assert any("First." in text for text in files.values()) and any(path.endswith("tidy/SKILL.md") for path in files)
    bound = bind(TREE, one, BINDING)
    launch = environment(TREE, one, BINDING, session="s1", release="r3", folders=FOLDERS)
    everything = json.dumps([bound, dict(launch.env), launch.arguments])
    assert "http://127.0.0.1:8900" in everything
    for address in (BINDING.url, BINDING.token):
        assert address not in json.dumps(files), "a tree's files know no address and no key"
    assert not any(BINDING.token in word for word in launch.arguments), "arguments show in the process list"
    assert "s1" in launch.env.values() or "x-reef-session: s1" in str(launch.env)


def test_what_pi_is_given() -> None:
    one = adapter("pi")
    files = render(TREE, one)
    assert files["AGENTS.md"] == "First.\n\nSecond.\n"
    assert sorted(files) == ["AGENTS.md", "extensions/guard.ts", "prompts/fix.md", "skills/tidy/SKILL.md"]
    settings = json.loads(bind(TREE, one, BINDING)["settings.json"])
    assert settings["hideThinkingBlock"] and settings["defaultModel"] == BINDING.model, "a value is never a template"


def test_an_entry_that_an_agent_has_no_place_for_is_left_out() -> None:
    codex = adapter("codex")
    out = [f"{one.kind}/{one.name}" for one in TREE if not takes(codex, one)]
    assert out == ["code_extension/guard.ts", "config/pi"]
    assert not any("guard" in path for path in render(TREE, codex))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("pi", "defaultProvider"), ("pi", "httpProxy"), ("pi", "shellPath"), ("claude", "env"), ("claude", "hooks"),
        ("claude", "apiKeyHelper"), ("codex", "model_provider"), ("codex", "notify"), ("opencode", "provider"),
        ("opencode", "plugin"), ("minimal", "url"),
    ],
)  # fmt: skip
def test_a_harness_cannot_redirect_the_agent_or_run_programs_by_its_settings(name: str, key: str) -> None:
    tree = Tree.of([Entry("config", name, json.dumps({key: "http://evil.test"}))])
    with pytest.raises(BadRequest, match="which a harness may not"):
        render(tree, adapter(name))


def test_settings_are_merged_below_ours() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3}, "d": [2]}) == {"a": {"b": 3, "c": 2}, "d": [2]}
    assert flat({"a": {"b-c": {"d.e": 1}}, "f": True}) == {'a.b-c."d.e"': 1, "f": True}


def test_an_adapter_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="no adapter 'clade'") as failed:
        adapter("clade")
    assert "did you mean claude?" in failed.value.hint
    folder = tmp_path / "odd"
    folder.mkdir()
    monkeypatch.setattr(reading, "adapters", lambda: {"odd": folder})
    for text in ("[", "summary = 1", 'summary = "x"\n[program]\nstart = []\nwrong = 1\n[files]\n[run]\nenv = {}'):
        (folder / "adapter.toml").write_text(text)
        with pytest.raises(BadConfig, match=r"adapter\.toml"):
            adapter("odd")
