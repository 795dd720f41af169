"""Makes the pictures of the docs: of the dashboard from its recorded data, the same bytes every time, and of a real run.

python -m docs.pictures               docs/dashboard-*.svg
python -m docs.pictures run.txt       docs/demo.svg, from what was printed: reef demo 2>&1 | tee run.txt
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import sys
import time
from pathlib import Path

DOCS = Path(__file__).parent
TABS = {"overview": "1", "releases": "2", "training": "4", "harness": "5"}
SIZE = (120, 32)


def plain(svg: str) -> str:
    """A picture that loads no font from elsewhere and has the same ids every time."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}\s*", "", svg)
    svg = svg.replace("Fira Code", "ui-monospace")
    found = re.search(r"terminal-\d+", svg)
    return re.sub(r"[ \t]+$", "", svg.replace(found[0], "terminal") if found else svg, flags=re.M).strip() + "\n"


async def dashboard(name: str) -> str:
    """One tab, once nothing more is being read."""
    from tests.tui.screens import app_of, settled

    app = app_of()
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press(TABS[name])
        await settled(pilot)
        return plain(app.export_screenshot(title="reef tui --demo"))


def all_of_them() -> dict[str, str]:
    """Every picture of the dashboard by its file."""
    os.environ |= {"TZ": "UTC", "REEF_HOME": "/home/me/.reef", "TEXTUAL_ANIMATIONS": "none", "LC_ALL": "C.UTF-8"}
    os.environ.pop("NO_COLOR", None)
    time.tzset()
    return {f"dashboard-{name}.svg": asyncio.run(dashboard(name)) for name in TABS}


def run(text: str) -> str:
    """A terminal that shows this text."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=100, file=io.StringIO())
    console.print(Text.from_ansi(f"$ reef demo\n{text.rstrip()}"))
    return plain(console.export_svg(title="reef demo"))


if __name__ == "__main__":
    made = {"demo.svg": run(Path(sys.argv[1]).read_text(encoding="utf-8"))} if sys.argv[1:] else all_of_them()
    for file, picture in made.items():
        (DOCS / file).write_text(picture, encoding="utf-8")
