"""One training step: rows and a loss family become an update, a durable artifact and its checks.

Knows nothing of processes or engines. Called by the train child. The same job gives the same bytes on the same machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from reef.train.losses import LossFunction, Options, Row, loss_function
from reef.train.losses.protocol import weights
from reef.train.torch_runtime import artifacts, canary
from reef.train.torch_runtime.attention import TreeLayout
from reef.train.torch_runtime.learner import Learner, save_optimizer
from reef.train.torch_runtime.loading import forward_packed
from reef.train.torch_runtime.modelfiles import ModelFacts
from reef.train.torch_runtime.packing import Packed, StepRow, pack
from reef.train.torch_runtime.settings import TrainSettings

Progress = Callable[[str, int, int], None]
"""Called with the phase, what is done and what there is to do, in trained tokens."""


@dataclass(frozen=True, slots=True)
class Job:
    """A step to make: ids, the parent's content and the payload."""

    step_id: str
    scenario: str
    step: int
    parent: str
    payload: Mapping[str, Any]


@dataclass(slots=True)
class _Measures:
    """Sums over the trained tokens of the first pass."""

    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    diff_max: float = 0.0
    diff_sum: float = 0.0
    diff_tokens: int = 0

    def add(self, measures: Mapping[str, Tensor], mask: Tensor) -> None:
        self.tokens += int(mask.sum())
        for name, values in measures.items():
            self.sums[name] = self.sums.get(name, 0.0) + float((values * mask).sum())

    def compare(self, logp: Tensor, rollout: Tensor, mask: Tensor) -> None:
        """Distance to the engine's log-probs, for rows that the parent generated."""
        diff = ((logp.detach() - rollout).abs() * mask).double()
        self.diff_max = max(self.diff_max, float(diff.max()))
        self.diff_sum += float(diff.sum())
        self.diff_tokens += int(mask.sum())

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.tokens if name in self.sums and self.tokens else None


def rows_of(payload: Mapping[str, Any]) -> list[StepRow]:
    """The rows of a payload that ``TorchRuntime.prepare`` has accepted."""
    advantages: Sequence[float] | None = payload.get("advantages")
    rows: list[StepRow] = []
    for number, row in enumerate(payload["rows"]):
        cut = len(row["tokens"]) - len(row["loss_mask"])
        rows.append(
            StepRow(
                number=number,
                prompt=tuple(row["tokens"][:cut]),
                response=tuple(row["tokens"][cut:]),
                mask=tuple(row["loss_mask"]),
                rollout_logp=tuple(row["rollout_log_probs"]),
                temperature=float(row.get("temperature") or 1.0),
                advantage=None if advantages is None else float(advantages[number]),
                reward=float(row.get("reward") or 0.0),
                content_id=row.get("content_id"),
            )
        )
    return rows


def make_step(
    learner: Learner, facts: ModelFacts, tokenizer: Tokenizer, job: Job, progress: Progress
) -> dict[str, Any]:
    """Train, save and check; the answer has ``outcome`` candidate, skip or refused."""
    began_at = time.monotonic()
    settings = learner.settings
    loss = loss_function(job.payload["loss"], Options(settings.clip_low, settings.clip_high))
    rows = rows_of(job.payload)
    live = [row for row in rows if row.advantage != 0.0] if "advantages" in loss.needs else rows
    metrics: dict[str, float] = {
        "rows": len(rows),
        "skipped_rows": len(rows) - len(live),
        "reward_mean": sum(row.reward for row in rows) / len(rows),
    }
    if not live:
        return {"outcome": "skip", "reason": "no_signal: every advantage is zero", "metrics": metrics}
    torch.manual_seed(settings.seed)
    learner.load(job.parent)
    optimizer = learner.optimizer(job.parent)
    looked_at = canary.canaries(tokenizer, rows, facts.context)
    with learner.compute():
        before = canary.distributions(learner.model, looked_at, learner.device)
    factors = dict(zip([row.number for row in rows], weights(loss.reducer, [r.trained for r in rows]), strict=True))
    refusal = _update(learner, optimizer, loss, live, factors, job.parent, facts.vocab, metrics, progress)
    if refusal is not None:
        learner.content_id = None
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return {"outcome": "refused", "reason": refusal, "metrics": finite}
    progress("save", 0, 1)
    return _save(learner, optimizer, facts, job, looked_at, before, metrics, began_at)


def _update(
    learner: Learner,
    optimizer: torch.optim.AdamW,
    loss: LossFunction,
    rows: Sequence[StepRow],
    factors: Mapping[int, float],
    parent: str,
    vocab: int,
    metrics: dict[str, float],
    progress: Progress,
) -> str | None:
    """All passes over the rows; fills ``metrics`` and returns why the step must not be made, or None."""
    settings = learner.settings
    batches = pack(rows, settings.micro_batch_tokens, vocab)
    total = sum(row.trained for row in rows) * settings.epochs
    parameters = list(learner.parameters.values())
    done = 0
    for epoch in range(settings.epochs):
        optimizer.zero_grad(set_to_none=True)
        measures, value = _Measures(), 0.0
        for packed in batches:
            value += _backward(learner, loss, packed, factors, parent, measures)
            done += sum(row.trained for row in packed.rows)
            progress("train", done, total)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm))
        if epoch == 0:
            refusal = _note(metrics, measures, value, norm, settings)
            if refusal is not None:
                return refusal
        if not math.isfinite(value) or not math.isfinite(norm):
            return "non_finite: the loss or its gradient is not a finite number"
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return None


def _note(
    metrics: dict[str, float], measures: _Measures, value: float, norm: float, settings: TrainSettings
) -> str | None:
    """Write the first pass into ``metrics``; the reason to refuse when the engine's log-probs are not the trainer's."""
    metrics["tokens"] = measures.tokens
    if math.isfinite(value) and math.isfinite(norm):
        metrics |= {"loss": value, "grad_norm": norm}
    for name, source in (("ratio_mean", "ratio"), ("clip_fraction", "clipped")):
        mean = measures.mean(source)
        if mean is not None and math.isfinite(mean):
            metrics[name] = mean
    if measures.diff_tokens:
        metrics["logprob_diff_max"] = measures.diff_max
        metrics["logprob_diff_mean"] = measures.diff_sum / measures.diff_tokens
        if not measures.diff_max <= settings.logprob_bound:
            return (
                f"logprobs_disagree: the engine's log-probs differ from the trainer's by {measures.diff_max:.3g}, "
                f"more than training.max_logprob_diff {settings.logprob_bound:g}"
            )
    return None


def _backward(
    learner: Learner,
    loss: LossFunction,
    packed: Packed,
    factors: Mapping[int, float],
    parent: str,
    measures: _Measures,
) -> float:
    """Add the gradient of one micro-batch; returns its part of the loss."""
    total = torch.zeros((), device=learner.device)
    with learner.compute():
        all_logp = response_logprobs(learner.model, packed, learner.device)
    for row, logp in zip(packed.rows, all_logp, strict=True):
        mask = torch.tensor(row.mask, dtype=torch.float32, device=learner.device)
        rollout = torch.tensor(row.rollout_logp, dtype=torch.float32, device=learner.device)
        losses, measured = loss.token_loss(Row(logp, mask, rollout, row.advantage))
        total = total + factors[row.number] * (losses * mask).sum()
        measures.add(measured or {"logp": logp.detach()}, mask)
        if row.content_id == parent:
            measures.compare(logp, rollout, mask)
    total.backward()  # type: ignore[no-untyped-call]
    return float(total.detach())


def response_logprobs(model: Any, packed: Packed, device: torch.device) -> list[Tensor]:
    """Log-probs [L] of each row's response ids, after its temperature."""
    layout = TreeLayout(packed.groups, device)
    keep = [at for places in packed.logits_at for at in places]
    targets = [token for row in packed.rows for token in row.response]
    divisors = [row.temperature for row in packed.rows for _ in row.response]
    as_ids = [torch.tensor(values, device=device) for values in (packed.ids, packed.positions, keep, targets)]
    logits = forward_packed(model, as_ids[0], as_ids[1], layout, as_ids[2])
    values = logits.float()
    if any(divisor != 1.0 for divisor in divisors):
        values = values / torch.tensor(divisors, device=device)[:, None]
    logp = values.gather(1, as_ids[3][:, None])[:, 0] - values.logsumexp(dim=-1)
    return list(logp.split([len(row.response) for row in packed.rows]))


def _save(
    learner: Learner,
    optimizer: torch.optim.AdamW,
    facts: ModelFacts,
    job: Job,
    looked_at: canary.Canaries,
    before: Tensor,
    metrics: dict[str, float],
    began_at: float,
) -> dict[str, Any]:
    """Write the artifact, read it back, check it, and make it durable under its content id."""
    folder = artifacts.temporary(learner.home, job.step_id)
    files = learner.save_weights(folder)
    save_optimizer(optimizer, learner.parameters, folder / artifacts.OPTIMIZER)
    learner.reload(folder)
    finite = all(bool(torch.isfinite(parameter).all()) for parameter in learner.parameters.values())
    with learner.compute():
        after = canary.distributions(learner.model, looked_at, learner.device)
    checks = canary.check(looked_at, before, after, facts.stop_ids, learner.settings.max_kl)
    checks["weights_finite"] = {"ok": finite, "value": float(finite), "limit": 1.0}
    if not finite or not checks["canary_finite"]["ok"]:
        learner.content_id = None
        return {"outcome": "refused", "reason": "non_finite: the new weights are not finite", "metrics": metrics}
    content_id = artifacts.content_id_of(files)
    metrics |= {"kl_parent": checks["kl_parent"]["value"], "seconds": time.monotonic() - began_at}
    manifest = {
        "content_id": content_id,
        "step_id": job.step_id,
        "scenario": job.scenario,
        "step": job.step,
        "parent": job.parent,
        "base_content_id": learner.base_content_id,
        "mode": learner.settings.mode,
        "loss": job.payload["loss"],
        "files": artifacts.file_hashes(folder),
        "shapes": learner.shapes(),
        "settings": learner.settings.as_dict(),
        "metrics": metrics,
        "checks": checks,
        "created_at": time.time(),
    }
    reference = artifacts.keep(learner.home, folder, content_id, manifest)
    learner.content_id = content_id
    return {
        "outcome": "candidate",
        "content_id": content_id,
        "size_bytes": reference.size_bytes,
        "metrics": metrics,
        "checks": checks,
    }
