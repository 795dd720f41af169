"""Recipes: the method, as one frozen dataclass. Importing this package registers the bundled kinds."""

from reef.config import knob
from reef.recipes.base import Recipe, Surface, WeightTrainingRecipe
from reef.recipes.evolve import EvolveRecipe, EvolvingRecipe
from reef.recipes.grpo import GRPORecipe
from reef.recipes.harness import HarnessRecipe
from reef.recipes.record import RecordRecipe
from reef.recipes.registry import recipe_class_for, recipe_kinds, register_kind
from reef.recipes.weights import PGRecipe, RWRRecipe, SFTRecipe

__all__ = [
    "EvolveRecipe",
    "EvolvingRecipe",
    "GRPORecipe",
    "HarnessRecipe",
    "PGRecipe",
    "RWRRecipe",
    "Recipe",
    "RecordRecipe",
    "SFTRecipe",
    "Surface",
    "WeightTrainingRecipe",
    "knob",
    "recipe_class_for",
    "recipe_kinds",
    "register_kind",
]
