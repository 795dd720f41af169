"""The tiny model learns a behaviour from scored use over HTTP, on exactly the log-probs it sampled with (issue 2, Show 6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient
from tests.support import daemon, eventually

pytestmark = pytest.mark.slow

GROUPS, GROUP_SIZE, STEPS = 4, 8, 9
MAX_DIFF = 1e-4
"""Largest difference between a sampled token's log-prob and the trainer's recomputation, in fp32 at lag 0."""
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
FORMS: tuple[dict[str, Any], ...] = ({}, {"stream": True}, {"tools": TOOLS}, {"stream": True, "tools": TOOLS})
"""Each group asks in its own form: plain and streamed, with and without tools."""


def score(text: str) -> float:
    """The checker: the share of digits."""
    return sum(character in "0123456789" for character in text) / max(1, len(text))


def ask(client: ReefClient, form: dict[str, Any], seed: int) -> tuple[str, float]:
    """One answer in the given form, asked for until there is something in it; its receipt and its score."""
    message = {"role": "user", "content": f"digits {'abcd'[FORMS.index(form)]}"}
    for again in range(20):
        body = {"model": "tiny", "messages": [message], "max_tokens": 16, "seed": seed + again * 10**6, **form}
        receipt = client.call(body).headers["x-reef-agent-record-id"]
        record = client.record(receipt)
        if record["reason"] is None:
            return receipt, score(record["response"]["choices"][0]["message"]["content"] or "")
        assert record["reason"]["code"] == "empty_answer"
    raise AssertionError("twenty empty answers")


def test_the_tiny_model_learns_from_scores(tiny_model: Path, tmp_path: Path) -> None:
    settings = {
        "reef_model_path": str(tiny_model),
        "reef_recipe": "grpo",
        "reef_batch_size": str(GROUPS * GROUP_SIZE),
        "reef_group_size": str(GROUP_SIZE),
        "training_mode": "full",
        "training_learning_rate": "2e-2",
    }
    curve: list[float] = []
    with daemon(tmp_path, **settings) as one, one.client() as client, ThreadPoolExecutor(8) as pool:
        for step in range(1, STEPS + 1):
            forms = [FORMS[index % len(FORMS)] for index in range(GROUPS * GROUP_SIZE)]
            seeds = range(step * 1000, step * 1000 + len(forms))
            answers = list(pool.map(lambda form, seed: ask(client, form, seed), forms, seeds))
            for receipt, reward in answers:
                client.report(score=reward, references=[receipt])
            eventually(lambda step=step: client.get("/reef/scenarios/s")["step"] == step)
            curve.append(sum(reward for _, reward in answers) / len(answers))
        chain = [row for row in client.releases("s") if row["step"] > 0]
    assert [row["step"] for row in chain] == list(range(STEPS, 0, -1))
    assert all(row["state"] in ("published", "serving") for row in chain)
    assert sum(curve[-2:]) / 2 > sum(curve[:2]) / 2 + 0.4, curve
    assert all(row["metrics"]["tokens"] > 0 for row in chain)
    assert max(row["metrics"]["logprob_diff_max"] for row in chain) < MAX_DIFF
