"""reef recipe new: every cell of the grid is complete as it stands, and nothing that exists is touched."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reef.authoring.cells import SURFACES, WORKS, Cell
from reef.authoring.check import check
from reef.authoring.facts import facts
from reef.authoring.scaffold import package, write
from reef.authoring.subject import named
from reef.launch import spawn, stop, wait_ready
from tests.cli.test_cli import Ran, reef, refused, schema
from tests.faults.world import ROOT

CELLS = {
    f"{surface[0]}_{work}_{'kept' if stateful else 'plain'}": Cell(surface, work, stateful)
    for surface in SURFACES
    for work in WORKS
    for stateful in (False, True)
    if not (stateful and surface == "nothing")
}
LONG = "a_name_of_just_thirty_two_chars_"


@dataclass(frozen=True)
class Made:
    """A folder with a package of every cell."""

    folder: Path

    def yaml(self, name: str) -> Path:
        return self.folder / name / "serve.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("grid")
    for name, cell in CELLS.items():
        write(folder / name, package(name, cell, folder))
    write(folder / LONG, package(LONG, CELLS["w_research_kept"], folder))
    yield Made(folder)
    sys.path[:] = [one for one in sys.path if one != str(folder)]


def tool(folder: Path, *words: str, **environ: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_their_tests_pass_at_once(made: Made) -> None:
    said = tool(made.folder, "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio", ".")
    assert "passed" in said and "skipped" not in said


def test_they_are_clean_and_typed(made: Made) -> None:
    ruff = str(Path(sys.executable).parent / "ruff")
    rules = "A,ANN,ASYNC,B,C4,E,F,I,N,PIE,PT,RET,RUF,SIM,TID,UP,W"
    select = ("--isolated", "--no-cache", "--line-length", "120")
    extend = ("--config", 'lint.flake8-bugbear.extend-immutable-calls=["reef.config.knob"]')
    for words in (
        ("check", *select, *extend, "--select", rules, "--ignore", "RUF009,ANN401"),
        ("format", *select, "--check"),
    ):
        ran = subprocess.run([ruff, *words, "."], cwd=made.folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    tool(ROOT, "mypy", str(made.folder), MYPYPATH=str(made.folder))  # by our own strict settings, with what they know


@pytest.mark.parametrize("name", CELLS)
def test_each_says_its_cell_and_keeps_every_rule(made: Made, name: str) -> None:
    cls, config = named(None, made.yaml(name), os.environ)
    said, cell = facts(cls), CELLS[name]
    assert (said["surface"], said["work"], said["stateful"]) == (cell.surface, cell.work, cell.stateful)
    assert said["summary"] and cls.__dict__["name"] == name
    report = check(cls, config, seed=5, examples=8, environ={})
    assert [one for one in report.findings if one.state != "ok"] == []


@pytest.mark.parametrize("name", ["w_chat_kept", "h_research_kept", "n_stream_plain"])
def test_each_surface_boots_from_anywhere(
    made: Made, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if CELLS[name].surface == "weights":
        monkeypatch.setenv("REEF_MODEL_PATH", str(request.getfixturevalue("tiny_model")))
    else:
        monkeypatch.setenv("REEF_UPSTREAM_URL", "http://127.0.0.1:1/v1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    home = tmp_path / "home"
    child = spawn(home, {"reef.port": "0"}, config=made.yaml(name))
    try:
        found = wait_ready(child, home, 120)
        assert found["settings"]["reef.recipe"].startswith(f"{name}.recipe:")
        assert schema(reef(home, "scenarios", "new", "s", "--json"), "scenario")
        assert schema(reef(home, "status", "--json"), "status")["scenarios"][0]["recipe"] == name
    finally:
        stop(home, 60)
        child.wait(60)


# -- as a person types it


def new(folder: Path, *words: str) -> Ran:
    return reef(folder / "home", "recipe", "new", "--into", str(folder), *words)


def test_a_dry_run_shows_what_would_be_written_and_writes_nothing(tmp_path: Path) -> None:
    shown = schema(new(tmp_path, "plain", "--yes", "--dry-run", "--json"), "recipe_new")
    assert not shown["written"] and list(tmp_path.iterdir()) == []
    told = new(tmp_path, "plain", "--yes")
    assert told.code == 0 and "weights, stream of tasks, stateless" in told.err
    for path, text in shown["files"].items():
        assert (tmp_path / "plain" / path).read_text(encoding="utf-8") == text
    assert "EDIT" in (tmp_path / "plain" / "processor.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("class", 2, "a word of Python"), ("json", 2, "hide a module of Python's library"), ("typer", 2, "an installed package"),
        ("grpo", 2, "there is a recipe 'grpo' already"), ("My-Recipe", 2, "for example: my_recipe"), ("2fast", 2, "fast"),
        ("é", 2, "no name of a package"), ("../up", 2, "no name of a package"), ("a" * 40, 2, "longer than 32"),
        ("there", 1, "exists, and nothing is written over"), ("linked", 1, "exists"),
    ],
)  # fmt: skip
def test_a_bad_name_is_refused_with_a_better_one(tmp_path: Path, name: str, code: int, said: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())
    refused(new(tmp_path, name, "--yes"), code, said)
    assert sorted(tmp_path.iterdir()) == before


def test_without_a_terminal_the_flags_are_named(tmp_path: Path) -> None:
    refused(new(tmp_path, "mine", "--surface", "weights"), 2, "--surface, --work and --stateful or --stateless")
    refused(new(tmp_path, "mine", "--surface", "wights", "--yes"), 2, "it is one of: weights, harness, nothing")
    refused(new(tmp_path, "mine", "--surface", "nothing", "--work", "chat", "--stateful"), 2, "makes no steps")
    assert list(tmp_path.iterdir()) == []


def asked(folder: Path, keys: bytes) -> tuple[int, str]:
    """Answer the questions on a terminal; returns the exit code and what was shown."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "reef.cli.main", "recipe", "new", "mine", "--into", str(folder)]
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}, preexec_fn=_own_terminal,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    answers = [keys[at : at + 1] for at in range(len(keys))]
    try:
        while part := os.read(ours, 4096):
            shown += part
            while answers and shown.rstrip().endswith(b"]:"):
                answer = answers.pop(0)
                os.write(ours, answer if answer == b"\x03" else answer + b"\n")
                shown += os.read(ours, 4096)
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    return child.wait(30), shown.decode("utf-8", "replace")


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_questions_explain_themselves_and_take_a_number_a_word_or_nothing(tmp_path: Path) -> None:
    code, shown = asked(tmp_path, b"hx2\n")
    assert code == 0, shown
    assert "rules and skills of an agent get better" in shown and "'x' is none of them" in shown
    assert "harness, chat session, stateless" in shown
    assert (tmp_path / "mine" / "propose.py").is_file()


def test_ctrl_c_at_a_question_leaves_nothing(tmp_path: Path) -> None:
    code, shown = asked(tmp_path, b"w\x03")
    assert code == 130 and shown.rstrip().endswith("interrupted"), shown
    assert list(tmp_path.iterdir()) == []


def test_a_package_in_a_package_is_called_by_its_whole_name(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "__init__.py").touch()
    assert new(tmp_path / "outer", "inner", "--yes").code == 0
    yaml = tmp_path / "outer" / "inner" / "serve.yaml"
    assert "outer.inner.recipe:InnerRecipe" in yaml.read_text(encoding="utf-8")
    assert reef(tmp_path, "recipe", "check", "-c", str(yaml), "--examples", "3").code == 0
    shutil.rmtree(tmp_path / "outer")
