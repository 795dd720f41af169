"""The one configuration table and its loader: flag over file over environment over default.

Knows nothing of recipes (their keys are handed through) or of what the values do. Used by the CLI and daemon.app; knob()
is re-exported by reef.recipes, because a recipe's fields and the service's keys are the same kind of thing.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from reef.errors import BadConfig


@dataclass(frozen=True, slots=True)
class Knob:
    """What is known of one key beside its default: help, environment variable, bounds."""

    help: str = ""
    env: str | None = None
    gt: float | None = None
    ge: float | None = None
    le: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False


def knob(
    default: Any,
    help: str = "",
    *,
    env: str | None = None,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    choices: Sequence[str] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field that is also a configuration key; the annotation gives the type to parse."""
    return field(default=default, metadata={"reef": Knob(help, env, gt, ge, le, tuple(choices), secret)})


@dataclass(frozen=True, kw_only=True)
class Service:
    """The ``reef.*`` keys the service itself consumes; every other one must belong to the recipe."""

    recipe: str = knob("", "what feedback becomes: a kind (reef recipe list) or package.module:Class; empty picks one")
    host: str = knob("127.0.0.1", "address to listen on; anything but loopback needs an explicit token")
    port: int = knob(8900, "port to listen on", ge=0, le=65535)
    token: str | None = knob(None, "access token; one is made in the state directory when unset", secret=True)
    default_scenario: str = knob(
        "default", "scenario of calls without x-reef-scenario; empty makes the header required"
    )
    create_scenarios: bool = knob(True, "a new scenario name creates the scenario")
    upstream_url: str | None = knob(None, "address of the provider that answers calls, e.g. https://api.openai.com/v1")
    upstream_model: str | None = knob(None, "model id for reef call and for harness evaluation")
    upstream_api: str = knob(
        "auto",
        "what the provider speaks: a list of chat, responses, messages (calls in others are translated), or auto",
    )
    upstream_api_key: str | None = knob(None, "key sent to the provider in place of the client's", secret=True)
    model_path: Path | None = knob(None, "Hugging Face folder or GGUF file that the embedded engine serves and trains")
    runtime: str = knob("torch", "what trains weights", choices=("torch", "slime"))
    ray_address: str | None = knob(None, "Ray head, for runtime: slime (accepted and checked on torch)")
    inference_url: str | None = knob(None, "SGLang address, for runtime: slime (accepted and checked on torch)")
    inference_backend_factory: str | None = knob(None, "class that talks to the engine, as package.module.Class")
    tool_parser: str = knob("hermes", "how the model writes tool calls", choices=("hermes", "json", "none"))
    reasoning_parser: str = knob("none", "how the model marks reasoning", choices=("none", "think"))
    max_tokens: int = knob(1024, "answer length when the client names none (embedded engine)", gt=0)
    upstream_drop_beta: str | None = knob(
        None, "anthropic-beta values that are not sent on, comma-separated; all drops the header"
    )
    connect_timeout_s: float = knob(10.0, "how long to try to reach the provider", gt=0)
    idle_timeout_s: float = knob(300.0, "longest silence of the provider within an answer", gt=0)
    keepalive_s: float = knob(10.0, "send a comment on a stream that has been silent this long", gt=0)
    max_body_mb: float = knob(64.0, "largest request body, after decompression", gt=0)
    max_answer_mb: float = knob(256.0, "largest answer of the provider; one that goes on is ended there", gt=0)
    train_helper_calls: bool = knob(
        False, "let a coding agent's calls without tools (titles, summaries, probes) train as well"
    )
    publish: str = knob("auto", "serve an accepted release at once, or hold it for review", choices=("auto", "review"))
    auto_rollback: bool = knob(False, "go back by itself when reports show that a release is worse than the one before")
    canary: float = knob(0.0, "share of sessions that an accepted harness is tried on before it is served to all", ge=0)
    canary_reports: int = knob(20, "reports after which a canary that is not worse is served to all", gt=0)
    on_store_failure: str = knob("relay", "answer without a receipt, or refuse with 507", choices=("relay", "refuse"))
    retention_days: float = knob(90.0, "bodies older than this are removed (0: never); rows stay", ge=0)
    retention_gb: float = knob(20.0, "bodies beyond this size are removed, oldest first (0: no limit)", ge=0)
    keep_releases: int = knob(20, "releases whose files are kept per scenario (0: all); rows stay", ge=0)
    park_timeout_h: float = knob(24.0, "a report that waits longer for its inference is refused", gt=0)
    log_level: str = knob("info", "how much to log", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True, kw_only=True)
class Training:
    """The ``training.*`` keys: how the torch runtime trains, and what a Slime deployment declares."""

    mode: str = knob("lora", "train an adapter or all weights", choices=("lora", "full"))
    lora_rank: int = knob(16, "rank of the adapter", gt=0)
    lora_alpha: float = knob(32.0, "scale of the adapter is lora_alpha / lora_rank", gt=0)
    learning_rate: float | None = knob(None, "default 3e-4 for lora, 1e-5 for full", gt=0)
    weight_decay: float = knob(0.0, "AdamW weight decay", ge=0)
    clip_low: float = knob(0.2, "lower ratio clip of the policy loss", gt=0)
    clip_high: float = knob(0.28, "upper ratio clip of the policy loss", gt=0)
    max_grad_norm: float = knob(1.0, "gradient norm is clipped to this", gt=0)
    epochs: int = knob(1, "passes over a batch", gt=0)
    micro_batch_tokens: int = knob(2048, "tokens per forward pass; does not change the gradient", gt=0)
    seed: int = knob(0, "seed of adapter initialisation and order", ge=0)
    dtype: str = knob("float32", "precision of the engine", choices=("float32", "bfloat16"))
    device: str = knob("auto", "auto, cpu, mps or cuda")
    serve_threads: int = knob(1, "CPU threads of the engine", gt=0)
    train_threads: int = knob(0, "CPU threads of the trainer (0: all cores but the engine's)", ge=0)
    slots: int = knob(16, "requests the engine answers at once", gt=0)
    max_logprob_diff: float | None = knob(
        None, "refuse a step when engine and trainer disagree more than this; default follows dtype", gt=0
    )
    max_kl: float = knob(1.0, "refuse a candidate further than this from its parent (nats per token)", gt=0)
    global_batch_size: int | None = knob(None, "must equal reef.batch_size when set", gt=0)
    slime_flags: str | None = knob(None, "flags that the Slime driver is started with; they must fit the recipe's loss")
    ray_port: int = knob(6379, "port of the Ray head (slime)", gt=0, le=65535)
    sglang_port: int = knob(30000, "port of the SGLang router (slime)", gt=0, le=65535)


SECTIONS: Mapping[str, type] = {"reef": Service, "training": Training}


@dataclass(frozen=True, slots=True)
class Setting:
    """A raw value with where it came from, for messages: ``serve.yaml:4``, ``env REEF_PORT``, ``--reef.port``."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Config:
    """Everything the daemon is started with. ``recipe_settings`` are the reef.* keys left for the recipe."""

    home: Path
    service: Service
    training: Training
    recipe_settings: Mapping[str, Setting]
    origins: Mapping[str, str]
    source: Path | None = None

    def shown(self, recipe: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Effective values with origins, secrets masked, for ``reef config show --origin``.

        ``recipe`` holds the recipe's knobs: name to (dataclass field, value, origin).
        """
        rows: dict[str, dict[str, Any]] = {}
        for section, values in (("reef", self.service), ("training", self.training)):
            for item in dataclasses.fields(values):
                name = f"{section}.{item.name}"
                rows[name] = _shown(item, getattr(values, item.name), self.origins[name])
        return rows | {f"reef.{name}": _shown(*knob) for name, knob in recipe.items()}


def _shown(item: dataclasses.Field[Any], value: Any, origin: str) -> dict[str, Any]:
    if item.metadata["reef"].secret and value is not None:
        value = "********"
    return {"value": str(value) if isinstance(value, Path) else value, "origin": origin}


def default_home(environ: Mapping[str, str] = os.environ) -> Path:
    """``REEF_HOME``, else ``.reef`` of the project when it exists, else the platform's data directory."""
    if environ.get("REEF_HOME"):
        return Path(environ["REEF_HOME"]).expanduser()
    project = Path.cwd() / ".reef"
    return project if project.is_dir() else platformdirs.user_data_path("reef")


def load(
    path: Path | None,
    *,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    home: Path | None = None,
) -> Config:
    """Read, interpolate, merge and check everything; raises BadConfig before anything starts."""
    settings: dict[str, Setting] = {}
    for section, table in SECTIONS.items():
        for item in dataclasses.fields(table):
            name = env_name(section, item.name)
            if environ.get(name, "") != "":
                settings[f"{section}.{item.name}"] = Setting(environ[name], f"env {name}")
    from_file: dict[str, Setting] = {}
    if path is not None:
        from reef.config_file import read_file  # most commands read none

        from_file = read_file(path)
    settings |= from_file
    for key, text in (overrides or {}).items():
        settings[key] = Setting(text, f"--{key}")
    # Interpolated last, so that ${training.ray_port} sees a value that a flag or the environment replaced.
    merged = dict(settings)
    for key in from_file:
        settings[key] = Setting(_interpolate(key, merged, environ, ()), merged[key].origin)
    parts: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for section, table in SECTIONS.items():
        names = {item.name for item in dataclasses.fields(table)}
        mine = {key.split(".", 1)[1]: value for key, value in settings.items() if key.split(".", 1)[0] == section}
        if section != "reef":
            for name in mine.keys() - names:
                raise unknown_key(f"{section}.{name}", mine[name].origin, sorted(f"{section}.{one}" for one in names))
        parts[section] = table(**parse_fields(table, {key: mine[key] for key in mine.keys() & names}, section))
        origins |= {f"{section}.{name}": mine[name].origin if name in mine else "default" for name in names}
    reef_names = {item.name for item in dataclasses.fields(Service)}
    left = {
        key.split(".", 1)[1]: value
        for key, value in settings.items()
        if key.startswith("reef.") and key.split(".", 1)[1] not in reef_names
    }
    return Config(home or default_home(environ), parts["reef"], parts["training"], left, origins, path)


def env_name(section: str, key: str) -> str:
    """``REEF_PORT`` for reef.port, ``REEF_TRAINING_SEED`` for training.seed."""
    return f"REEF_{key.upper()}" if section == "reef" else f"REEF_{section.upper()}_{key.upper()}"


def unknown_key(name: str, origin: str, accepted: Sequence[str]) -> BadConfig:
    """The error for a key nobody consumes, with the nearest name and the accepted ones."""
    near = difflib.get_close_matches(name, accepted, n=1, cutoff=0.6)
    homes = [
        section for section, table in SECTIONS.items() if name in {item.name for item in dataclasses.fields(table)}
    ]
    guess = f"did you mean {homes[0]}.{name}? " if homes else f"did you mean {near[0]}? " if near else ""
    return BadConfig(
        f"{origin}: unknown key {name}", hint=f"{guess}accepted: {', '.join(accepted)}", code="unknown_key", field=name
    )


def parse_fields(table: type, values: Mapping[str, Setting], section: str) -> dict[str, Any]:
    """Constructor arguments for a dataclass of knobs, each value parsed to its field's type and checked."""
    hints = typing.get_type_hints(table)
    fields = {item.name: item for item in dataclasses.fields(table)}
    return {
        name: parse_value(setting, hints[name], fields[name].metadata.get("reef", Knob()), f"{section}.{name}")
        for name, setting in values.items()
    }


def parse_value(setting: Setting, hint: Any, rule: Knob, name: str) -> Any:
    """One value as its annotated type; a float is never truncated, a bound is never ignored."""
    optional, kind = _kind(hint)
    value = setting.value
    if value is None or (optional and isinstance(value, str) and value.lower() in ("null", "none", "")):
        if optional:
            return None
        raise _wrong(setting, name, kind, value)
    parsed = _PARSERS[kind](value) if kind in _PARSERS else value
    if parsed is None:
        raise _wrong(setting, name, kind, value)
    if rule.choices and parsed not in rule.choices:
        near = difflib.get_close_matches(str(parsed), rule.choices, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise BadConfig(
            f"{setting.origin}: {name} is {parsed!r}", hint=f"{guess}accepted: {', '.join(rule.choices)}", field=name
        )
    for broken, word, bound in (
        (rule.gt is not None and not parsed > rule.gt, "greater than", rule.gt),
        (rule.ge is not None and not parsed >= rule.ge, "at least", rule.ge),
        (rule.le is not None and not parsed <= rule.le, "at most", rule.le),
    ):
        if broken:
            raise BadConfig(f"{setting.origin}: {name} is {parsed}", hint=f"it must be {word} {bound:g}", field=name)
    return parsed


def _kind(hint: Any) -> tuple[bool, type]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return True, inner[0]
    return False, hint


def _int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()) else None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        parsed = float(value)
    except ValueError:
        return None
    return parsed if math.isfinite(parsed) else None


def _bool(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(str(value).lower())


def _str(value: Any) -> str | None:
    return value.strip() if isinstance(value, str) else None


def _path(value: Any) -> Path | None:
    return Path(value).expanduser() if isinstance(value, str | Path) and str(value) else None


_PARSERS: Mapping[type, Any] = {int: _int, float: _float, bool: _bool, str: _str, Path: _path}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


def _wrong(setting: Setting, name: str, kind: type, value: Any) -> BadConfig:
    word = _WORDS.get(kind, kind.__name__)
    origin, _, variable = setting.origin.partition(" ")
    unset = f"give it another value, or take it away: unset {variable}; " if origin == "env" else ""
    hint = f"{unset}docs/config.md says what each key takes"
    return BadConfig(f"{setting.origin}: {name} must be {word}, not {value!r}", hint=hint, field=name)


_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def _interpolate(key: str, flat: Mapping[str, Setting], environ: Mapping[str, str], seen: tuple[str, ...]) -> Any:
    """The value of ``key`` with ``${section.key}`` and ``${ENV}`` filled in."""
    setting = flat[key]
    if not isinstance(setting.value, str):
        return setting.value
    if key in seen:
        raise BadConfig(f"{setting.origin}: {key} refers to itself ({' -> '.join((*seen, key))})", field=key)

    def value_of(name: str) -> Any:
        if name in flat:
            return _interpolate(name, flat, environ, (*seen, key))
        section, _, rest = name.partition(".")
        defaults = (
            {item.name: item.default for item in dataclasses.fields(SECTIONS[section])} if section in SECTIONS else {}
        )
        if defaults.get(rest) is not None:
            return defaults[rest]
        if "." not in name and environ.get(name):
            return environ[name]
        kind = "key" if "." in name else "environment variable"
        raise BadConfig(
            f"{setting.origin}: {key} uses ${{{name}}}, but that {kind} is {'empty' if name in environ else 'not set'}",
            hint=f"export {name}=..." if kind != "key" else f"add {name} to the file",
            field=key,
        )

    whole = _REFERENCE.fullmatch(setting.value)
    if whole:
        return value_of(whole[1])
    return _REFERENCE.sub(lambda match: str(value_of(match[1])), setting.value)
