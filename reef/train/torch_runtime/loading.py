"""Loads a model folder with transformers so that it attends over packed tokens.

Knows nothing of serving or training. Called by both children and by tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from reef.errors import BadConfig
from reef.train.torch_runtime import attention

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    """The device a setting names; ``auto`` takes CUDA, then MPS, then the CPU."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(folder: Path, dtype: str, device: torch.device) -> Any:
    """The causal language model in ``folder``, in evaluation mode, frozen, with packed attention."""
    attention.register()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[dtype], attn_implementation=attention.NAME, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise BadConfig(f"cannot load the model in {folder}: {error}") from error
    check_architecture(model, folder)
    model.to(device)
    model.requires_grad_(False)
    return model.eval()


def check_architecture(model: Any, folder: Path) -> None:
    """Refuse models whose layers are not plain (or sliding-window) attention: they would be wrong in silence."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds or not getattr(model, "_supports_attention_backend", False):
        what = ", ".join(sorted(kinds)) or type(model).__name__
        raise BadConfig(
            f"the embedded engine cannot run {folder}: {what} is not plain attention",
            hint="serve it with SGLang, or take a model of the llama, qwen, mistral or similar families",
        )


def forward_packed(model: Any, ids: torch.Tensor, positions: torch.Tensor, layout: Any, keep: torch.Tensor) -> Any:
    """Logits [len(keep), V] at the run positions ``keep`` of the flat run ``ids`` [N]."""
    out = model(input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=keep, layout=layout)
    return out.logits[0]
