"""Every code that an error or a refused report can have stands on the page of troubles, in its table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from reef import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = {code for row in re.findall(r"^\| (`.*?) \|", PAGE, flags=re.M) for code in re.findall(r"`(\w+)`", row)}


def trees() -> Iterator[ast.AST]:
    for path in sorted((ROOT / "reef").rglob("*.py")):
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def words(node: ast.AST) -> Iterator[str]:
    """The text of a constant, also of one behind a condition."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*words(node.body), *words(node.orelse))


def pairs(node: ast.Assign) -> Iterator[tuple[ast.AST, ast.AST]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def raised() -> set[str]:
    """Codes given where an error is made, and those of the classes of errors."""
    found: set[str] = set()
    for node in trees():
        if isinstance(node, ast.keyword) and node.arg == "code":
            found |= set(words(node.value))
        elif isinstance(node, ast.ClassDef):
            for line in (one for one in node.body if isinstance(one, ast.Assign)):
                for name, value in pairs(line):
                    if isinstance(name, ast.Name) and name.id == "code":
                        found |= set(words(value))
    return found


def refused() -> set[str]:
    """Codes that the bundled processors refuse reports with."""
    found: set[str] = set()
    for node in trees():
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "never"
            and node.args
        ):
            found |= set(words(node.args[0]))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_refuse":
            for given in node.args[1:2]:
                text = given.values[0] if isinstance(given, ast.JoinedStr) else given
                found |= {one.partition(":")[0] for one in words(text)}
    return found - {"code"}


def test_every_class_of_errors_is_on_the_page() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.ReefError)]
    assert len(classes) > 10
    assert {one.code for one in classes} <= ROWS


def test_every_code_is_on_the_page() -> None:
    found = raised()
    assert len(found) > 60 and "no_mcp" in found and "recipe_bug" in found
    assert found <= ROWS, f"docs/troubleshooting.md has no row for {sorted(found - ROWS)}"


def test_every_reason_of_a_refused_report_is_on_the_page() -> None:
    found = refused()
    assert len(found) > 8 and "wait_timeout" in found
    assert found <= ROWS, f"docs/troubleshooting.md has no row for {sorted(found - ROWS)}"


def test_the_page_explains_no_code_that_is_gone() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "reef").rglob("*.py")))
    made = {"inference_incomplete", "inference_aborted", "inference_failed", "upstream_401", "store_unwritable"}
    assert not {code for code in ROWS - made if not re.search(rf"\b{code}\b", source)}
