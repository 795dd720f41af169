"""What a model folder says about itself, read without torch: sizes, stop ids, and the id of its weights.

Knows nothing of how the model runs. Called by the runtime (in the daemon) and by both children.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reef.errors import BadConfig

_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of a model folder: ``context`` in tokens, ``vocab`` in ids, and the ids that end a reply."""

    path: Path
    context: int
    vocab: int
    stop_ids: frozenset[int]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; an empty one when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise BadConfig(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadConfig(f"{path} does not hold a JSON object")
    return value


def model_facts(folder: Path) -> ModelFacts:
    """Read the facts of a Hugging Face folder; raises BadConfig naming what is missing."""
    config = read_json(folder / "config.json")
    if not config:
        raise BadConfig(
            f"{folder} is no model folder: it has no config.json",
            hint="model_path must be a Hugging Face folder or a GGUF file",
        )
    for name in ("tokenizer.json",):
        if not (folder / name).is_file():
            raise BadConfig(f"{folder} has no {name}", hint="save the fast tokenizer beside the weights")
    weight_files(folder)
    text = config.get("text_config") or config
    context, vocab = text.get("max_position_embeddings"), text.get("vocab_size")
    if not isinstance(context, int) or not isinstance(vocab, int):
        raise BadConfig(f"{folder}/config.json names no max_position_embeddings or no vocab_size")
    return ModelFacts(folder, context, vocab, _stop_ids(folder, config))


def _stop_ids(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    found: set[int] = set()
    for source in (read_json(folder / "generation_config.json"), config):
        value = source.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    eos = read_json(folder / "tokenizer_config.json").get("eos_token")
    content = eos.get("content") if isinstance(eos, dict) else eos
    if content is not None:
        for token in read_json(folder / "tokenizer.json").get("added_tokens", ()):
            if token.get("content") == content:
                found.add(token["id"])
    return frozenset(found)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, by name; raises BadConfig when there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadConfig(
            f"{folder} has no *.safetensors",
            hint="convert the weights to safetensors; pickled weights are not loaded because they can run code",
        )
    return files


def base_content_id(folder: Path, cache: Path | None = None) -> str:
    """``base-`` and 16 hex digits of the SHA-256 over the weight files; ``cache`` (a JSON file) saves hashing again."""
    files = weight_files(folder)
    known = read_json(cache) if cache is not None else {}
    stamp = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    name = str(folder.resolve())
    entry = known.get(name)
    if entry is not None and entry["stamp"] == stamp:
        return str(entry["content_id"])
    digest = hashlib.sha256()
    for file in files:
        hash_file(file, digest)
    content_id = f"base-{digest.hexdigest()[:16]}"
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(".tmp")
        partial.write_text(json.dumps({**known, name: {"stamp": stamp, "content_id": content_id}}))
        partial.replace(cache)
    return content_id


def hash_file(path: Path, digest: Any) -> None:
    """Feed the bytes of ``path`` to ``digest`` (an object of hashlib)."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
