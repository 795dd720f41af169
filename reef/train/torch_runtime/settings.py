"""Settings of the embedded engine: one frozen value, field names are the YAML keys ``training.*``.

Knows nothing of torch. Made by the configuration loader, passed on to both children.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from reef.errors import BadConfig

FULL_LEARNING_RATE = 1e-5
LORA_LEARNING_RATE = 3e-4


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How the embedded engine trains and serves.

    None means the default: ``learning_rate`` that of the mode, ``max_logprob_diff`` that of the precision.
    """

    mode: Literal["lora", "full"] = "lora"
    lora_rank: int = 16
    lora_alpha: float = 32.0
    learning_rate: float | None = None
    weight_decay: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    max_grad_norm: float = 1.0
    epochs: int = 1
    micro_batch_tokens: int = 2048
    seed: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    serve_threads: int = 1
    train_threads: int = 0
    slots: int = 16
    max_logprob_diff: float | None = None
    max_kl: float = 1.0

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, ("lora", "full"))
        _one_of("dtype", self.dtype, ("float32", "bfloat16"))
        for name in ("lora_rank", "epochs", "micro_batch_tokens", "serve_threads", "slots"):
            _above("training", name, getattr(self, name), 0)
        for name in ("lora_alpha", "max_grad_norm", "max_kl", "rate", "logprob_bound"):
            _above("training", name, getattr(self, name), 0)
        for name in ("weight_decay", "train_threads", "clip_low", "clip_high"):
            if getattr(self, name) < 0:
                raise BadConfig(f"training.{name} must not be negative", field=f"training.{name}")

    @property
    def rate(self) -> float:
        """The learning rate in force."""
        if self.learning_rate is not None:
            return self.learning_rate
        return LORA_LEARNING_RATE if self.mode == "lora" else FULL_LEARNING_RATE

    @property
    def logprob_bound(self) -> float:
        """How far one log-prob of the engine may be from the trainer's; bfloat16 alone rounds by up to 0.4."""
        if self.max_logprob_diff is not None:
            return self.max_logprob_diff
        return 1e-2 if self.dtype == "float32" else 1.0

    @property
    def trainer_threads(self) -> int:
        """Threads of the train child: as set, else all cores but one."""
        return self.train_threads or max(1, (os.cpu_count() or 2) - 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as sent to the train child and written into manifests."""
        return {**asdict(self), "learning_rate": self.rate, "max_logprob_diff": self.logprob_bound}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSettings:
        """The settings that ``as_dict`` gave."""
        return cls(**values)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadConfig(
            f"training.{name} is {value!r}", hint=f"use one of: {', '.join(allowed)}", field=f"training.{name}"
        )


def _above(section: str, name: str, value: float, limit: float) -> None:
    if not value > limit:
        raise BadConfig(f"{section}.{name} must be above {limit}, not {value}", field=f"{section}.{name}")
