"""Installing: a second time writes nothing, the user's edit wins, and all of it can be undone."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from reef.errors import BadRequest, Conflict, NotFound
from reef.harness import install as installs
from reef.harness import program
from reef.harness.adapters import adapter
from reef.harness.install import Served, edits, sync, uninstall
from reef.harness.place import Place, agents_dir, chosen
from reef.harness.program import NotInstalled, ensure, find_node, start_of
from reef.harness.render import Binding
from reef.harness.tree import Delete, Entry, Put, Tree

PI = adapter("pi")
BINDING = Binding("http://127.0.0.1:8900", "token-1", "work", "m-1")
SKILL = "---\nname: tidy\ndescription: Use it to tidy up.\n---\nTidy.\n"
FIRST = Tree.of([Entry("rules", "base", "Be brief.\n"), Entry("skill", "tidy", SKILL)])
SECOND = FIRST.edit([Put(Entry("rules", "base", "Be exact.\n"))])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "agents", "pi", "work")


def state(root: Path) -> dict[str, tuple[int, bytes, int]]:
    """mtime, content and mode of every file but the lock."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes(), path.stat().st_mode & 0o777)
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_a_second_install_changes_nothing(place: Place) -> None:
    done = sync(place, PI, Served("r0", FIRST), BINDING)
    assert done.changed and sorted(done.written) == [
        "AGENTS.md",
        "models.json",
        "settings.json",
        "skills/tidy/SKILL.md",
    ]
    before = state(place.root)
    assert all(mode == 0o600 for _, _, mode in before.values()), "the binding is for its owner only"
    assert place.root.stat().st_mode & 0o777 == 0o700
    again = sync(place, PI, Served("r0", FIRST), BINDING)
    assert not again.changed and state(place.root) == before


def test_an_update_writes_only_what_changed(place: Place) -> None:
    sync(place, PI, Served("r0", FIRST), BINDING)
    before = state(place.root)
    done = sync(place, PI, Served("r1", SECOND), BINDING)
    assert (done.before, done.written) == ("r0", ["AGENTS.md"])
    after = state(place.root)
    assert {path for path in after if after[path] != before[path]} == {"config/AGENTS.md", "manifest.json", "tree.json"}
    gone = sync(place, PI, Served("r2", SECOND.edit([Delete("skill", "tidy")])), BINDING)
    assert gone.removed == ["skills/tidy/SKILL.md"] and not (place.config / "skills").exists()


def test_the_users_edit_wins_and_the_new_text_lies_beside(place: Place) -> None:
    sync(place, PI, Served("r0", FIRST), BINDING)
    mine = place.config / "AGENTS.md"
    mine.write_text("My own rules.\n")
    assert edits(place) == ["AGENTS.md"]
    done = sync(place, PI, Served("r1", SECOND), BINDING)
    beside = place.config / "AGENTS.md.reef-new"
    assert done.kept == ["AGENTS.md"] and mine.read_text() == "My own rules.\n" and beside.read_text() == "Be exact.\n"
    before = state(place.root)
    again = sync(place, PI, Served("r1", SECOND), BINDING)
    assert not again.changed and again.kept == ["AGENTS.md"] and state(place.root) == before
    mine.write_text("Be exact.\n")  # the user took it over
    assert sync(place, PI, Served("r1", SECOND), BINDING).kept == [] and not beside.exists()
    sync(place, PI, Served("r2", FIRST), BINDING)
    assert mine.read_text() == "Be brief.\n"


def test_a_new_text_that_the_user_works_on_is_not_taken_away(place: Place) -> None:
    sync(place, PI, Served("r0", FIRST), BINDING)
    (place.config / "AGENTS.md").write_text("Mine.\n")
    sync(place, PI, Served("r1", SECOND), BINDING)
    beside = place.config / "AGENTS.md.reef-new"
    beside.write_text("Half merged.\n")
    sync(place, PI, Served("r2", FIRST), BINDING)
    sync(place, PI, Served("r3", SECOND), BINDING)
    assert beside.read_text() == "Half merged.\n"
    assert uninstall(place).kept == ["config/AGENTS.md", "config/AGENTS.md.reef-new"]


def test_files_that_were_there_or_were_added_stay(place: Place) -> None:
    place.config.mkdir(parents=True)
    (place.config / "AGENTS.md").write_text("Older than the install.\n")
    done = sync(place, PI, Served("r0", FIRST), BINDING)
    assert done.kept == ["AGENTS.md"]
    (place.config / "skills" / "tidy" / "notes.txt").write_text("mine")
    (place.config / "sessions").mkdir()
    (place.config / "sessions" / "one.jsonl").write_text("{}")
    sync(place, PI, Served("r1", SECOND.edit([Delete("skill", "tidy")])), BINDING)
    assert (place.config / "skills" / "tidy" / "notes.txt").exists()
    undone = uninstall(place)
    assert undone.kept == ["config/AGENTS.md", "config/sessions/one.jsonl", "config/skills/tidy/notes.txt"]
    assert (place.config / "AGENTS.md").read_text() == "Older than the install.\n"


def test_settings_are_shared_key_by_key(place: Place) -> None:
    """Agents and people write there too: theirs stay, ours follow the release and the binding."""
    sync(place, PI, Served("r0", FIRST), BINDING)
    path = place.config / "settings.json"
    theirs = json.loads(path.read_text()) | {"theme": "dark", "quietStartup": False, "lastChangelogVersion": "1.6.0"}
    path.write_text(json.dumps(theirs, indent=4))
    raw = path.read_bytes()
    done = sync(place, PI, Served("r1", SECOND), BINDING)
    assert path.read_bytes() == raw and not done.kept, "nothing of ours changed: not a byte is touched"
    other = Binding(BINDING.url, BINDING.token, "work", "m-2")
    hidden = SECOND.edit([Put(Entry("config", "pi", '{"hideThinkingBlock": true, "retry": {"maxRetries": 1}}'))])
    sync(place, PI, Served("r2", hidden), other)
    now = json.loads(path.read_text())
    assert now["defaultModel"] == "m-2" and now["hideThinkingBlock"] and now["theme"] == "dark"
    assert now["quietStartup"] is False, "the user's value"
    sync(place, PI, Served("r3", SECOND), other)
    now = json.loads(path.read_text())
    assert "hideThinkingBlock" not in now and "retry" not in now and now["theme"] == "dark"
    path.write_text(json.dumps(now | {"defaultModel": "mine"}))
    done = sync(place, PI, Served("r3", SECOND), BINDING)
    assert done.kept == ["settings.json: defaultModel"] and json.loads(path.read_text())["defaultModel"] == "mine"
    assert uninstall(place).kept == ["config/settings.json"]
    assert json.loads(path.read_text()) == {
        "quietStartup": False, "theme": "dark", "lastChangelogVersion": "1.6.0", "defaultModel": "mine",
    }  # fmt: skip


def test_settings_that_are_no_json_any_more_are_the_users(place: Place) -> None:
    sync(place, PI, Served("r0", FIRST), BINDING)
    path = place.config / "settings.json"
    path.write_text("// mine\n{}")
    done = sync(place, PI, Served("r0", FIRST), Binding(BINDING.url, BINDING.token, "work", "m-2"))
    assert done.kept == ["settings.json"] and path.read_text() == "// mine\n{}"
    assert json.loads((place.config / "settings.json.reef-new").read_text())["defaultModel"] == "m-2"
    uninstall(place)
    assert path.read_text() == "// mine\n{}"


def test_uninstall_leaves_nothing_where_nobody_else_wrote(place: Place) -> None:
    sync(place, PI, Served("r0", FIRST), BINDING)
    assert uninstall(place).kept == []
    assert not place.root.exists() and not place.root.parent.exists()


def test_a_file_that_was_lost_is_written_again(place: Place) -> None:
    sync(place, PI, Served("r0", FIRST), BINDING)
    (place.config / "models.json").unlink()
    assert edits(place) == ["models.json"]
    assert sync(place, PI, Served("r0", FIRST), BINDING).written == ["models.json"]


@pytest.mark.parametrize("link", ["config", "config/skills", "config/skills/tidy", "config/AGENTS.md", "../work"])
def test_nothing_is_written_through_a_link(place: Place, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = place.agents / "pi" / "work" if link == "../work" else place.root / link
    path.parent.mkdir(parents=True)
    path.symlink_to(outside if link != "config/AGENTS.md" else outside / "new.md")
    with pytest.raises(Conflict, match="is a link"):
        sync(place, PI, Served("r0", FIRST), BINDING)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "", ".", "a/b", "-x"])
def test_a_place_is_never_outside(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest):
        Place(tmp_path, "pi", name)
    with pytest.raises(BadRequest):
        Place(tmp_path, name, "work")


@pytest.mark.parametrize("fails_at", range(1, 11))
def test_a_crash_in_the_middle_loses_nobodys_text(place: Place, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    """What had been written before it is known as ours afterwards, also when the release has moved on."""
    sync(place, PI, Served("r0", FIRST), BINDING)
    writes, replace = 0, os.replace

    def failing(source: Path, target: Path) -> None:
        nonlocal writes
        writes += 1
        if writes == fails_at:
            raise OSError("power cut")
        replace(source, target)

    third = SECOND.edit([Put(Entry("rules", "base", "Be third.\n")), Put(Entry("agent_command", "fix", "Fix.\n"))])
    other = Binding(BINDING.url, BINDING.token, "work", "m-2")
    monkeypatch.setattr(os, "replace", failing)
    with contextlib.suppress(OSError):
        sync(place, PI, Served("r1", third), other)
    monkeypatch.setattr(os, "replace", replace)
    last = Binding(BINDING.url, BINDING.token, "work", "m-3")
    done = sync(place, PI, Served("r2", SECOND), last)
    assert json.loads((place.config / "settings.json").read_text())["defaultModel"] == "m-3"
    assert done.kept == [] and (place.config / "AGENTS.md").read_text() == "Be exact.\n"
    assert not (place.config / "prompts").exists() and uninstall(place).kept == []


def test_which_install_is_meant(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    with pytest.raises(NotFound, match="pi is not installed"):
        chosen(agents, "pi", None)
    for name in ("a", "b"):
        sync(Place(agents, "pi", name), PI, Served("r0", FIRST), BINDING)
    assert chosen(agents, "pi", "b").scenario == "b"
    with pytest.raises(Conflict, match="installed for a, b") as unclear:
        chosen(agents, "pi", None)
    assert "REEF_SCENARIO=a" in unclear.value.hint
    with pytest.raises(NotFound, match="for scenario 'c'"):
        chosen(agents, "pi", "c")


def test_where_agents_lie() -> None:
    assert agents_dir({"REEF_HOME": "/x/y"}) == Path("/x/y/agents")
    assert agents_dir({}).name == "agents"


# -- programs, with a stand-in for npm


def fake(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_what_npm_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claude, tools = adapter("claude"), tmp_path / "bin"
    fake(tools, "nothing", "exit 0")
    monkeypatch.setenv("PATH", str(tools))
    quiet = lambda *_: None  # noqa: E731
    with pytest.raises(NotInstalled, match="npm is needed") as missing:
        ensure(tmp_path / "agents", claude, quiet)
    assert missing.value.code == "no_npm" and "minimal" in missing.value.hint
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    for text, code, said in (
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "offline", "could not reach its registry"),
        ("echo 'npm error 404 Not Found' >&2; exit 1", "program_not_installed", "404 Not Found"),
        ("exit 0", "program_not_installed", "does not start"),
        (
            'mkdir -p "$3/node_modules/.bin"; printf "#!/bin/sh\\necho wrong libc; exit 7" > "$3/node_modules/.bin/claude";'
            'chmod +x "$3/node_modules/.bin/claude"',
            "program_fails",
            "wrong libc",
        ),
    ):
        fake(tools, "npm", text)
        with pytest.raises(NotInstalled, match=said) as failed:
            ensure(tmp_path / "agents", claude, quiet)
        assert failed.value.code == code
        assert [path.name for path in (tmp_path / "agents" / "programs").iterdir()] == [".lock"], "nothing is left half"
        with pytest.raises(NotInstalled, match="is not there") as absent:
            start_of(tmp_path / "agents", claude)
        assert absent.value.hint == "reef harness install claude"


def test_npm_works_in_a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    fake(
        tools,
        "npm",
        'touch "$HOME/.npmrc-written" "$npm_config_cache"; mkdir -p "$XDG_CONFIG_HOME/opencode" "$3/node_modules/.bin"\n'
        'printf "#!/bin/sh\\necho 1" > "$3/node_modules/.bin/claude"; chmod +x "$3/node_modules/.bin/claude"',
    )
    home = tmp_path / "home"
    home.mkdir()
    (home / ".npmrc").write_text("registry=http://127.0.0.1:9/\n")
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("REEF_NPM_CACHE", raising=False)
    killed = tmp_path / "agents" / "programs" / ".new-abc"
    killed.mkdir(parents=True)
    seen: list[str] = []
    assert ensure(tmp_path / "agents", adapter("claude"), lambda stage, done, total: seen.append(stage))
    assert seen[0].startswith("installing @anthropic-ai/claude-code@")
    assert not ensure(tmp_path / "agents", adapter("claude"), lambda *_: None), "once"
    assert [path.name for path in home.iterdir()] == [".npmrc"]
    assert program.own_home(tmp_path)["npm_config_userconfig"] == str(home / ".npmrc"), "its registry is the user's"
    assert sorted(path.name for path in (tmp_path / "agents" / "programs").iterdir()) == [".lock", "claude-2.1.332"]


def test_a_node_that_is_too_old_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "bin", "node", "echo v20.20.2")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert find_node(tmp_path, "18.0.0") == str(tmp_path / "bin" / "node")
    assert find_node(tmp_path, "20.20.3") is None
    ours = tmp_path / "programs" / f"node-{program.NODE_VERSION}" / "node_modules" / "node" / "bin"
    ours.mkdir(parents=True)
    fake(ours, "node", "echo v22")
    assert find_node(tmp_path, "22.19.0") == str(ours / "node")


def test_the_manifest_knows_no_token(place: Place) -> None:
    sync(place, PI, Served("r0", FIRST), BINDING)
    holding = [path.name for path in place.root.rglob("*") if path.is_file() and BINDING.token in path.read_text()]
    assert holding == [installs.BINDING]
