"""Writes the package of a new recipe: small templates, one set a surface, chosen by the cell of the grid.

Knows nothing of questions or terminals. Called by ``reef recipe new``; nothing that exists is ever written over.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from reef.authoring.cells import EDIT, SUMMARY, USE, WHAT, Cell
from reef.errors import BadRequest, Conflict, ReefError
from reef.recipes.registry import recipe_sources

_LONGEST = 32
_FILES = {
    "recipe.py": "the recipe class: knobs, and what belongs together",
    "processor.py": "which traffic is used, and how it becomes a batch",
    "preparer.py": "what a batch means for the model",
    "propose.py": "how a change of the harness is made",
    "steps.py": "what a step remembers",
    "tasks/": "what a change is compared on",
    "serve.yaml": "the deployment",
    "records.py": "records for the tests",
    "test_recipe.py": "the whole path, without a model",
    "test_preparer.py": "the numbers",
    "test_propose.py": "the change",
    "test_steps.py": "what is remembered",
}


def check_name(name: str, into: Path) -> None:
    """Raise BadRequest or Conflict when ``name`` cannot be a package in ``into``."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        made = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").lstrip("0123456789_")
        hint = f"for example: {made}" if made else "for example: my_recipe"
        raise BadRequest(f"{name!r} is no name of a package: lower-case letters, digits and _", hint=hint, field="name")
    if len(name) > _LONGEST:
        raise BadRequest(f"{name!r} is longer than {_LONGEST} characters", hint="give a shorter one", field="name")
    if keyword.iskeyword(name):
        raise BadRequest(f"{name!r} is a word of Python itself", hint=f"for example: {name}_recipe", field="name")
    if name in sys.stdlib_module_names:
        raise BadRequest(
            f"{name!r} would hide a module of Python's library", hint=f"for example: {name}_recipe", field="name"
        )
    if any(source.kind == name for source in recipe_sources()):
        raise BadRequest(f"there is a recipe {name!r} already (reef recipe list)", hint=f"for example: my_{name}")
    target = into / name
    if target.exists() or target.is_symlink():
        raise Conflict(f"{target} exists, and nothing is written over", hint="give another name, or --into DIR")
    if importlib.util.find_spec(name) is not None:
        raise BadRequest(
            f"{name!r} would hide an installed package, or be hidden by it",
            hint=f"for example: my_{name}",
            field="name",
        )


def package(name: str, cell: Cell, into: Path) -> dict[str, str]:
    """The files of a new recipe by their path below ``into``/``name``."""
    surface, work = cell.surface, cell.work
    state = "stateful" if cell.stateful else "stateless"
    tests = "stream" if surface == "nothing" and work != "chat" else work
    chosen = {"recipe.py": f"{surface}/recipe", "serve.yaml": f"{surface}/serve.yaml", "records.py": "records"}
    chosen["test_recipe.py"] = f"{surface}/test_recipe_{tests}"
    if surface == "weights":
        chosen |= {"recipe.py": f"weights/recipe_{work}", "processor.py": f"weights/processor_{work}"}
        chosen |= {"preparer.py": f"weights/preparer_{state}", "test_preparer.py": f"weights/test_preparer_{state}"}
    elif surface == "harness":
        chosen |= {"propose.py": "harness/propose", "test_propose.py": "harness/test_propose"}
        chosen |= {"tasks/sum/check.py": "harness/tasks_check", "tasks/sum/prompt.md": "harness/tasks_prompt.md"}
        if work != "stream":
            chosen["processor.py"] = f"harness/processor_{work}"
        if cell.stateful:
            chosen |= {"steps.py": "harness/steps", "test_steps.py": "harness/test_steps"}
    words = _words(name, cell, into)
    made = {"__init__.py": f'"""{name}: {words["summary"]}."""\n'}
    made |= {path: _filled(template, words) for path, template in chosen.items()}
    listed = [part for part in _FILES if part in made or any(path.startswith(part) for path in made)]
    words["files"] = "\n".join(f"| `{part}` | {_FILES[part]} |" for part in listed)
    return {"README.md": _filled("README.md", words), **made}


def write(folder: Path, made: Mapping[str, str]) -> None:
    """Make ``folder`` with these files, or nothing at all; raises Conflict when it is there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        raise Conflict(
            f"{folder} exists, and nothing is written over", hint="give another name, or --into DIR"
        ) from None
    try:
        for path, text in made.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except BaseException:  # Ctrl-C or a full disk: half a package is worse than none
        shutil.rmtree(folder, ignore_errors=True)
        raise


def dotted_name(name: str, into: Path) -> str:
    """What ``name`` is imported as: with the packages around it, when ``into`` lies in one."""
    parts, base = [name], into.absolute()
    while (base / "__init__.py").is_file():
        parts.insert(0, base.name)
        base = base.parent
    return ".".join(parts)


def _words(name: str, cell: Cell, into: Path) -> dict[str, str]:
    dotted, summary = dotted_name(name, into), SUMMARY[cell.surface, cell.work]
    camel = "".join(part.capitalize() for part in name.split("_"))
    camel = camel.removesuffix("Recipe") or camel
    words = {
        "name": name,
        "dotted": dotted,
        "camel": camel,
        "env": name.upper(),
        "summary": summary,
        "work": cell.work,
        "stateful": str(cell.stateful),
        "what": f"{WHAT[cell.surface]} Cell of the grid: {cell.words}.",
        "use": "\n".join(f"    {line}" for line in USE[cell.surface, cell.work]),
        "edit": "\n".join(f"* {Template(line).substitute(name=name)}" for line in EDIT[cell.surface]),
        "settings": _SETTINGS[cell.surface, cell.work],
        "schema": _SCHEMAS[cell.work],
    }
    return words | (_harness_words(camel, cell) if cell.surface == "harness" else {})


def _harness_words(camel: str, cell: Cell) -> dict[str, str]:
    """What the harness's recipe class imports and binds beside evolve's."""
    imports = ["from reef.recipes import EvolveRecipe, knob"]
    own, bindings, knobs = [], [], ""
    if cell.work != "stream":
        bindings.append(f'    work: ClassVar[str] = "{cell.work}"')
    bindings.append(f"    stateful: ClassVar[bool] = {cell.stateful}")
    if cell.work == "chat":
        imports.insert(0, "from reef.core.reports import ReportSchema")
        bindings.append("    report_schema: ClassVar[ReportSchema | None] = None")
        bindings.append('    needs: ClassVar[tuple[str, ...]] = ("tasks",)')
        bindings.append("    takes_requests: ClassVar[bool] = False")
        knobs = '    turns: int = knob(2, "calls of a session that are judged together", gt=0)\n'
    if cell.work == "research":
        knobs = (
            '    batch_size: int = knob(4, "runs per step, a multiple of group_size", gt=0)\n'
            '    group_size: int = knob(4, "runs of a round", gt=0)\n'
            '    learn_from: str = knob("all", "all: every run of a round; failed: only those", choices=("failed", "all"))\n'
        )
    if cell.stateful:
        imports += ["from reef.evolve.backend import LocalTrainingBackend", "from reef.train.loop import Prepare"]
        own.append(f"from .steps import {camel}Backend, prepare_step")
        bindings.append(f"    backend: ClassVar[type[LocalTrainingBackend]] = {camel}Backend")
        bindings.append("    prepare_step: ClassVar[Prepare] = staticmethod(prepare_step)")
    if cell.work != "stream":
        imports.append("from reef.train.processors.base import DataProcessor")
        own.insert(0, f"from .processor import {camel}Processor")
        bindings.append(f"    processor: ClassVar[type[DataProcessor]] = {camel}Processor")
    lines = sorted(imports) + (["", *own] if own else [])
    return {"imports": "\n".join(lines) + "\n", "bindings": "\n".join(bindings), "knobs": knobs}


_SETTINGS = {
    ("weights", "stream"): "  min_score: 0.0",
    ("weights", "chat"): "  turns: 2",
    ("weights", "research"): "  group_size: 4",
    ("harness", "stream"): "  batch_size: 1          # failed runs per step",
    ("harness", "chat"): "  batch_size: 1          # failed pieces per step\n  turns: 2",
    ("harness", "research"): "  batch_size: 4          # runs per step\n  group_size: 4",
    ("nothing", "stream"): "",
    ("nothing", "chat"): "",
    ("nothing", "research"): "",
}
_SCHEMAS = {
    "stream": '    report_schema: ClassVar[ReportSchema | None] = ReportSchema(score="required", low=0.0, high=1.0)\n'
    '    """EDIT: what a report must hold; others are refused when they come."""',
    "chat": "    report_schema: ClassVar[ReportSchema | None] = None\n"
    '    """EDIT: what a report must hold; None: there are none, the sessions say how it went."""',
    "research": '    report_schema: ClassVar[ReportSchema | None] = ReportSchema(score="required")\n'
    '    """EDIT: what a report must hold; others are refused when they come. Rounds are named in metadata.group."""',
}


def _filled(template: str, words: Mapping[str, str]) -> str:
    suffix = "" if "." in template.rpartition("/")[2] else ".py"
    text = (files("reef.authoring") / "templates" / f"{template}{suffix}.tmpl").read_text(encoding="utf-8")
    try:
        return Template(text).substitute(words)
    except (KeyError, ValueError) as error:
        raise ReefError(f"template {template}: {error}") from error
