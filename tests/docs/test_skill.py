"""The skill has the format of agentskills.io: front matter with a name like its folder, and a description that fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
KNOWN = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_the_format(path: Path) -> None:
    _, front, text = path.read_text(encoding="utf-8").split("---\n", 2)
    said = yaml.safe_load(front)
    assert set(said) <= KNOWN and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", said["name"])
    assert said["name"] == path.parent.name and len(said["name"]) <= 64
    assert 0 < len(said["description"]) <= 1024 and len(said.get("compatibility", "")) <= 500
    assert len(text.splitlines()) < 200


def test_there_is_one() -> None:
    assert SKILLS
