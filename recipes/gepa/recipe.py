"""gepa: reflective evolution of a harness with a Pareto archive (Agrawal and others 2025, arXiv 2507.19457)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reef.config import knob
from reef.errors import BadConfig
from reef.evolve.backend import LocalTrainingBackend
from reef.gate import GateSettings
from reef.recipes import EvolvingRecipe
from reef.train.loop import Prepare

from .backend import BEGINS, GATE, GEPABackend, prepare_gepa_step


@dataclass(frozen=True, kw_only=True)
class GEPARecipe(EvolvingRecipe):
    """Keep what is best at some task, rewrite one entry at a time after what it did, publish what is best on all."""

    propose: str = knob("reef.cookbook.gepa.reflect:propose", "what makes a proposal: package.module:function")
    minibatch: int = knob(3, "tasks that a parent and its child are compared on first", gt=0)
    merges: int = knob(0, "most merges of two programs that are kept, 0 for none", ge=0)
    merge_overlap: int = knob(5, "fewest tasks that merges are made with", gt=0)
    random_seed: int = knob(0, "seed of all that is drawn")
    name: str = "gepa"
    summary: ClassVar[str] = (
        "rewrites one entry at a time after what it did, from an archive of what is best at some task"
    )
    stateful: ClassVar[bool] = True
    backend: ClassVar[type[LocalTrainingBackend]] = GEPABackend
    prepare_step: ClassVar[Prepare] = staticmethod(prepare_gepa_step)

    def __post_init__(self) -> None:
        """There must be an entry to rewrite, or one to begin."""
        super().__post_init__()
        kinds = self.allowed_kinds()
        if not kinds & set(BEGINS) and not any(one.kind in kinds for one in self.seed_tree()):
            raise BadConfig(
                f"the seed has no entry of the kinds that may be changed ({', '.join(sorted(kinds))})",
                hint=f"give reef.seed with one, or allow one of {', '.join(BEGINS)}",
                field="reef.kinds",
            )

    def gate_settings(self) -> GateSettings:
        """The mean over all tasks, strictly."""
        return GATE


RECIPE = GEPARecipe
