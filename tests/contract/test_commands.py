"""What every command owes its user: an example, a page of the docs, --json, a summary that is its own; and a quick start."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reef.cli.commands import SECTIONS, everything

ROOT = Path(__file__).parents[2]
COMMANDS = dict(everything())
LEAVES = {path: one for path, one in COMMANDS.items() if not hasattr(one, "list_commands")}
NO_JSON = {
    "mcp": "speaks MCP",
    "serve": "runs until it is stopped, and logs",
    "agent": "is the agent, and all its words are its own",
    "tui": "is a screen to look at; what it shows is in reef status and the lists",
}
NOT_NEEDED = ("torch", "transformers", "textual", "starlette", "uvicorn", "aiohttp", "numpy")
QUICK = (*NOT_NEEDED, "pydantic", "rich.markdown")


def options(command: Any) -> set[str]:
    return {name for one in command.params for name in one.opts}


def test_the_table_says_of_each_command_what_the_command_says() -> None:
    for rows in SECTIONS.values():
        for name, _, summary in rows:
            said = " ".join(COMMANDS[name].help.split())
            assert said.startswith(summary.rstrip(".")), name


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_has_an_example_and_a_page(path: str) -> None:
    epilog = LEAVES[path].epilog
    assert "Examples:\n  reef" in epilog, path
    page = re.search(r"^Docs: (\S+)$", epilog, flags=re.M)
    assert page is not None and (ROOT / page[1]).is_file()
    assert LEAVES[path].help.split(".")[0].strip(), path


def examples() -> list[str]:
    found = (re.findall(r"^  (reef .*)$", one.epilog or "", flags=re.M) for one in COMMANDS.values())
    return sorted({line for lines in found for line in lines})


@pytest.mark.parametrize("line", examples())
def test_every_example_can_be_typed(line: str) -> None:
    """Each command in it exists, and so does each of its options."""
    for typed in re.split(r"&&|\||>|&", line):
        words = shlex.split(typed)
        if words[:1] != ["reef"]:
            continue
        path = max((one for one in COMMANDS if f"{' '.join(words[1:])} ".startswith(f"{one} ")), key=len, default="")
        assert path, typed
        command = COMMANDS[path]
        if path in ("up", "serve", "agent", "service install"):  # they take keys, or words of somebody else
            continue
        known = options(command) | {"--help"}
        assert {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)} <= known, typed


@pytest.mark.parametrize("path", sorted(set(LEAVES) - set(NO_JSON)))
def test_every_command_has_json(path: str) -> None:
    assert {"--json", "--jsonl"} & options(LEAVES[path]), f"{path} prints nothing that a program can read"


def test_what_has_no_json_has_a_reason() -> None:
    assert set(NO_JSON) <= set(LEAVES) and not any("--json" in options(LEAVES[path]) for path in NO_JSON)


_HELP = """
import sys
from reef.cli.app import run
for path in {paths!r}:
    sys.argv = ["reef", *path.split(), "--help"]
    assert run() == 0
    heavy = [name for name in {heavy!r} if name in sys.modules]
    assert not heavy, (path, heavy)
"""


def test_no_help_loads_what_is_heavy() -> None:
    code = _HELP.format(paths=["", *COMMANDS], heavy=QUICK)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.count("Usage: reef") == len(COMMANDS) + 1


def test_the_first_help_loads_no_command() -> None:
    code = (
        "import sys; sys.argv = ['reef', '--help']\nfrom reef.cli.app import run\nassert run() == 0\n"
        "print(sorted(n for n in sys.modules if n.startswith(('reef.', 'rich', 'httpx', 'pydantic'))))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = ran.stdout.splitlines()[-1]
    assert loaded == "['reef.cli', 'reef.cli.app', 'reef.cli.commands', 'reef.errors']"
