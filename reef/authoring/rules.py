"""A rule that does not hold, and the rules of a preparer: a signal that a runtime would take, and a state that a store keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reef.authoring.subject import Subject
from reef.errors import BadRequest
from reef.train.losses import loss_function, loss_names
from reef.train.types import RowError, TrainingBatch, check_tensors


class Fault(Exception):
    """A rule that does not hold. ``rule`` names it, ``record_id`` the record it is about."""

    def __init__(self, rule: str, message: str, record_id: str | None = None) -> None:
        super().__init__(message)
        self.rule, self.message, self.record_id = rule, message, record_id


def prepared(subject: Subject, batch: TrainingBatch, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the preparer makes of the batch, checked as a runtime would; returns the next algorithm state."""
    assert subject.prepare is not None
    before = json.dumps(state, sort_keys=True, default=str)
    try:
        made = subject.prepare(batch, state=state)
        again = subject.prepare(batch, state=state)
        if json.dumps(state, sort_keys=True, default=str) != before:
            raise Fault("preparer", "the preparer changes the state it is given: return a new one")
        texts = [
            json.dumps([one.payload, dict(one.signal.next_algorithm_state)], sort_keys=True, allow_nan=False)
            for one in (made, again)
        ]
        if texts[0] != texts[1]:
            raise Fault("preparer", "the preparer answers the same batch and state in two ways")
        if made.action == "train" and made.payload.get("loss") is not None:
            for row in made.payload["rows"]:
                check_tensors(row)
            family = getattr(subject.recipe, "loss_family", "")
            if made.payload["loss"] != family:
                said = f"the preparer answers with loss family {made.payload['loss']}, the recipe says {family}"
                raise Fault("agreement", said)
            if family in loss_names():
                loss_function(family).validate(made.payload)
        return dict(json.loads(json.dumps(dict(made.signal.next_algorithm_state))))
    except (BadRequest, RowError) as error:
        raise Fault("preparer", f"no step can be made of {batch.batch_id}: {error}") from error
    except (TypeError, ValueError) as error:
        raise Fault("preparer", f"what the preparer returns is no JSON: {error}") from error
    except Fault:
        raise
    except Exception as error:
        raise Fault("raised", f"the preparer raised {type(error).__name__}: {error}") from error
