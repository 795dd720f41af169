"""Loss families against NumPy references written here, and their gradients against finite differences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from reef.errors import BadRequest
from reef.train.losses import Options, Reducer, Row, loss_function, loss_names, weights

LOGP = np.array([-0.2, -1.5, -3.0, -0.7, -2.2])
ROLLOUT = np.array([-0.9, -1.4, -2.1, -0.7, -2.9])


def pg_reference(logp: np.ndarray, rollout: np.ndarray, advantage: float, low: float, high: float) -> np.ndarray:
    ratio = np.exp(logp - rollout)
    return np.maximum(-ratio * advantage, -np.clip(ratio, 1 - low, 1 + high) * advantage)


def row(logp: Any, advantage: float | None = None) -> Row:
    tensor = logp if isinstance(logp, torch.Tensor) else torch.tensor(logp)
    return Row(tensor, torch.ones_like(tensor), torch.tensor(ROLLOUT), advantage)


@pytest.mark.parametrize("advantage", [1.5, -0.7])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (0.05, 3.0)])
def test_pg_equals_the_reference(advantage: float, low: float, high: float) -> None:
    loss, measured = loss_function("pg", Options(low, high)).token_loss(row(LOGP, advantage))
    expected = pg_reference(LOGP, ROLLOUT, advantage, low, high)
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-12)
    ratio = np.exp(LOGP - ROLLOUT)
    np.testing.assert_allclose(measured["ratio"].numpy(), ratio, rtol=1e-12)
    held = (ratio > 1 + high) if advantage > 0 else (ratio < 1 - low)
    np.testing.assert_array_equal(measured["clipped"].numpy(), held)


def test_sft_equals_the_reference() -> None:
    loss, _ = loss_function("sft").token_loss(row(LOGP))
    np.testing.assert_array_equal(loss.numpy(), -LOGP)


def numeric_gradient(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    step = 1e-6
    return np.array([(function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(len(at))])


@pytest.mark.parametrize(("name", "advantage"), [("pg", 1.3), ("pg", -0.4), ("sft", None)])
def test_gradient_is_that_of_finite_differences(name: str, advantage: float | None) -> None:
    family = loss_function(name)
    logp = torch.tensor(LOGP, requires_grad=True)
    family.token_loss(row(logp, advantage))[0].sum().backward()
    assert logp.grad is not None

    def value(at: np.ndarray) -> float:
        return float(family.token_loss(row(at, advantage))[0].sum())

    np.testing.assert_allclose(logp.grad.numpy(), numeric_gradient(value, LOGP), rtol=1e-5, atol=1e-7)


def test_clipped_tokens_push_no_further() -> None:
    logp = torch.tensor(LOGP, requires_grad=True)
    loss, measured = loss_function("pg").token_loss(row(logp, 1.0))
    loss.sum().backward()
    assert logp.grad is not None
    assert measured["clipped"].any()
    assert (logp.grad[measured["clipped"].bool()] == 0).all()


def test_reducers_use_the_whole_step() -> None:
    trained = [4, 1, 5]
    assert weights(Reducer.SAMPLE_MEAN, trained) == [1 / 12, 1 / 3, 1 / 15]
    assert weights(Reducer.TOKEN_MEAN, trained) == [0.1] * 3
    assert weights(Reducer.TOKEN_SUM, trained) == [1.0] * 3


@pytest.mark.parametrize(
    ("loss", "payload", "field"),
    [
        ("sft", {"rows": [{}], "advantages": [1.0]}, "advantages"),
        ("pg", {"rows": [{}]}, "advantages"),
        ("pg", {"rows": [{}, {}], "advantages": [1.0]}, "advantages"),
        ("pg", {"rows": [{}], "advantages": [float("nan")]}, "advantages"),
        ("nope", {"rows": [{}]}, "loss"),
    ],
)
def test_a_wrong_payload_is_refused_by_name(loss: str, payload: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        loss_function(loss).validate(payload)
    assert caught.value.field == field


def test_names() -> None:
    assert {"sft", "pg"} <= loss_names()


def test_importing_the_families_loads_no_torch() -> None:
    code = "import sys, reef.train.losses, reef.train.torch_runtime.runtime; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
