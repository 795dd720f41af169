"""LoRA: which layers get an adapter, the trainable layer, and the files in PEFT's naming.

Knows nothing of losses or requests. Called by the trainer, by the serving adapters and by export.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import linear

from reef.errors import BadRequest

PREFIX = "base_model.model."
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter: for each layer name ``a`` [rank, in] and ``b`` [out, rank], and the factor of b @ a."""

    scale: float
    layers: Mapping[str, tuple[Tensor, Tensor]]


class LoraLinear(nn.Module):
    """A frozen linear layer plus a trainable low-rank part in float32."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.scale = scale
        device = base.weight.device
        self.a = nn.Parameter(torch.zeros(rank, base.in_features, device=device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output with the low-rank part."""
        y = linear(x, self.weight, self.bias)
        return y + linear(linear(x.to(self.a.dtype), self.a) * self.scale, self.b).to(y.dtype)


def target_layers(model: Any) -> dict[str, nn.Linear]:
    """All linear layers of a model by name, the output head aside."""
    head = model.get_output_embeddings()
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not head}


def replace_layer(model: Any, name: str, layer: nn.Module) -> None:
    """Put ``layer`` where ``name`` was."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, layer)


def install(model: Any, rank: int, alpha: float) -> dict[str, LoraLinear]:
    """Give every linear layer a trainable part (all zero: no effect); returns the new layers by name."""
    layers: dict[str, LoraLinear] = {}
    for name, base in target_layers(model).items():
        layers[name] = LoraLinear(base, rank, alpha / rank)
        replace_layer(model, name, layers[name])
    return layers


def initialise(layers: Mapping[str, LoraLinear], seed: int) -> None:
    """Fresh adapter: ``a`` uniform in +-1/sqrt(in), ``b`` zero; the same seed gives the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in layers.values():
            bound = 1 / math.sqrt(layer.a.shape[1])
            layer.a.copy_(torch.empty(layer.a.shape).uniform_(-bound, bound, generator=generator))
            layer.b.zero_()


def adapter_tensors(layers: Mapping[str, LoraLinear]) -> dict[str, Tensor]:
    """The adapter's tensors by their PEFT names, on the CPU."""
    tensors: dict[str, Tensor] = {}
    for name, layer in layers.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = layer.a.detach().cpu().contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = layer.b.detach().cpu().contiguous()
    return tensors


def adapter_config(names: list[str], rank: int, alpha: float) -> dict[str, Any]:
    """The ``adapter_config.json`` that PEFT, SGLang and vLLM read; it names no path: equal adapters, equal files."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "r": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in names}),
        "use_rslora": False,
    }


def read_adapter(folder: Path) -> Adapter:
    """The adapter in ``folder`` (PEFT's files); raises BadRequest where it needs what a plain low-rank sum is not."""
    config_path, weights_path = folder / CONFIG_FILE, folder / WEIGHTS_FILE
    if not config_path.is_file() or not weights_path.is_file():
        raise BadRequest(f"{folder} holds no adapter: {CONFIG_FILE} and {WEIGHTS_FILE} are needed")
    config = json.loads(config_path.read_text())
    if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("rank_pattern"):
        raise BadRequest(f"{folder}: only plain LoRA adapters of one rank can be loaded")
    rank = int(config["r"])
    scale = float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    halves: dict[str, dict[str, Tensor]] = {}
    with safe_open(weights_path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            layer, _, half = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
            if half not in ("lora_A", "lora_B"):
                raise BadRequest(f"{weights_path}: {name} is no plain LoRA tensor")
            halves.setdefault(layer, {})[half] = file.get_tensor(name)
    if any(len(pair) != 2 for pair in halves.values()):
        raise BadRequest(f"{weights_path}: a layer lacks lora_A or lora_B")
    return Adapter(scale, {name: (pair["lora_A"], pair["lora_B"]) for name, pair in halves.items()})


def load_into(layers: Mapping[str, LoraLinear], adapter: Adapter) -> None:
    """Copy a saved adapter into trainable layers; raises BadRequest when names, shapes or factor differ."""
    if set(layers) != set(adapter.layers):
        raise BadRequest("the saved adapter covers other layers than this model has")
    with torch.no_grad():
        for name, (a, b) in adapter.layers.items():
            layer = layers[name]
            if layer.a.shape != a.shape or layer.b.shape != b.shape or layer.scale != adapter.scale:
                raise BadRequest(
                    f"the saved adapter has rank {a.shape[0]} and factor {adapter.scale:g}, "
                    f"the settings say {layer.a.shape[0]} and {layer.scale:g}",
                    hint="set training.lora_rank and training.lora_alpha to what the release was trained with",
                )
            layer.a.copy_(a)
            layer.b.copy_(b)
