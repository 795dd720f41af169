"""The registry of loss families. Declarations only: the losses are torch functions in train/losses.

Read by recipes at boot, by ``prepare_slime_step`` and by the drivers; a stranger's family comes in through
``register_loss_family`` or as ``package.module:SPEC``.
"""

from __future__ import annotations

from dataclasses import dataclass

from reef.dotted import imported
from reef.errors import BadConfig


@dataclass(frozen=True, slots=True)
class SlimeAlgorithm:
    """One loss family.

    ``needs`` and ``forbids`` name fields of a step's payload (``advantages``, ``rollout_log_probs``). ``flags`` are the Slime
    flags a driver must have been started with.
    """

    name: str
    needs: frozenset[str] = frozenset()
    forbids: frozenset[str] = frozenset()
    flags: tuple[str, ...] = ()


_CUSTOM = ("--loss-type custom_loss", "--use-rollout-logprobs")
FAMILIES: dict[str, SlimeAlgorithm] = {
    spec.name: spec
    for spec in (
        SlimeAlgorithm(
            "sft",
            forbids=frozenset({"advantages"}),
            flags=("--loss-type sft_loss", "--disable-compute-advantages-and-returns"),
        ),
        SlimeAlgorithm(
            "pg",
            needs=frozenset({"advantages", "rollout_log_probs"}),
            flags=("--loss-type policy_loss", "--advantage-estimator grpo", "--use-rollout-logprobs"),
        ),
        SlimeAlgorithm(
            "sao",
            needs=frozenset({"rollout_log_probs"}),
            forbids=frozenset({"advantages"}),
            flags=("--use-critic", "--use-rollout-logprobs"),
        ),
        SlimeAlgorithm("opd", needs=frozenset({"rollout_log_probs"}), forbids=frozenset({"advantages"}), flags=_CUSTOM),
        SlimeAlgorithm("tttd", needs=frozenset({"advantages", "rollout_log_probs"}), flags=_CUSTOM),
        SlimeAlgorithm("openclawrl-topk", needs=frozenset({"rollout_log_probs"}), flags=_CUSTOM),
    )
}


def loss_families() -> tuple[str, ...]:
    """Names of the registered families."""
    return tuple(FAMILIES)


def register_loss_family(spec: SlimeAlgorithm) -> SlimeAlgorithm:
    """Add a family; the same name with another declaration raises BadConfig."""
    if FAMILIES.setdefault(spec.name, spec) != spec:
        raise BadConfig(f"loss family {spec.name!r} is already registered with other rules")
    return spec


def loss_family(name: str) -> SlimeAlgorithm:
    """The family called ``name``, or the one at ``package.module:SPEC``; raises BadConfig."""
    if name in FAMILIES:
        return FAMILIES[name]
    if ":" in name:
        spec = imported(name, "loss family")
        if isinstance(spec, SlimeAlgorithm):
            return spec
        raise BadConfig(f"loss family {name!r} is no SlimeAlgorithm")
    raise BadConfig(f"no loss family {name!r}", hint=f"registered: {', '.join(FAMILIES)}")
