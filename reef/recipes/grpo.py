"""grpo: several answers to the same prompt are compared with each other."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from reef.config import knob
from reef.errors import BadConfig
from reef.recipes.base import WeightTrainingRecipe
from reef.recipes.registry import register_kind
from reef.train.processors.base import DataProcessor
from reef.train.processors.pairing import NEVER, Judgment, PairingProcessor, ReportView, SampleAssembly
from reef.train.processors.units import Unit
from reef.train.types import PolicyBatch, ProcessorContext, TrainingBatch


class GroupProcessor(PairingProcessor):
    """Groups samples by their exact prompt ids, ``group_size`` at a time, in the order they are accepted."""

    output_schema: ClassVar[type[TrainingBatch]] = PolicyBatch
    reopen_groups: ClassVar[bool] = True

    def __init__(self, context: ProcessorContext) -> None:
        self._assembly = SampleAssembly.from_config(context)
        super().__init__(context)

    def judge(self, view: ReportView) -> Judgment:
        """Accept every trainable report; its group is its prompt, or ``metadata.group`` when the client names one."""
        if (gate := view.eligibility()) is not None:
            return gate
        score = view.score
        assert score is not None
        sample = self._assembly.build(view, score)
        if sample is None:
            return NEVER
        named = view.metadata.get("group")
        prompt = hashlib.blake2b(array("q", sample.prompt_ids).tobytes(), digest_size=8).hexdigest()
        return Judgment.train(sample, group_key=str(named) if named is not None else prompt)

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> PolicyBatch:
        """All members of the batch's groups, group by group."""
        members = [
            (f"{unit.key}/{number}", candidate.value)
            for number, unit in enumerate(units)
            for candidate in unit.candidates
        ]
        return PolicyBatch(
            f"{self.scenario}:{batch_number}",
            tuple(sample for _, sample in members),
            tuple(group for group, _ in members),
        )


@register_kind("grpo")
@dataclass(frozen=True, kw_only=True)
class GRPORecipe(WeightTrainingRecipe):
    """Group-relative policy optimisation: an answer's advantage is its score against its siblings'."""

    batch_size: int = knob(32, "samples per step, a multiple of group_size", env="REEF_GRPO_BATCH_SIZE", gt=0)
    group_size: int = knob(8, "answers to one prompt that are compared", env="REEF_GRPO_GROUP_SIZE", gt=1)
    name: str = "grpo"
    summary: ClassVar[str] = "compare several answers to the same prompt"
    step_preparer: ClassVar[str] = "grpo"
    loss_family: ClassVar[str] = "pg"
    processor: ClassVar[type[DataProcessor]] = GroupProcessor

    def __post_init__(self) -> None:
        """A batch holds whole groups."""
        super().__post_init__()
        if self.batch_size % self.group_size:
            raise BadConfig(
                f"batch_size {self.batch_size} is not a multiple of group_size {self.group_size}",
                hint=f"use {max(1, self.batch_size // self.group_size) * self.group_size}",
                field="batch_size",
            )
