"""Wrapping a person's own agent: marked entries go in, and every byte comes back."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from reef.errors import BadRequest, Conflict, NotFound
from reef.harness.adapters import adapter
from reef.harness.render import Binding
from reef.harness.wrap import plan, unwrap, wrap, wrapped
from tests.harness.world import fingerprint, odd_home

BINDING = Binding("http://127.0.0.1:8900", "token-1-is-long", "work", "m-1")
AGENTS = ["claude", "codex", "opencode", "pi"]
OWN = {
    "claude": (
        "settings.json",
        '{\n    "hooks" : {"Stop": []},\n    "env": {"A": "1", "ANTHROPIC_MODEL": "mine"}\n}\n',
    ),
    "codex": (
        "config.toml",
        'model = "mine"  # my choice\nmodel_provider="openai"\nnotify = ["x"]\n\n[model_providers.x]\nname = "X"\n\n'
        '[projects."/w"]\ntrust_level = "trusted"',
    ),
    "opencode": ("opencode.json", '{"model":"mine/x","theme":"ä"}'),
    "pi": ("models.json", '{\r\n\t"providers": {"mine": {"baseUrl": "http://h"}}\r\n}'),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG_DIR", "PI_CODING_AGENT_DIR"):
        monkeypatch.delenv(name, raising=False)
    made = tmp_path / "Heim"
    made.mkdir()
    odd_home(made)
    return made


def read(path: Path) -> dict[str, object]:
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("own", [True, False], ids=["own-file", "no-file"])
def test_every_byte_comes_back(home: Path, tmp_path: Path, name: str, own: bool) -> None:
    one, agents = adapter(name), tmp_path / "agents"
    file, text = OWN[name]
    path = home / one.wrap.folder / file
    path.parent.joinpath("settings.json").unlink(missing_ok=True)
    if own:
        path.write_bytes(text.encode())
        path.chmod(0o644)
    before = fingerprint(home)
    changes = plan(one, BINDING, home)
    assert fingerprint(home) == before, "a plan writes nothing"
    assert all("token-1" not in change.diff(BINDING.token) for change in changes)
    wrap(agents, one, changes)
    assert "http://127.0.0.1:8900" in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    if own:
        kept = str(read(path))
        assert any(word in kept for word in ("hooks", "notify", "theme", "mine")), "what was there is there"
    again = plan(one, BINDING, home)
    assert all(change.before == change.after for change in again)
    with pytest.raises(Conflict, match="is wrapped already"):
        wrap(agents, one, again)
    unwrap(agents, name)
    assert fingerprint(home) == before and not agents.exists()
    with pytest.raises(NotFound, match="is not wrapped"):
        unwrap(agents, name)


@pytest.mark.parametrize("name", AGENTS)
def test_what_was_changed_since_stays_and_only_ours_goes(home: Path, tmp_path: Path, name: str) -> None:
    one, agents = adapter(name), tmp_path / "agents"
    file, text = OWN[name]
    path = home / one.wrap.folder / file
    path.write_bytes(text.encode())
    was = read(path)
    wrap(agents, one, plan(one, BINDING, home))
    if path.suffix == ".toml":
        path.write_text(path.read_text() + "\n[added]\nby = 1\n")
    else:
        path.write_text(json.dumps(read(path) | {"added": {"by": 1}}))
    said = unwrap(agents, name)
    assert any("was changed since" in line for line in said)
    assert read(path) == was | {"added": {"by": 1}}


def test_a_value_of_ours_that_the_user_changed_is_the_users(home: Path, tmp_path: Path) -> None:
    one, path = adapter("claude"), home / ".claude" / "settings.json"
    wrap(tmp_path, one, plan(one, BINDING, home))
    found = read(path)
    assert isinstance(found["env"], dict)
    found["env"]["ANTHROPIC_BASE_URL"] = "http://mine"
    path.write_text(json.dumps(found))
    unwrap(tmp_path, "claude")
    assert read(path) == {"mine": 1, "env": {"ANTHROPIC_BASE_URL": "http://mine"}}


def test_a_link_to_where_the_user_keeps_it_stays_one(home: Path, tmp_path: Path) -> None:
    kept = home / "with space" / "claude.json"
    kept.write_text("{}")
    path = home / ".claude" / "settings.json"
    path.unlink()
    path.symlink_to(kept)
    before = fingerprint(home)
    wrap(tmp_path, adapter("claude"), plan(adapter("claude"), BINDING, home))
    assert path.is_symlink() and "ANTHROPIC_BASE_URL" in kept.read_text()
    unwrap(tmp_path, "claude")
    assert fingerprint(home) == before


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("claude", "// mine\n{}", "cannot be changed without losing something"),
        ("claude", '{"a": 1, "a": 2}', "a key is there twice"),
        ("claude", "[]", "no JSON object"),
        ("codex", "model = ", "stands against"),
        ("codex", '[model_providers.reef]\nname = "x"\n', "stands against"),
        ("codex", 'model_providers = { x = { name = "X" } }\n', "stands against"),
    ],
)
def test_what_cannot_be_changed_safely_is_left_alone(home: Path, name: str, text: str, said: str) -> None:
    path = home / adapter(name).wrap.folder / OWN[name][0]
    path.write_text(text)
    before = fingerprint(home)
    with pytest.raises(Conflict, match=said):
        plan(adapter(name), BINDING, home)
    assert fingerprint(home) == before


def test_a_crash_between_record_and_change_can_be_undone(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = adapter("pi")
    before = fingerprint(home)
    replace, calls = os.replace, 0

    def failing(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # the record and the first of two files are written
            raise OSError("power cut")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="power cut"):
        wrap(tmp_path, one, plan(one, BINDING, home))
    monkeypatch.setattr(os, "replace", replace)
    assert wrapped(tmp_path, "pi") and (home / ".pi" / "agent" / "models.json").exists()
    unwrap(tmp_path, "pi")
    assert fingerprint(home) == before


def test_the_variable_that_moves_the_folder_is_followed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "moved"))
    assert plan(adapter("claude"), BINDING, home)[0].path == tmp_path / "moved" / "settings.json"


def test_what_is_not_possible_is_said(home: Path) -> None:
    with pytest.raises(BadRequest, match="does not support"):
        plan(adapter("minimal"), BINDING, home)
    with pytest.raises(BadRequest, match="does not support keeping its own login"):
        plan(adapter("codex"), BINDING, home, own_login=True)
    with pytest.raises(BadRequest, match="the token has characters"):
        plan(adapter("pi"), Binding("http://h", "!rm -rf", "s", "m"), home)
    shown = plan(adapter("claude"), Binding("http://h", "token-2-is-long", "s", ""), home, own_login=True)[0].after
    assert "x-reef-token: token-2-is-long" in shown and "AUTH_TOKEN" not in shown and "ANTHROPIC_MODEL" not in shown
