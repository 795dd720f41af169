"""What the CLI needs from this machine without a daemon: what a configuration means, the torch version, fetching the model."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from reef.config import SECTIONS, Config, Knob, env_name

_SECRETS = ("reef.token", "reef.upstream_api_key")
_SAID = ("REEF_HOME", "REEF_SCENARIO")
_AGENTS = frozenset(
    f"REEF_{name}" for name in ("AGENT_DIR", "AGENT_MODEL", "AGENT_TOKEN", "AGENT_URL", "RELEASE", "SESSION")
)
"""What a run of an agent is told: its own commands see them too."""
_OTHER_VARIABLES = _AGENTS | frozenset(
    {
        *_SAID,
        "REEF_TRAINING_LOSS",
        "REEF_TRAINING_RECIPE",
        "REEF_NPM_CACHE",
        "REEF_SEED",
        "REEF_ENGINE_KEY",
        "REEF_TRACE",
        "REEF_FAILPOINT",
        "REEF_SOAK",
    }
)
"""Read in other places than the configuration: by commands, by children, by whoever looks for faults."""


def torch_version() -> str | None:
    """The installed PyTorch, None for none; does not import it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def proxy_of(url: str) -> str | None:
    """The proxy that calls to the provider at ``url`` go through, None for none."""
    from reef.inference.passthrough import proxy_for

    return proxy_for(url)


def check_recipe(config: Config) -> None:
    """Raise BadConfig when the recipe does not exist, or a key is neither the service's nor the recipe's."""
    from reef.recipes.registry import recipe_of

    recipe_of(config).service_config(config.recipe_settings)


def try_recipe(config: Config) -> None:
    """Raise BadConfig when the recipe cannot be made of its settings; imports what they name."""
    from reef.recipes.registry import recipe_of

    recipe_of(config).from_environment(None, config.recipe_settings)


def config_rows(config: Config) -> dict[str, dict[str, Any]]:
    """Every key of the service and of its recipe with value and origin; raises as ``check_recipe``."""
    from reef.recipes.registry import recipe_of

    recipe = recipe_of(config)
    given = recipe.service_config(config.recipe_settings)
    knobs: dict[str, Any] = {}
    for name, item in recipe.knobs().items():
        setting = config.recipe_settings.get(name)
        origin = setting.origin if setting is not None else f"env {item.metadata['reef'].env}"
        knobs[name] = (item, given[name], origin) if name in given else (item, item.default, "default")
    return config.shown(knobs)


def key_rows() -> dict[str, dict[str, Any]]:
    """Every key that can be set: of the service, and of each kind of recipe, with what is known of it."""
    from reef.recipes import recipe_class_for, recipe_kinds

    found: dict[str, dict[str, Any]] = {}
    for section, table in SECTIONS.items():
        for item in dataclasses.fields(table):
            found[f"{section}.{item.name}"] = _key_row(item, env_name(section, item.name))
    for kind in recipe_kinds():
        for name, item in recipe_class_for(kind).knobs().items():
            row = found.setdefault(f"reef.{name}", _key_row(item, item.metadata["reef"].env) | {"recipes": []})
            if "recipes" in row:
                row["recipes"].append(kind)
    return found


def _key_row(item: dataclasses.Field[Any], env: str | None) -> dict[str, Any]:
    rule: Knob = item.metadata["reef"]
    default = None if item.default in ("", None) else item.default
    bounds = [f"{word} {bound:g}" for word, bound in
              (("greater than", rule.gt), ("at least", rule.ge), ("at most", rule.le)) if bound is not None]  # fmt: skip
    return {
        "help": rule.help,
        "type": str(item.type).removeprefix("<class '").removesuffix("'>"),
        "default": str(default) if isinstance(default, Path) else default,
        "env": env,
        "choices": list(rule.choices),
        "bounds": " and ".join(bounds) or None,
        "secret": rule.secret,
    }


def settings_of(config: Config) -> dict[str, Any]:
    """Every key's value as another process may compare it: a secret as a hash."""
    values = {name: row["value"] for name, row in config_rows(config).items()}
    for name in _SECRETS:
        secret = getattr(config.service, name.partition(".")[2])
        values[name] = None if secret is None else hashlib.sha256(secret.encode()).hexdigest()[:16]
    return values


def differing(config: Config, running: Mapping[str, Any], port: int) -> list[str]:
    """What ``config`` sets otherwise than the daemon that runs on ``port`` with the settings ``running``."""
    origins = {name: row["origin"] for name, row in config_rows(config).items()}
    found = []
    for name, value in settings_of(config).items():
        now = port if name == "reef.port" else running.get(name)
        if origins[name] == "default" or name not in running or value == now or (name == "reef.port" and value == 0):
            continue
        said = "" if name in _SECRETS else f", it runs with {now}"
        found.append(f"{origins[name]}: {name} is {'another' if name in _SECRETS else value}{said}")
    return found


def unread_variables(config: Config, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Sentences about REEF_* variables that nothing reads, each with the nearest name."""
    from reef.recipes.registry import recipe_class_for, recipe_kinds, recipe_of

    known = {env_name(section, item.name) for section, table in SECTIONS.items() for item in dataclasses.fields(table)}
    for cls in {*map(recipe_class_for, recipe_kinds()), recipe_of(config)}:
        known |= {item.metadata["reef"].env for item in cls.knobs().values()} - {None}
    if config.source is not None:
        known |= set(re.findall(r"\$\{(REEF_\w+)\}", config.source.read_text(encoding="utf-8")))
    found = []
    for name in sorted(name for name in environ if name.startswith("REEF_") and name not in known | _OTHER_VARIABLES):
        near = difflib.get_close_matches(name, [*known, *_SAID], n=1)
        found.append(f"nothing reads {name}" + (f" (did you mean {near[0]}?)" if near else ""))
    return found


def recipe_names() -> tuple[str, ...]:
    """The kinds that --recipe takes."""
    from reef.recipes import recipe_kinds

    return recipe_kinds()


def updates(config: Config) -> str:
    """What the configuration's recipe updates: weights, harness or nothing; raises as ``check_recipe``."""
    from reef.authoring.facts import facts
    from reef.recipes.registry import recipe_of

    return str(facts(recipe_of(config))["surface"])


def pull_model(folder: Path, progress: Callable[[str, int, int | None], None]) -> None:
    """Fetch and convert the embedded model into ``folder``; ``progress(stage, done, total)`` is called as it goes."""
    from reef.train.torch_runtime.pull import pull

    pull(folder, progress)
