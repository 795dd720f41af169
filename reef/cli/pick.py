"""What ``reef up`` serves when nothing says it: explicit settings, the environment, Ollama, else the embedded model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from reef.config import Config, load
from reef.errors import BadConfig

OLLAMA = "http://127.0.0.1:11434"
EMBEDDED_MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class Pick:
    """Settings to add, a sentence that says so, and whether the embedded model must be fetched first."""

    overrides: Mapping[str, str]
    said: str
    needs_model: bool = False


def models_folder() -> Path:
    """Where fetched models lie, shared by all state directories."""
    return platformdirs.user_cache_path("reef") / "models"


def pick(config: Config) -> Pick:
    """Choose what answers calls; an explicit setting is never overruled."""
    service = config.service
    if service.model_path is not None or service.upstream_url is not None:
        target = service.model_path or service.upstream_url
        return Pick({}, f"answering with {target}" + (f", recipe {service.recipe}" if service.recipe else ""))
    if service.upstream_model is not None:
        raise BadConfig(
            f"reef.upstream_model names {service.upstream_model!r}, and nothing says whose model that is",
            hint="export REEF_UPSTREAM_URL=..., for example https://api.openai.com, and REEF_UPSTREAM_API_KEY",
            field="reef.upstream_url",
        )
    found = None if service.recipe and _trains_weights(config) else _ollama()
    if found is not None:
        overrides = {"reef.upstream_url": f"{OLLAMA}/v1", "reef.upstream_model": found}
        return Pick(overrides, f"answering with Ollama ({found}); change it with --upstream-url or --model-path")
    folder = models_folder() / EMBEDDED_MODEL
    overrides = {"reef.model_path": str(folder)}
    said = f"answering with the embedded model {EMBEDDED_MODEL}; change it with --upstream-url or --model-path"
    if not service.recipe:
        overrides |= {"reef.recipe": "pg", "reef.baseline": "running"}
        said += "; scores train it (recipe pg, change with --recipe)"
    return Pick(overrides, said, needs_model=not (folder / "config.json").exists())


def picked_config(path: Path | None, home: Path, overrides: Mapping[str, str]) -> tuple[Config, Pick]:
    """What ``reef up`` starts with, and what of it nobody has set."""
    picked = pick(load(path, overrides=overrides, home=home))
    return load(path, overrides={**picked.overrides, **overrides}, home=home), picked


def _trains_weights(config: Config) -> bool:
    """True where only the embedded model can be trained."""
    from reef.daemon.local import updates

    return updates(config) == "weights"


def _ollama() -> str | None:
    """The newest model of an Ollama on its usual port, None when there is none."""
    try:
        import httpx

        found = httpx.get(f"{OLLAMA}/api/tags", timeout=0.3, trust_env=False).json()
        return str(found["models"][0]["name"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
        return None
