"""Sampling against the distribution it claims, log-prob conventions, filters, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reef.errors import BadRequest
from reef.train.torch_runtime.sampling import Sampling, filtered, pick, sampling_from

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def test_draws_follow_the_distribution() -> None:
    count = 4000
    rows = [Sampling(seed=seed, temperature=0.8) for seed in range(count)]
    picked = pick(LOGITS.repeat(count, 1), rows, [7] * count, [0] * count)
    tokens = torch.tensor([one.token for one in picked if one is not None])
    expected = torch.softmax(LOGITS / 0.8, 0)
    assert torch.bincount(tokens, minlength=5).float() / count == pytest.approx(expected, abs=0.03)


def test_logprobs_are_after_temperature_and_before_filters() -> None:
    rows = [Sampling(temperature=0.5, top_k=1), Sampling(temperature=0.0), Sampling(top_p=0.1)]
    picked = pick(LOGITS.repeat(3, 1), rows, [0, 0, 0], [0, 2, 0])
    cold, warm = torch.log_softmax(LOGITS / 0.5, 0), torch.log_softmax(LOGITS, 0)
    assert [one.token for one in picked if one] == [0, 0, 0]
    assert [one.logprob for one in picked if one] == pytest.approx([float(cold[0]), float(warm[0]), float(warm[0])])
    assert picked[1] is not None and [token for _, token in picked[1].top] == [0, 1]


def test_a_draw_depends_on_seed_and_position_only() -> None:
    noise = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    alone = pick(noise[2:3], [Sampling(seed=9)], [4], [0])[0]
    beside = pick(noise, [Sampling(seed=seed) for seed in (1, 2, 9, 3, 4, 5)], [1, 2, 4, 3, 4, 5], [0] * 6)[2]
    assert alone is not None and beside is not None and alone.token == beside.token


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=2), [0, 1]),
        (Sampling(top_p=0.7), [0, 1]),
        (Sampling(min_p=0.2), [0, 1, 2]),
        (Sampling(top_k=4, top_p=0.97, min_p=0.04), [0, 1, 2, 3]),
        (Sampling(top_p=1e-9), [0]),
    ],
)
def test_filters_keep_the_likeliest(sampling: Sampling, kept: list[int]) -> None:
    probabilities = torch.softmax(LOGITS, 0)
    assert filtered(probabilities, sampling).nonzero()[:, 0].tolist() == kept


def test_non_finite_logits_pick_nothing() -> None:
    bad = torch.full((1, 5), float("nan"))
    assert pick(torch.cat([bad, LOGITS[None]]), [Sampling(), Sampling()], [0, 0], [0, 0])[0] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("top_p", 0), ("top_k", 1.5), ("max_new_tokens", 0), ("min_p", "x"), ("stop", [1])],
)
def test_wrong_parameters_are_named(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        sampling_from({name: value}, 0)
    assert caught.value.field == f"sampling_params.{name}"
