"""placeholder"""

from __future__ import annotations
from pathlib import Path


def usable_folder(model_path: Path, cache: Path) -> Path:
    return model_path
