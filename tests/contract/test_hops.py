"""Hop budgets: how many distinct functions of reef one request, one report, one step enter (docs/architecture.md)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx

import reef
from reef.config import load
from reef.daemon.app import build_app
from reef.inference.testing import Script, ScriptedProvider
from reef.recipes import PGRecipe
from reef.records import RecordStore
from reef.runtime.testing import StubTrainingRuntime
from tests.train.factories import inference, report

ROOT = str(Path(reef.__file__).parent)
NOT_FUNCTIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>")
CHAT_BUDGET, REPORT_BUDGET, STEP_BUDGET = 16, 12, 16


class Counter:
    """Distinct code objects of reef entered, per thread, while ``on``; the fakes do not count."""

    def __init__(self) -> None:
        self.on = False
        self.entered: dict[CodeType, set[int]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(ROOT) and not code.co_filename.endswith("testing.py")
        if self.on and event == "call" and ours and code.co_name not in NOT_FUNCTIONS:
            self.entered.setdefault(code, set()).add(threading.get_ident())

    def names(self) -> list[str]:
        return sorted(f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}" for code in self.entered)

    def threads(self) -> int:
        return len(set().union(*self.entered.values()))


@contextmanager
def counting() -> Iterator[Counter]:
    counter = Counter()
    threading.setprofile(counter)
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def test_a_chat_request_and_a_report_stay_within_their_budgets(tmp_path: Path) -> None:
    answer = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 100}]}
    async with ScriptedProvider(Script([answer])) as provider:
        overrides = {"reef.upstream_url": provider.url}
        with counting() as counter:
            app = build_app(load(None, overrides=overrides, environ={}, home=tmp_path), "token")
            transport = httpx.ASGITransport(app=app)
            headers = {"authorization": "Bearer token", "x-reef-scenario": "s"}
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client,
            ):
                while not app.state.services.ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                receipt = (await client.post("/v1/chat/completions", json=body)).headers["x-reef-agent-record-id"]
                counter.on = True
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
                counter.on = False
                chat, chat_threads = counter.names(), counter.threads()
                counter.entered.clear()
                counter.on = True
                assert (
                    await client.post("/reef/report", json={"score": 1, "references": [receipt]})
                ).status_code == 200
                counter.on = False
                said = counter.names()
    assert chat_threads == 2, "the event loop and the writer: one crossing"
    assert len(chat) <= CHAT_BUDGET, "\n".join(chat)
    assert len(said) <= REPORT_BUDGET, "\n".join(said)


def test_a_step_stays_within_its_budget() -> None:
    records = RecordStore()
    trainer = PGRecipe(StubTrainingRuntime(), batch_size=1).build("s", records)
    for number in range(2):
        records.append(inference(f"i{number}"))
        records.append(report(f"r{number}", [f"i{number}"]))
    batch = trainer.reserve_training_batch()
    assert batch is not None
    with counting() as counter:
        counter.on = True
        assert trainer.train(batch).release is not None
        counter.on = False
    assert len(counter.names()) <= STEP_BUDGET, "\n".join(counter.names())
