"""Checks the payload of a step before anything is changed. Plain Python; called by ``TorchRuntime.prepare``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reef.errors import BadRequest
from reef.train.losses import loss_function
from reef.train.torch_runtime.modelfiles import ModelFacts
from reef.train.types import RowError, check_tensors


def check_payload(payload: Mapping[str, Any], facts: ModelFacts) -> int:
    """The number of trained tokens; raises BadRequest naming the row and the rule it breaks."""
    rows = payload.get("rows")
    if not isinstance(rows, list) or not rows:
        raise BadRequest("the step has no rows", field="rows")
    trained = 0
    for number, row in enumerate(rows):
        try:
            check_tensors(row)
        except RowError as error:
            raise BadRequest(f"row {number}: {error}", field=f"rows.{number}") from error
        if max(row["tokens"]) >= facts.vocab:
            raise BadRequest(f"row {number}: token {max(row['tokens'])} is not among the model's {facts.vocab} ids")
        if len(row["tokens"]) > facts.context:
            raise BadRequest(f"row {number}: {len(row['tokens'])} tokens exceed the model's context of {facts.context}")
        trained += sum(row["loss_mask"])
    loss_function(str(payload.get("loss"))).validate(payload)
    return trained
