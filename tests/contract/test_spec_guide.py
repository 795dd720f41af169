"""The code of the contract's own guide runs unchanged against this package (two modules, two test files)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SPEC = Path(__file__).parents[3] / "shared" / "spec" / "write-a-recipe.txt"
START = re.compile(r"# ((?:my_pkg|tests)/\w+\.py)( \(continued\))?$")

pytestmark = pytest.mark.skipif(not SPEC.exists(), reason="the contract's documents are not beside this checkout")


def code_blocks(text: str) -> dict[str, str]:
    """Files by path; a block is the longest run of lines from its header that is valid Python."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if START.match(line)]
    files: dict[str, str] = {}
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        block = lines[start:stop]
        while block:
            try:
                compile("\n".join(block), "guide", "exec")
                break
            except SyntaxError:
                block.pop()
        match = START.match(lines[start])
        assert match and block
        files[match[1]] = files.get(match[1], "") + "\n".join(block) + "\n\n"
    return files


def test_the_guides_modules_and_tests_run(tmp_path: Path) -> None:
    files = code_blocks(SPEC.read_text(encoding="utf-8"))
    assert set(files) == {
        "my_pkg/weighted_sft.py",
        "my_pkg/relative_sft.py",
        "tests/test_weighted_sft.py",
        "tests/test_relative_sft.py",
    }
    for name, code in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(code, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
