"""The pictures of the dashboard are those that the dashboard shows now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

MAKE = """
from docs.pictures import DOCS, all_of_them
print(*(name for name, picture in all_of_them().items() if (DOCS / name).read_text(encoding="utf-8") != picture))
"""


def test_they_are_up_to_date() -> None:
    ran = subprocess.run([sys.executable, "-c", MAKE], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and not ran.stdout.split(), f"run: python -m docs.pictures\n{ran.stdout}{ran.stderr}"
