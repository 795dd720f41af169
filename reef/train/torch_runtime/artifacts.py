"""Artifacts on disk: written beside, fsynced, renamed; each folder has a manifest. Knows nothing of torch.

Called by the trainer, which writes them, and by the runtime, which finds and removes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reef.core.artifacts import ArtifactRef, artifact_path
from reef.errors import BadConfig
from reef.train.torch_runtime.modelfiles import hash_file, read_json

MANIFEST = "manifest.json"
OPTIMIZER = "optimizer.safetensors"


def content_id_of(files: Iterable[Path]) -> str:
    """32 hex digits over the names and bytes of what is served (weights and configuration)."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        hash_file(file, digest)
    return digest.hexdigest()[:32]


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in ``folder`` but the manifest."""
    hashes: dict[str, str] = {}
    for file in sorted(folder.iterdir()):
        if file.name != MANIFEST:
            digest = hashlib.sha256()
            hash_file(file, digest)
            hashes[file.name] = digest.hexdigest()
    return hashes


def temporary(home: Path, step_id: str) -> Path:
    """A fresh folder for the files of a step that is being made."""
    folder = home / "artifacts" / f".tmp-{step_id}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def keep(home: Path, folder: Path, content_id: str, manifest: Mapping[str, Any]) -> ArtifactRef:
    """Make ``folder`` the artifact ``content_id``, durably; one that is there already stays as it is."""
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False))
    for file in folder.iterdir():
        _sync(file)
    _sync(folder)
    target = artifact_path(home, content_id)
    if target.exists() and damage(home, content_id) is not None:
        target.rename(target.with_name(f".damaged-{content_id}-{time.time_ns()}"))  # kept, for whoever wants to look
    if target.exists():
        shutil.rmtree(folder)
    else:
        folder.rename(target)
    _sync(target.parent)
    return ArtifactRef(content_id, size_bytes(target))


def size_bytes(folder: Path) -> int:
    """Bytes of all files in an artifact."""
    return sum(file.stat().st_size for file in folder.iterdir())


def find_step(home: Path, step_id: str) -> dict[str, Any] | None:
    """The manifest of the artifact that ``step_id`` made, None when there is none."""
    for path in (home / "artifacts").glob(f"[!.]*/{MANIFEST}"):
        try:
            manifest = read_json(path)
        except BadConfig:  # garbled: what it was is told where it is to be served
            continue
        if manifest.get("step_id") == step_id:
            return manifest
    return None


def damage(home: Path, content_id: str, *, everything: bool = False) -> str | None:
    """What is wrong with an artifact that is there, None for nothing: its files against the hashes in its manifest.

    The optimizer's state, which is not served and is the biggest file, only with ``everything``.
    """
    folder = artifact_path(home, content_id)
    try:
        listed = read_json(folder / MANIFEST).get("files")
    except (BadConfig, OSError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    if not isinstance(listed, dict):
        return f"{MANIFEST} lists no files"
    for name, expected in listed.items():
        if name == OPTIMIZER and not everything:
            continue
        if not (folder / name).is_file():
            return f"{name} is missing"
        digest = hashlib.sha256()
        hash_file(folder / name, digest)
        if digest.hexdigest() != expected:
            return f"{name} is not what was written"
    return None


def read_manifest(home: Path, content_id: str) -> dict[str, Any]:
    """The manifest of an artifact; empty when there is no such artifact."""
    return read_json(artifact_path(home, content_id) / MANIFEST)


def remove(home: Path, content_id: str) -> None:
    """Delete an artifact: renamed first, so that a half-deleted one is never taken for whole."""
    folder = artifact_path(home, content_id)
    if folder.is_dir():
        doomed = folder.with_name(f".tmp-gone-{content_id}")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)


def remove_leftovers(home: Path) -> int:
    """Delete temporary folders of steps that never ended; returns how many there were."""
    leftovers = list((home / "artifacts").glob(".tmp-*"))
    for folder in leftovers:
        shutil.rmtree(folder)
    return len(leftovers)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
