"""Full-weight swap of a served model: load beside it, compare, copy in place. Knows nothing of requests.

Called by the engine's server; ``load_beside`` may run in any thread, ``copy_into`` only between two passes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from reef.errors import BadRequest


def load_beside(folder: Path, model: Any) -> dict[str, Tensor]:
    """The tensors in ``folder`` under the names of ``model``; raises BadRequest when any differs in name or shape."""
    if not (folder / "config.json").is_file():
        raise BadRequest(f"{folder} is no model folder", field="model_path")
    try:
        other = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadRequest(f"cannot load {folder}: {error}", field="model_path") from error
    fresh: dict[str, Tensor] = dict(other.named_parameters())
    here: dict[str, Tensor] = dict(model.named_parameters())
    if set(fresh) != set(here):
        odd = sorted(set(fresh) ^ set(here))[0]
        raise BadRequest(f"{folder} is another model: {odd} is on one side only", field="model_path")
    for name, tensor in fresh.items():
        if tensor.shape != here[name].shape:
            raise BadRequest(
                f"{folder}: {name} is {tuple(tensor.shape)}, serving {tuple(here[name].shape)}", field="model_path"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise BadRequest(f"{folder}: {name} is not finite", field="model_path")
    return fresh


def copy_into(model: Any, fresh: dict[str, Tensor]) -> None:
    """Overwrite the weights of ``model`` in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fresh[name])
