"""The trainable copy of the model: loads the state of any release, saves a new one. Knows nothing of rows or losses.

Used by the stepper and by export, in the train child only. Trained numbers are float32, whatever the model computes in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from reef.core.artifacts import artifact_path
from reef.errors import BadRequest
from reef.train.torch_runtime import artifacts, lora, weights
from reef.train.torch_runtime.loading import load_model, pick_device
from reef.train.torch_runtime.settings import TrainSettings

_SIDE_FILES = ("*.json", "*.jinja", "*.model", "*.txt")


class Learner:
    """A model with its trainable parameters; ``content_id`` says whose weights it holds now."""

    def __init__(self, base: Path, home: Path, base_content_id: str, settings: TrainSettings) -> None:
        self.base, self.home, self.settings = base, home, settings
        self.base_content_id = base_content_id
        self.device = pick_device(settings.device)
        full = settings.mode == "full"
        self.model = load_model(base, "float32" if full else settings.dtype, self.device)
        self.layers: dict[str, lora.LoraLinear] = {}
        if full:
            self.model.requires_grad_(True)
        else:
            self.layers = lora.install(self.model, settings.lora_rank, settings.lora_alpha)
        self.parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad
        }
        self.content_id: str | None = None

    def compute(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        if self.settings.dtype == "bfloat16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def load(self, content_id: str) -> None:
        """Take the weights of a release, read from disk (the base: its own, with a fresh adapter)."""
        folder = self._folder(content_id)
        if not self.layers:
            weights.copy_into(self.model, weights.load_beside(folder, self.model))
        elif content_id == self.base_content_id:
            lora.initialise(self.layers, self.settings.seed)
        else:
            lora.load_into(self.layers, lora.read_adapter(folder))
        self.content_id = content_id

    def optimizer(self, content_id: str) -> torch.optim.AdamW:
        """AdamW with the state that release was saved with; fresh for the base."""
        made = torch.optim.AdamW(
            list(self.parameters.values()), lr=self.settings.rate, weight_decay=self.settings.weight_decay
        )
        if content_id != self.base_content_id:
            _load_optimizer(made, self.parameters, self._folder(content_id) / artifacts.OPTIMIZER)
        return made

    def save_weights(self, folder: Path) -> list[Path]:
        """Write what is served into ``folder``; returns those files."""
        if not self.layers:
            copy_side_files(self.base, folder)
            self.model.save_pretrained(folder)
            return sorted(path for path in folder.iterdir())
        settings = self.settings
        config = lora.adapter_config(list(self.layers), settings.lora_rank, settings.lora_alpha)
        (folder / lora.CONFIG_FILE).write_text(json.dumps(config, indent=1, sort_keys=True))
        save_file(lora.adapter_tensors(self.layers), folder / lora.WEIGHTS_FILE, metadata={"format": "pt"})
        return [folder / lora.CONFIG_FILE, folder / lora.WEIGHTS_FILE]

    def reload(self, folder: Path) -> None:
        """Take the weights written in ``folder``; what validation sees is what is on disk."""
        if self.layers:
            lora.load_into(self.layers, lora.read_adapter(folder))
        else:
            weights.copy_into(self.model, weights.load_beside(folder, self.model))
        self.content_id = None

    def shapes(self) -> dict[str, list[int]]:
        """Names and shapes of what trains."""
        return {name: list(parameter.shape) for name, parameter in self.parameters.items()}

    def _folder(self, content_id: str) -> Path:
        if content_id == self.base_content_id:
            return self.base
        folder = artifact_path(self.home, content_id)
        if not folder.is_dir():
            raise BadRequest(f"the files of release content {content_id} are gone", field="parent")
        return folder


def save_optimizer(optimizer: torch.optim.AdamW, parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    """Write both moments of every parameter and the number of updates."""
    tensors: dict[str, Tensor] = {}
    updates = 0
    for name, parameter in parameters.items():
        state = optimizer.state[parameter]
        updates = int(state["step"])
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors[f"{moment}.{name}"] = state[moment].detach().cpu().contiguous()
    save_file(tensors, path, metadata={"updates": str(updates)})


def _load_optimizer(optimizer: torch.optim.AdamW, parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        updates = float((file.metadata() or {})["updates"])
        for name, parameter in parameters.items():
            optimizer.state[parameter] = {
                "step": torch.tensor(updates),
                "exp_avg": file.get_tensor(f"exp_avg.{name}").to(parameter.device),
                "exp_avg_sq": file.get_tensor(f"exp_avg_sq.{name}").to(parameter.device),
            }


def copy_side_files(source: Path, target: Path) -> None:
    """Copy configuration and tokenizer files, not weights."""
    for pattern in _SIDE_FILES:
        for file in source.glob(pattern):
            if not file.name.endswith(".index.json") and file.name != "reef-model.json":
                shutil.copyfile(file, target / file.name)


def export(base: Path, artifact: Path | None, target: Path) -> None:
    """Write a plain Hugging Face folder in float32: full weights as they are, an adapter folded into the base."""
    folded = artifact is not None and (artifact / lora.CONFIG_FILE).is_file()
    model = load_model(base if artifact is None or folded else artifact, "float32", torch.device("cpu"))
    if artifact is not None and folded:
        read = lora.read_adapter(artifact)
        with torch.no_grad():
            for name, (a, b) in read.layers.items():
                weight = model.get_submodule(name).weight
                weight += read.scale * (b.float() @ a.float())
    target.mkdir(parents=True, exist_ok=True)
    copy_side_files(base, target)
    model.config._attn_implementation = "sdpa"
    model.save_pretrained(target)
