"""reef config: every value with its origin, every key explained, and a file that an editor cannot break."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.cli.test_cli import reef, refused, schema


def editor(tmp_path: Path, text: str | None) -> str:
    """An editor that puts ``text`` into the file, or, with None, leaves it."""
    path = tmp_path / "editor.py"
    path.write_text(f"import sys\ntext = {text!r}\nif text is not None:\n    open(sys.argv[1], 'w').write(text)\n")
    return f"{sys.executable} {path}"


def test_each_value_says_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("reef:\n  upstream_url: http://127.0.0.1:9\n  log_level: debug\n")
    environ = {"REEF_PORT": "8123", "REEF_LOG_LEVEL": "error"}
    rows = schema(reef(tmp_path, "config", "show", "-c", str(file), "--json", **environ), "config")
    assert rows["reef.log_level"] == {"value": "debug", "origin": "serve.yaml:3"}
    assert rows["reef.port"] == {"value": 8123, "origin": "env REEF_PORT"}
    assert rows["reef.host"]["origin"] == "default"
    shown = reef(tmp_path, "config", "show", "-c", str(file), "--origin", **environ).out
    assert any(line.split() == ["reef.log_level", "debug", "serve.yaml:3"] for line in shown.splitlines())


def test_every_key_is_explained(tmp_path: Path) -> None:
    rows = schema(reef(tmp_path, "config", "keys", "--json"), "keys")
    assert all(row["help"] for name, row in rows.items() if name != "schema")
    assert "grpo" in rows["reef.group_size"]["recipes"] and rows["training.seed"]["env"] == "REEF_TRAINING_SEED"
    found = schema(reef(tmp_path, "config", "explain", "port", "--json"), "key")
    assert (found["name"], found["default"], found["env"]) == ("reef.port", 8900, "REEF_PORT")
    assert "REEF_PORT" in reef(tmp_path, "config", "explain", "reef.port").out
    refused(reef(tmp_path, "config", "explain", "prot"), 4, "no key 'prot'", "did you mean reef.port?")


def test_a_file_is_saved_only_when_it_is_right(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    words = ("config", "edit", "-c", str(file))
    right = "reef:\n  port: 8123\n"
    begun = schema(reef(tmp_path, *words, "--json", EDITOR=editor(tmp_path, right)), "edit")
    assert begun["changed"] and file.read_text() == right
    file.chmod(0o600)
    assert not schema(reef(tmp_path, *words, "--json", EDITOR=editor(tmp_path, None)), "edit")["changed"]
    wrong = "reef:\n  prot: 1\n"
    for more in ((), ("--json",)):
        ran = reef(tmp_path, *words, *more, EDITOR=editor(tmp_path, wrong))
        refused(ran, 2, "serve.yaml:2: unknown key reef.prot", "is as it was")
        assert file.read_text() == right
    (draft,) = {path for path in tmp_path.glob(".serve.*.yaml") if path.name in ran.err}
    assert draft.read_text() == wrong, "what was written is not lost"
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    other = "reef:\n  port: 8124\n"
    assert reef(tmp_path, "config", "edit", "-c", str(link), EDITOR=editor(tmp_path, other)).code == 0
    assert link.is_symlink() and file.read_text() == other and file.stat().st_mode & 0o777 == 0o600


def test_an_editor_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("reef:\n  port: 1\n")
    for name, said in (
        ("false", "ended with 1"),
        ("no-such-editor-here", "cannot be started"),
        ("'", "cannot be started"),
    ):
        refused(reef(tmp_path, "config", "edit", "-c", str(file), VISUAL=name), 1, said)
        assert [path.name for path in tmp_path.iterdir()] == ["serve.yaml"]
    refused(reef(tmp_path, "config", "edit", EDITOR="true"), 2, "which file?", "-c serve.yaml")
    refused(reef(tmp_path, "config", "edit", "-c", str(file), EDITOR="", VISUAL=""), 2, "no editor is named", "EDITOR")
    error = json.loads(reef(tmp_path, "config", "edit", "--json").err)["error"]
    assert error["code"] == "bad_request"
