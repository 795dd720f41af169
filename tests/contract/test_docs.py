"""Docs that a change could make untrue: the configuration page, the straight line, the recipe guide's code."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = re.compile(r"`(reef/[\w/]+\.py)(?::([\w.]+))?`")


MADE = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]


@pytest.mark.parametrize("page", MADE)
def test_what_is_made_from_the_code_is_up_to_date(page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == MADE[page](), "run: python docs/generate.py"


def _names(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            found |= {
                f"{node.name}.{one.name}"
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def test_every_function_on_the_straight_line_exists() -> None:
    references = REFERENCE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(references) > 25
    for file, name in references:
        assert (ROOT / file).is_file(), file
        assert not name or name in _names(ROOT / file), f"{file}:{name}"


def test_the_layout_is_the_one_agreed_on() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    top = {path.split("/")[0] for path in listed if path and not path.startswith(".")}
    folders = {"reef", "recipes", "harness_adapters", "examples", "tests", "docs", "benchmarks", "skills"}
    files = {
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        "README.md",
        "LICENSE",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
    }
    assert top <= folders | files, top - folders - files


def test_the_layers_hold() -> None:
    ran = subprocess.run([str(Path(sys.executable).parent / "lint-imports")], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def code_blocks(text: str) -> dict[str, str]:
    """Python files of a guide by the path in each block's first line; blocks of one file are joined."""
    files: dict[str, str] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.S):
        match = re.match(r"# ([\w/]+\.py)", block)
        assert match, f"a block does not name its file: {block[:60]}"
        files[match[1]] = files.get(match[1], "") + block + "\n\n"
    return files


def test_the_recipe_guide_runs(tmp_path: Path) -> None:
    files = code_blocks((ROOT / "docs" / "write-a-recipe.md").read_text(encoding="utf-8"))
    assert len(files) >= 2
    for name, code in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(code, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "module", ["reef.core", "reef.client", "reef.cli.main", "reef.cli.app", "reef.daemon.app", "reef.recipes"]
)
def test_importing_is_cheap(module: str) -> None:
    """Nothing heavy is imported where it is not needed (R7)."""
    heavy = ["torch", "transformers", "textual", "numpy", "gguf"]
    if module in ("reef.cli.main", "reef.cli.app", "reef.client"):
        heavy += ["starlette", "uvicorn", "aiohttp"]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_test_the_table_of_cases_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "tests" / "README.md").read_text(encoding="utf-8"))
    assert len(named) > 50
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file} has no {test}"
