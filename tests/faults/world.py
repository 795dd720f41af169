"""What the fault tests share: a provider that echoes in both forms, and a recipe whose steps cost nothing.

The recipe is a stranger's: the daemon finds it by its dotted path (the repository must be on PYTHONPATH).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from reef.inference.testing import ScriptedProvider
from reef.recipes import PGRecipe
from reef.runtime import TrainingRuntime
from reef.runtime.testing import StubTrainingRuntime

ROOT = Path(__file__).parents[2]
STUB = "tests.faults.world:StubRecipe"


@dataclass(frozen=True, kw_only=True)
class StubRecipe(PGRecipe):
    """pg on the public stub runtime: everything of a step but the arithmetic."""

    name: str = "stub"

    @classmethod
    def from_environment(
        cls,
        runtime: TrainingRuntime | None,
        settings: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """The recipe with the stub in place of whatever the deployment has."""
        return cls(StubTrainingRuntime(), **cls.service_config(settings, environ))


class Echo(ScriptedProvider):
    """Answers with the last message's text: plain after ``pause_s``, or streamed with ``pause_s`` between the words."""

    def __init__(self, pause_s: float = 0.0) -> None:
        super().__init__()
        self.pause_s = pause_s
        self.begun = 0
        """Calls that have reached it."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/{path:.*}", self._echo)]

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        self.begun += 1
        body = await request.json()
        text = body["messages"][-1]["content"]
        if not body.get("stream"):
            await asyncio.sleep(self.pause_s)
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response({"id": "c", "model": "m", "choices": [choice]})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for word in [f"{part} " for part in text.split()]:
            await response.write(_event({"content": word}, None))
            await asyncio.sleep(self.pause_s)
        await response.write(_event({}, "stop") + b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode() + b"\n\n"


def imported(record_id: str, release_id: str = "r0") -> dict[str, Any]:
    """A finished exchange with tokens, as POST /reef/records takes it."""
    number = int(record_id.strip("i"))
    training = {"tokens": [1, 2, number % 50 + 3], "loss_mask": [1], "rollout_log_probs": [-0.5], "temperature": 1.0}
    return {
        "agent_record_id": record_id,
        "release_id": release_id,
        "request": {"messages": [{"role": "user", "content": f"question {record_id}"}]},
        "response": {"text": record_id, "training": training},
    }
