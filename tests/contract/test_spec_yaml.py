"""The guide's deployment YAML boots on the torch runtime, with the keys of the slime backend accepted and checked."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from reef.errors import ReefError
from reef.launch import spawn, stop, wait_ready
from tests.contract.test_spec_guide import SPEC, code_blocks
from tests.models import build_tiny_model

pytestmark = pytest.mark.skipif(not SPEC.exists(), reason="the contract's documents are not beside this checkout")


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guide's modules on PYTHONPATH, its YAML with a model that is here, and the section it refers to."""
    text = SPEC.read_text(encoding="utf-8")
    for name, code in code_blocks(text).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(code, encoding="utf-8")
    yaml = re.search(r"^reef:\n(?:  .*\n|\n(?=  ))+", text, flags=re.M)
    assert yaml is not None
    model = build_tiny_model(tmp_path / "tiny")
    body = re.sub(r"model_path: \S+", f"model_path: {model}", yaml[0])
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"{body}\ntraining:\n  global_batch_size: 4\n  ray_port: 6380\n  sglang_port: 30001\n", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("REEF_INFERENCE_HOST", "127.0.0.1")
    return path


def boot(home: Path, config: Path, **settings: str) -> None:
    child = spawn(
        home, {"reef.port": "0"} | {key.replace("__", "."): value for key, value in settings.items()}, config=config
    )
    try:
        wait_ready(child, home, 60.0)
    finally:
        stop(home, 60.0)
        child.wait(60)


def test_it_boots(deployment: Path, tmp_path: Path) -> None:
    boot(tmp_path / "home", deployment)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"training__global_batch_size": "8"}, "reef.batch_size is 4, but training.global_batch_size is 8"),
        ({"reef__min_scor": "0.2"}, "unknown key reef.min_scor"),
        ({"reef__inference_backend_factory": "reef.config.Config"}, "is no inference backend"),
        ({"reef__ray_address": "nowhere"}, "has no port"),
    ],
)
def test_a_mismatch_stops_the_boot_with_the_pair_named(
    deployment: Path, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(ReefError) as failed:
        boot(tmp_path / "home", deployment, **settings)
    assert said in failed.value.message
    assert failed.value.exit_code == 2


def test_an_environment_variable_that_is_not_set_is_named(
    deployment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REEF_INFERENCE_HOST")
    assert "REEF_INFERENCE_HOST" not in os.environ
    with pytest.raises(ReefError, match="REEF_INFERENCE_HOST"):
        boot(tmp_path / "home", deployment)
