"""An artifact that is not what was written is neither served nor trained on, and nothing of it is removed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reef.core.artifacts import Release, ReleaseState, artifact_path
from reef.errors import NotFound
from reef.runtime.serving import ServingTable
from reef.train.torch_runtime import artifacts
from reef.train.torch_runtime.runtime import TorchRuntime
from reef.train.torch_runtime.settings import TrainSettings

CONTENT = "0123456789abcdef" * 2
WEIGHTS, OPTIMIZER = "adapter_model.safetensors", artifacts.OPTIMIZER


def made(home: Path, step_id: str = "step", text: bytes = b"weights" * 100) -> Path:
    folder = artifacts.temporary(home, step_id)
    (folder / WEIGHTS).write_bytes(text)
    (folder / OPTIMIZER).write_bytes(b"moments" * 100)
    manifest = {"step_id": step_id, "content_id": CONTENT, "files": artifacts.file_hashes(folder)}
    artifacts.keep(home, folder, CONTENT, manifest)
    return artifact_path(home, CONTENT)


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut(WEIGHTS), f"{WEIGHTS} is not what was written"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"Weights" + b"weights" * 99), f"{WEIGHTS} is not what"),
        (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
        (cut(artifacts.MANIFEST), "manifest.json cannot be read"),
        (lambda folder: (folder / artifacts.MANIFEST).unlink(), "manifest.json lists no files"),
    ],
)
def test_damage_is_named_and_not_served(
    tiny_model: Path, tmp_path: Path, harm: Callable[[Path], object], said: str
) -> None:
    folder = made(tmp_path)
    assert artifacts.damage(tmp_path, CONTENT, everything=True) is None
    harm(folder)
    left = sorted(path.name for path in folder.iterdir())
    assert said in str(artifacts.damage(tmp_path, CONTENT))
    serving = ServingTable()
    runtime = TorchRuntime(tmp_path, tiny_model, TrainSettings(), serving, lambda kind, data: None)
    release = Release("r1", "s", CONTENT, "r0", 1, ReleaseState.PUBLISHED, time.time())
    with pytest.raises(NotFound) as refused:
        runtime.publish(release)
    assert refused.value.code == "artifact_damaged"
    assert said in refused.value.message and "rollback" in refused.value.hint
    assert serving.get("s") is None
    assert sorted(path.name for path in folder.iterdir()) == left


def test_the_optimizer_is_only_looked_at_when_everything_is(tmp_path: Path) -> None:
    cut(OPTIMIZER)(made(tmp_path))
    assert artifacts.damage(tmp_path, CONTENT) is None
    assert artifacts.damage(tmp_path, CONTENT, everything=True) == f"{OPTIMIZER} is not what was written"


def test_a_garbled_manifest_stands_in_nobodys_way(tmp_path: Path) -> None:
    cut(artifacts.MANIFEST)(made(tmp_path))
    assert artifacts.find_step(tmp_path, "another") is None
    assert artifacts.find_step(tmp_path, "step") is None


def test_a_step_that_is_made_again_takes_the_place_of_its_damaged_artifact_which_is_kept(tmp_path: Path) -> None:
    cut(WEIGHTS)(made(tmp_path))
    made(tmp_path)
    assert artifacts.damage(tmp_path, CONTENT, everything=True) is None
    kept = next((tmp_path / "artifacts").glob(f".damaged-{CONTENT}-*"))
    assert (kept / WEIGHTS).exists()
    assert artifacts.find_step(tmp_path, "step") is not None
