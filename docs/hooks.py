"""What MkDocs does to the pages on their way into the site; on GitHub they are read as they are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)\s]+)\)")
_FETCHED = re.compile(r"https://(?:unpkg\.com|api\.github\.com|gitlab\.com)/[^\"'`]*")


def _named(link: re.Match[str]) -> str:
    """A file that is no page is named by its path in the source."""
    text, path = link[1].strip("`"), link[2].rstrip("/")
    return f"`{path}`" if path.endswith(text) or text.endswith(path) else f"{link[1]} (`{path}`)"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of docs/ lead nowhere in a site."""
    return _OUTSIDE.sub(_named, markdown)


def on_post_build(config: Any) -> None:
    """The pages as text beside the site's, for who reads llms.txt; and a theme that can fetch nothing from elsewhere."""
    site = Path(config["site_dir"])
    for page in Path(config["docs_dir"]).glob("*.md"):
        shutil.copy(page, site)
    for script in (site / "assets" / "javascripts").glob("*.js"):
        script.write_text(_FETCHED.sub("", script.read_text(encoding="utf-8")), encoding="utf-8")
    for source in (site / "assets").rglob("*.map"):
        source.unlink()
