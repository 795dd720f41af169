"""sft, pg, rwr: one scored report, one sample. They differ in what a score means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from reef.config import knob
from reef.recipes.base import WeightTrainingRecipe
from reef.recipes.registry import register_kind
from reef.train.processors.base import DataProcessor
from reef.train.processors.pairing import NEVER, Judgment, PairingProcessor, ReportView, SampleAssembly
from reef.train.processors.units import Unit
from reef.train.types import PolicyBatch, ProcessorContext, TrainingBatch


class ScoredProcessor(PairingProcessor):
    """Accepts every trainable report whose score is at least ``min_score`` (no knob: any score)."""

    output_schema: ClassVar[type[TrainingBatch]] = PolicyBatch

    def __init__(self, context: ProcessorContext) -> None:
        self._min_score = float(context.config.get("min_score", float("-inf")))
        self._assembly = SampleAssembly.from_config(context)
        super().__init__(context)

    def judge(self, view: ReportView) -> Judgment:
        """Threshold the score."""
        if (gate := view.eligibility()) is not None:
            return gate
        score = view.score
        assert score is not None
        if score < self._min_score:
            return Judgment.never("below_min_score", f"{score:g} is under {self._min_score:g}")
        sample = self._assembly.build(view, score)
        return NEVER if sample is None else Judgment.train(sample)

    def make_batch(self, units: Sequence[Unit], batch_number: int) -> PolicyBatch:
        """One sample per unit."""
        return PolicyBatch(f"{self.scenario}:{batch_number}", tuple(unit.candidates[0].value for unit in units))


@register_kind("sft")
@dataclass(frozen=True, kw_only=True)
class SFTRecipe(WeightTrainingRecipe):
    """Imitate accepted answers: every report at or above ``min_score`` counts alike."""

    batch_size: int = knob(8, "samples per step", env="REEF_SFT_BATCH_SIZE", gt=0)
    min_score: float = knob(1.0, "a report below this score never trains", env="REEF_SFT_MIN_SCORE")
    name: str = "sft"
    summary: ClassVar[str] = "imitate answers with a good score"
    step_preparer: ClassVar[str] = "sft"
    loss_family: ClassVar[str] = "sft"
    processor: ClassVar[type[DataProcessor]] = ScoredProcessor


@register_kind("pg")
@dataclass(frozen=True, kw_only=True)
class PGRecipe(WeightTrainingRecipe):
    """Policy gradient: the score is the advantage, or the score minus a running mean."""

    batch_size: int = knob(8, "samples per step", env="REEF_PG_BATCH_SIZE", gt=0)
    baseline: str = knob(
        "none", "none: advantage = score; running: score minus a running mean", env="REEF_PG_BASELINE",
        choices=("none", "running"),
    )  # fmt: skip
    name: str = "pg"
    summary: ClassVar[str] = "policy gradient, the score is the advantage"
    stateful: ClassVar[bool] = True
    step_preparer: ClassVar[str] = "pg"
    loss_family: ClassVar[str] = "pg"
    processor: ClassVar[type[DataProcessor]] = ScoredProcessor

    def preparer_name(self) -> str:
        """``pg``, or ``pg_centred`` with a baseline."""
        return "pg_centred" if self.baseline == "running" else self.step_preparer


@register_kind("rwr")
@dataclass(frozen=True, kw_only=True)
class RWRRecipe(WeightTrainingRecipe):
    """Reward-weighted regression: each accepted sample trains with its score as its weight."""

    batch_size: int = knob(4, "samples per step", env="REEF_RWR_BATCH_SIZE", gt=0)
    min_score: float = knob(0.0, "a report below this score never trains", env="REEF_RWR_MIN_SCORE", ge=0)
    name: str = "rwr"
    summary: ClassVar[str] = "reward-weighted regression over accepted answers"
    step_preparer: ClassVar[str] = "rwr"
    loss_family: ClassVar[str] = "pg"
    processor: ClassVar[type[DataProcessor]] = ScoredProcessor
