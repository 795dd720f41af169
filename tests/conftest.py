"""The one fixture that tests of every layer share: a real model small enough to run in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import build_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny random model; without torch the test is skipped."""
    pytest.importorskip("torch")
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")
