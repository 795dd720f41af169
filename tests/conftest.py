"""What tests of every layer share: a real model small enough to run in them, and children that Ctrl-C can end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.models import build_tiny_model

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in a shell's background; every child would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny random model; without torch the test is skipped."""
    pytest.importorskip("torch")
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")
