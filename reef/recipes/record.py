"""The empty surface: everything is recorded, nothing is updated. Start every integration here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reef.recipes.base import Recipe
from reef.recipes.registry import register_kind
from reef.records import RecordStore
from reef.train.processors.base import DataProcessor
from reef.train.types import ProcessorContext


@register_kind("record")
@dataclass(frozen=True, kw_only=True)
class RecordRecipe(Recipe):
    """Record only."""

    name: str = "record"
    summary: ClassVar[str] = "record calls and reports, update nothing"

    def build(self, scenario: str, records: RecordStore) -> DataProcessor:
        """A bare processor that ingests for audit and never becomes ready."""
        return DataProcessor(ProcessorContext(scenario))
