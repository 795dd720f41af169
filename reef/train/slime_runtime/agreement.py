"""Three places name the objective of a Slime deployment: recipe, driver environment, Slime flags. Do they agree?

Pure. Called at boot by daemon.app and by ``reef recipe check``; a driver of another process may call it as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from reef.errors import BadConfig
from reef.train.slime_runtime.training_algos.registry import loss_family

LOSS, RECIPE = "REEF_TRAINING_LOSS", "REEF_TRAINING_RECIPE"


def disagreement(
    family: str, environ: Mapping[str, str], flags: str | None, family_of: Callable[[str], str]
) -> BadConfig | None:
    """The first pair that does not agree, as an error that names both sides; None where all do, or nothing else is said.

    ``family_of`` gives the loss family of a recipe kind. REEF_TRAINING_LOSS wins over REEF_TRAINING_RECIPE.
    """
    spec = loss_family(family)
    if loss := environ.get(LOSS):
        if loss_family(loss).name != spec.name:
            return _pair(spec.name, f"{LOSS}={loss}", f"export {LOSS}={spec.name}, or take it away")
    elif (kind := environ.get(RECIPE)) and (other := family_of(kind)) != spec.name:
        said = f"{RECIPE}={kind}, which trains with {other or 'no loss'}"
        return _pair(spec.name, said, f"export {LOSS}={spec.name}, or name the recipe that is served")
    if flags is None:
        return None
    given = _options(flags)
    for wanted in spec.flags:
        name, _, value = wanted.partition(" ")
        if name not in given:
            return _pair(spec.name, f"training.slime_flags has no {wanted}", f"add: {wanted}")
        if value and given[name] != value:
            said = f"training.slime_flags has {name} {given[name]}".rstrip()
            return _pair(spec.name, f"{said}, and the family needs {wanted}", f"write: {wanted}")
    return None


def _pair(family: str, other: str, hint: str) -> BadConfig:
    return BadConfig(f"the recipe trains with loss family {family}, but {other}", hint=hint, code="objective_mismatch")


def _options(flags: str) -> dict[str, str]:
    """Flags with their values, empty for a flag alone; raises BadConfig for what no shell would take."""
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise BadConfig(f"training.slime_flags: {error}", field="training.slime_flags") from None
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            after = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("--") else ""
            found[name] = value or after
    return found
