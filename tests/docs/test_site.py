"""The site: it builds without a warning, and nothing in it is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?https?://|<link[^>]*\shref=["']?https?://|@import|url\(["']?https?://"""
)
FETCHED = re.compile(r"https?://(?:[\w.-]*unpkg|[\w.-]*jsdelivr|[\w.-]*cdnjs|fonts\.|api\.|gitlab\.com)[\w./-]*")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "--quiet", "--config-file", ".mkdocs.yml", "--site-dir", str(folder)]
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert ran.returncode == 0 and not ran.stdout + ran.stderr, ran.stdout + ran.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    files = [one for one in site.rglob("*") if one.suffix in (".html", ".css", ".js", ".svg")]
    assert len(files) > 30
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not LOADED.findall(text), path
        assert path.suffix != ".js" or not FETCHED.findall(text), path


def test_every_page_is_there_as_text_too(site: Path) -> None:
    pages = re.findall(r"\]\(([\w-]+)\.md\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(pages) > 10
    for page in pages:
        assert (site / f"{page}.html").is_file() and (site / f"{page}.md").is_file()
