"""Makes docs/demo.svg from what a real run printed: reef demo 2>&1 | tee run.txt; python docs/picture.py run.txt."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main() -> None:
    """Draw the text of a file as a terminal."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8").rstrip()
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(Text.from_ansi(f"$ reef demo\n{text}"))
    target = Path(__file__).parent / "demo.svg"
    target.write_text(console.export_svg(title="reef demo"), encoding="utf-8")


if __name__ == "__main__":
    main()
