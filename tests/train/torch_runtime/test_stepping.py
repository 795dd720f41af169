"""A step in process: packing never changes the gradient, skipping neither, everything is repeatable, refusals."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from reef.core.artifacts import artifact_path
from reef.errors import BadConfig, BadRequest
from reef.train.losses import loss_function
from reef.train.losses.protocol import weights
from reef.train.torch_runtime import lora
from reef.train.torch_runtime.learner import Learner
from reef.train.torch_runtime.modelfiles import base_content_id, model_facts
from reef.train.torch_runtime.packing import StepRow, pack
from reef.train.torch_runtime.settings import TrainSettings
from reef.train.torch_runtime.stepping import Job, _backward, _Measures, make_step, rows_of
from tests.train.torch_runtime.support import plain_logprobs


def rows(seed: int = 0, count: int = 9) -> list[dict[str, Any]]:
    """Rows of all sizes over three prompts, with made-up rollout log-probs and masked tokens in the middle."""
    source = random.Random(seed)
    made = []
    for number in range(count):
        size = source.randrange(1, 14)
        prompt = [1, *range(30 + number % 3, 40 + 5 * (number % 3))]
        mask = [1] + [int(source.random() < 0.8) for _ in range(size - 1)]
        made.append(
            {
                "tokens": prompt + [source.randrange(3, 298) for _ in range(size)],
                "loss_mask": mask,
                "rollout_log_probs": [-source.random() * 6 for _ in range(size)],
                "reward": source.random(),
                "temperature": source.choice([1.0, 0.7]),
                "content_id": None,
            }
        )
    return made


ADVANTAGES = [1.0, -0.5, 0.0, 2.0, 0.0, -1.0, 0.25, 0.0, -0.75]


def learner(tiny: Path, home: Path, **settings: Any) -> Learner:
    made = Learner(tiny, home, base_content_id(tiny), TrainSettings(**{"learning_rate": 1e-2, **settings}))
    made.load(made.base_content_id)
    return made


def step(tiny: Path, home: Path, step_id: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    settings = {name: value for name, value in more.items() if name != "payload"}
    made = learner(tiny, home, **settings)
    payload = more.get("payload", {"loss": "pg", "rows": rows(), "advantages": ADVANTAGES})
    job = Job(step_id, "s", 1, parent or made.base_content_id, payload)
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    return make_step(made, model_facts(tiny), tokenizer, job, lambda phase, done, total: None)


def gradient(
    made: Learner, chosen: list[StepRow], factors: dict[int, float], max_tokens: int
) -> dict[str, torch.Tensor]:
    for parameter in made.parameters.values():
        parameter.grad = None
    batches = pack(chosen, max_tokens, vocab=298)
    for packed in batches:
        _backward(made, loss_function("pg"), packed, factors, "parent", _Measures())
    return {name: parameter.grad for name, parameter in made.parameters.items() if parameter.grad is not None}


def test_packing_and_skipping_do_not_change_the_gradient(tiny: Path, tmp_path: Path) -> None:
    made = learner(tiny, tmp_path)
    with torch.no_grad():
        for layer in made.layers.values():
            layer.b.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
    all_rows = rows_of({"rows": rows(), "advantages": ADVANTAGES})
    reducer = loss_function("pg").reducer
    factors = dict(enumerate(weights(reducer, [row.trained for row in all_rows])))
    live = [row for row in all_rows if row.advantage]
    whole = gradient(made, all_rows, factors, 10_000)
    assert len(pack(all_rows, 10_000, 298)) == 1 and len(pack(all_rows, 1, 298)) == 9
    for chosen, max_tokens in ((all_rows, 1), (all_rows, 40), (live, 10_000), (live[::-1], 25)):
        other = gradient(made, chosen, factors, max_tokens)
        assert set(other) == set(whole)
        for name, value in whole.items():
            assert torch.allclose(other[name], value, atol=1e-6, rtol=1e-4), name


def test_the_gradient_is_that_of_finite_differences_on_plain_transformers(tiny: Path, tmp_path: Path) -> None:
    """A direction in weight space: the loss by unmodified transformers on merged weights, up and down."""
    from reef.train.torch_runtime.learner import export

    made = learner(tiny, tmp_path)
    chosen = rows_of({"rows": rows(count=3), "advantages": [1.0, -0.5, 0.7]})
    factors = dict(enumerate(weights(loss_function("pg").reducer, [row.trained for row in chosen])))
    grads = gradient(made, chosen, factors, 10_000)
    source = torch.Generator().manual_seed(2)
    direction = {name: torch.randn(value.shape, generator=source) for name, value in grads.items()}
    slope = sum(float((grads[name] * direction[name]).sum()) for name in grads)

    def loss_at(amount: float) -> float:
        moved = learner(tiny, tmp_path)
        folder = tmp_path / f"at{amount}"
        folder.mkdir()
        with torch.no_grad():
            for name, parameter in moved.parameters.items():
                parameter += amount * direction[name]
        moved.save_weights(folder)
        export(tiny, folder, folder / "merged")
        total = 0.0
        for row in chosen:
            logp = plain_logprobs(folder / "merged", [*row.prompt, *row.response], len(row.response), row.temperature)
            for at, value in enumerate(logp):
                ratio = torch.tensor(value - row.rollout_logp[at]).exp()
                assert row.advantage is not None
                part = torch.maximum(-ratio * row.advantage, -ratio.clamp(0.8, 1.28) * row.advantage)
                total += factors[row.number] * row.mask[at] * float(part)
        return total

    size = 2e-3
    assert (loss_at(size) - loss_at(-size)) / (2 * size) == pytest.approx(slope, rel=0.02, abs=1e-3)


def test_the_same_step_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    once, again = step(tiny, tmp_path / "a", "x"), step(tiny, tmp_path / "b", "x")
    assert once["outcome"] == "candidate" and once["content_id"] == again["content_id"]
    for name in ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"):
        files = [artifact_path(tmp_path / home, once["content_id"]) / name for home in ("a", "b")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert not list((tmp_path / "a" / "artifacts").glob(".tmp-*"))


def test_training_goes_on_from_the_optimizer_of_the_parent(tiny: Path, tmp_path: Path) -> None:
    """Two steps through the disk equal two updates of one AdamW in memory."""
    first = step(tiny, tmp_path, "one")
    second = step(tiny, tmp_path, "two", first["content_id"])
    made = learner(tiny, tmp_path)
    optimizer = torch.optim.AdamW(made.parameters.values(), lr=1e-2, weight_decay=0.0)
    chosen = rows_of({"rows": rows(), "advantages": ADVANTAGES})
    factors = dict(enumerate(weights(loss_function("pg").reducer, [row.trained for row in chosen])))
    for _ in range(2):
        gradient(made, [row for row in chosen if row.advantage], factors, 2048)
        torch.nn.utils.clip_grad_norm_(made.parameters.values(), 1.0)
        optimizer.step()
    saved = load_file(artifact_path(tmp_path, second["content_id"]) / lora.WEIGHTS_FILE)
    for name, tensor in lora.adapter_tensors(made.layers).items():
        assert torch.equal(saved[name], tensor), name


def test_several_passes_over_a_batch_clip(tiny: Path, tmp_path: Path) -> None:
    one, four = step(tiny, tmp_path, "one"), step(tiny, tmp_path, "four", epochs=4)
    assert one["content_id"] != four["content_id"]
    assert four["metrics"]["kl_parent"] > one["metrics"]["kl_parent"]


def test_full_mode_trains_all_weights_and_saves_a_plain_folder(tiny: Path, tmp_path: Path) -> None:
    made = step(tiny, tmp_path, "full", mode="full", learning_rate=1e-3)
    folder = artifact_path(tmp_path, made["content_id"])
    assert made["outcome"] == "candidate" and (folder / "model.safetensors").is_file()
    before, after = load_file(tiny / "model.safetensors"), load_file(folder / "model.safetensors")
    assert set(before) == set(after) and all(not torch.equal(before[name], after[name]) for name in before)
    tokens = [1, 30, 40, 50]
    assert plain_logprobs(folder, tokens, 3) != plain_logprobs(tiny, tokens, 3)
    again = step(tiny, tmp_path, "full2", made["content_id"], mode="full", learning_rate=1e-3)
    assert again["outcome"] == "candidate"


def test_sft_raises_the_likelihood_of_its_rows(tiny: Path, tmp_path: Path) -> None:
    payload = {"loss": "sft", "rows": rows()}
    first = step(tiny, tmp_path, "one", payload=payload)
    second = step(tiny, tmp_path, "two", first["content_id"], payload=payload)
    assert second["metrics"]["loss"] < first["metrics"]["loss"]


def test_a_non_finite_gradient_is_refused_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    bad = rows()
    bad[0]["rollout_log_probs"] = [-3e38] * len(bad[0]["loss_mask"])
    payload = {"loss": "pg", "rows": bad, "advantages": [-1.0, *ADVANTAGES[1:]]}
    made = step(tiny, tmp_path, "bad", payload=payload)
    assert made["outcome"] == "refused" and made["reason"].startswith("non_finite")
    assert not list((tmp_path / "artifacts").iterdir()) if (tmp_path / "artifacts").exists() else True


def test_another_rank_than_the_parents_is_refused(tiny: Path, tmp_path: Path) -> None:
    first = step(tiny, tmp_path, "one")
    with pytest.raises(BadRequest, match="rank 16"):
        step(tiny, tmp_path, "two", first["content_id"], lora_rank=8)


def test_the_adapter_is_what_peft_expects(tiny: Path, tmp_path: Path) -> None:
    made = step(tiny, tmp_path, "one")
    names = set(load_file(artifact_path(tmp_path, made["content_id"]) / lora.WEIGHTS_FILE))
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    assert "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight" in names
    assert len(names) == 2 * 7 * 2 and not any("lm_head" in name for name in names)


@pytest.mark.parametrize("wrong", [{"mode": "half"}, {"lora_rank": 0}, {"epochs": 0}, {"clip_low": -1.0}])
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as caught:
        TrainSettings(**wrong)
    assert next(iter(wrong)) in str(caught.value.field)
