"""A terminal that is the same everywhere: UTC, UTF-8, no animations, no colours switched off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual import constants


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("REEF_HOME", "/home/me/.reef")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(constants, "TEXTUAL_ANIMATIONS", "none")
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "UTF-8")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
