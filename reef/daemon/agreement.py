"""What several places name must agree, or the boot stops with the pair named. Pure; called by app and knobs."""

from __future__ import annotations

import os

from reef.config import Config
from reef.errors import BadConfig
from reef.recipes import Recipe
from reef.recipes.registry import family_of
from reef.train.slime_runtime.agreement import disagreement


def check_agreement(config: Config, recipe: Recipe) -> None:
    """The places that name the same thing must agree, or the boot stops with the pair named."""
    if recipe.build_surface().kind == "weights":
        family = str(getattr(recipe, "loss_family", ""))
        if (found := disagreement(family, os.environ, config.training.slime_flags, family_of)) is not None:
            raise found
    batch, declared = getattr(recipe, "batch_size", None), config.training.global_batch_size
    if batch is not None and declared is not None and batch != declared:
        raise BadConfig(
            f"reef.batch_size is {batch}, but training.global_batch_size is {declared}",
            hint="a Slime step takes exactly global_batch_size rollouts: make them equal",
            field="training.global_batch_size",
        )
    if config.service.canary and recipe.build_surface().kind != "harness":
        raise BadConfig(
            f"reef.canary serves two harnesses side by side, and recipe {recipe.name} has none",
            hint="leave it out; reef.auto_rollback works for every recipe",
            field="reef.canary",
        )
    for name in ("ray_address", "inference_url"):
        value = getattr(config.service, name)
        if value is not None and ":" not in value.split("://")[-1]:
            raise BadConfig(
                f"{config.origins[f'reef.{name}']}: reef.{name} {value!r} has no port", field=f"reef.{name}"
            )
