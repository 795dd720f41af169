"""The tiny model, loaded once, and one running TorchRuntime for the tests that need real children."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.models import build_tiny_model
from tests.train.torch_runtime.support import Bench, start_bench


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tests share the machine with the children they start."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny model."""
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def started(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A started runtime over the tiny model with LoRA; starting one costs more than most tests."""
    made = start_bench(tmp_path_factory.mktemp("home"), tiny, learning_rate=1e-2)
    yield made
    made.runtime.stop()


@pytest.fixture
def bench(started: Bench) -> Bench:
    """The started runtime, serving the base."""
    started.runtime.publish(started.base)
    started.events.clear()
    return started
