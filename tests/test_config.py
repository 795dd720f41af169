"""The configuration loader: precedence, interpolation, and errors that name the line and the nearest key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from reef.config import Setting, load
from reef.errors import BadConfig
from reef.recipes import PGRecipe, recipe_class_for, recipe_kinds, register_kind
from reef.recipes.base import Recipe


def config(tmp_path: Path, text: str, environ: dict[str, str] | None = None, **overrides: str):
    path = tmp_path / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    flags = {key.replace("__", "."): value for key, value in overrides.items()}
    return load(path, environ=environ or {}, overrides=flags, home=tmp_path)


def test_flag_over_file_over_environment_over_default(tmp_path: Path) -> None:
    text = "reef:\n  port: 1\n  host: 127.0.0.1\n"
    assert config(tmp_path, "").service.port == 8900
    assert config(tmp_path, text).service.port == 1
    assert config(tmp_path, "", {"REEF_PORT": "2"}).service.port == 2
    assert config(tmp_path, text, {"REEF_PORT": "2"}).service.port == 1
    both = config(tmp_path, text, {"REEF_PORT": "2"}, reef__port="3")
    assert both.service.port == 3
    assert both.origins["reef.port"] == "--reef.port"
    assert both.origins["reef.host"] == "serve.yaml:3"


def test_values_are_filled_in_from_keys_and_environment_after_the_merge(tmp_path: Path) -> None:
    text = "reef:\n  ray_address: 127.0.0.1:${training.ray_port}\n  inference_url: http://${HOST_X}:${training.sglang_port}\n"
    found = config(tmp_path, text, {"HOST_X": "gpu"}, training__ray_port="7777")
    assert found.service.ray_address == "127.0.0.1:7777"
    assert found.service.inference_url == "http://gpu:30000"


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("reef:\n  port: 1\n  port: 2\n", "serve.yaml:3: port is given twice", "line 2"),
        ("reef:\n  port: eighty\n", "serve.yaml:2: reef.port must be a whole number", ""),
        ("reef:\n  port: 4.5\n", "must be a whole number", ""),
        ("reef:\n  port: 99999\n", "reef.port is 99999", "at most 65535"),
        ("reef:\n  runtime: torhc\n", "reef.runtime is 'torhc'", "did you mean torch?"),
        ("training:\n  learning_rat: 1\n", "serve.yaml:2: unknown key training.learning_rat", "training.learning_rate"),
        ("trainin:\n  seed: 1\n", "unknown key trainin", "did you mean training?"),
        ("reef:\n  host: ${nowhere.key}\n", "serve.yaml:2: reef.host uses ${nowhere.key}", "add nowhere.key"),
        ("reef:\n  host: ${NOT_SET_X}\n", "that environment variable is not set", "export NOT_SET_X"),
        ("reef:\n  host: ${reef.token}\n  token: ${reef.host}\n", "refers to itself", ""),
        ("reef: [1]\n", "section reef must hold keys", ""),
        ("reef:\n  host: {a: 1}\n", "must be a plain value", ""),
        ("just text", "must be a mapping", ""),
        ("reef:\n  host: 'open\n", "serve.yaml:", ""),
        ("reef:\n  log_level: ''\n", "reef.log_level", ""),
    ],
)
def test_bad_configuration_names_line_and_way_out(tmp_path: Path, text: str, said: str, hint: str) -> None:
    with pytest.raises(BadConfig) as failed:
        config(tmp_path, text)
    assert said in failed.value.message
    assert hint in failed.value.hint


def test_secrets_are_masked_when_shown(tmp_path: Path) -> None:
    shown = config(tmp_path, "reef:\n  token: very-secret\n").shown({})
    assert "very-secret" not in str(shown)


def test_recipe_keys_come_from_knobs_with_the_same_precedence(tmp_path: Path) -> None:
    left = config(tmp_path, "reef:\n  recipe: pg\n  batch_size: 3\n").recipe_settings
    assert PGRecipe.service_config(left, {"REEF_PG_BATCH_SIZE": "9"})["batch_size"] == 3
    assert PGRecipe.service_config({}, {"REEF_PG_BATCH_SIZE": "9"})["batch_size"] == 9
    assert PGRecipe.from_environment(None, {}, {}).batch_size == 8


def test_a_key_that_nobody_consumes_stops_the_start_with_the_accepted_ones() -> None:
    with pytest.raises(BadConfig) as failed:
        PGRecipe.service_config({"batch_sise": Setting(4, "serve.yaml:7")}, {})
    assert failed.value.message == "serve.yaml:7: unknown key reef.batch_sise"
    assert "did you mean reef.batch_size?" in failed.value.hint
    assert "reef.checkpoint_every_n_versions" in failed.value.hint


def test_a_float_knob_is_never_truncated_and_a_count_never_rounded() -> None:
    rwr = recipe_class_for("rwr")
    assert rwr.service_config({"min_score": 0.5}, {})["min_score"] == 0.5
    assert rwr.service_config({"min_score": "0.5"}, {})["min_score"] == 0.5
    with pytest.raises(BadConfig, match="whole number"):
        rwr.service_config({"batch_size": 2.5}, {})
    with pytest.raises(BadConfig, match="batch_size is 0"):
        PGRecipe(None, batch_size=0)


def test_kinds_are_found_by_name_and_dotted_path_and_nothing_else() -> None:
    assert set(recipe_kinds()) >= {"record", "sft", "pg", "rwr", "grpo"}
    assert recipe_class_for("reef.recipes.weights:PGRecipe") is PGRecipe
    for kind, said in (
        ("pgg", "did you mean pg?"),
        ("nowhere.module:X", "PYTHONPATH"),
        ("reef.recipes.weights:Nope", ""),
        (":", "package.module:name"),
    ):
        with pytest.raises(BadConfig) as failed:
            recipe_class_for(kind)
        assert said in failed.value.hint
    with pytest.raises(BadConfig, match="not a subclass"):
        recipe_class_for("reef.config:Config")
    with pytest.raises(BadConfig, match="already registered"):
        register_kind("pg")(PGRecipe)


def test_a_recipe_must_be_frozen_like_its_base() -> None:
    with pytest.raises(TypeError, match="frozen"):
        dataclass(type("Loose", (Recipe,), {}))


def test_an_empty_variable_is_told_from_one_that_is_not_set(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="that environment variable is empty"):
        config(tmp_path, "reef:\n  upstream_model: ${EMPTY_X}\n", {"EMPTY_X": ""})
