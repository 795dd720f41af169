"""``reef mcp`` as an agent meets it: the real command over standard input and output, a real daemon behind it."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from reef.client import ReefClient
from tests.support import Daemon, daemon, eventually, provider

mcp = pytest.importorskip("mcp")
from mcp.client.stdio import StdioServerParameters  # noqa: E402
from mcp.types import ElicitResult  # noqa: E402

ROOT = Path(__file__).parents[2]
READS = {"status", "records", "record", "releases", "release", "proposals", "knobs"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Daemon]:
    settings = {"reef_recipe": "rwr", "reef_batch_size": "1", "reef_publish": "review"}
    with daemon(tmp_path_factory.mktemp("mcp"), reef_model_path=str(tiny_model), **settings) as one:
        yield one


def called(one: Daemon) -> str:
    """The receipt of a call."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with one.client() as client:
        return client.call(body).headers["x-reef-agent-record-id"]


@asynccontextmanager
async def agent(home: Path, *answers: ElicitResult, **options: Any) -> AsyncIterator[tuple[Any, list[str]]]:
    """A client, with what its person was asked; without ``answers`` it cannot ask anybody."""
    asked: list[str] = []
    left = iter(answers)

    async def ask(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return next(left)

    kept = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "reef.cli.main", "mcp", "--home", str(home)],
        env={**kept, "PYTHONPATH": str(ROOT)},
    )
    options |= {"elicitation_callback": ask} if answers else {}
    async with mcp.Client(command, **options) as client:
        yield client, asked


def accept(agreed: bool = True) -> ElicitResult:
    return ElicitResult(action="accept", content={"agreed": agreed})


async def test_an_agent_reads_what_reef_holds(running: Daemon) -> None:
    request = {"messages": [{"role": "user", "content": "x" * 30_000}]}
    receipt = "imported-1"
    with running.client() as client:
        client.post("/reef/records", {"agent_record_id": receipt, "request": request, "response": {"choices": []}})
    async with agent(running.home) as (client, _):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READS | {"report", "promote"}
        assert {name for name, tool in tools.items() if tool.annotations.read_only_hint} == READS
        assert all(len(tool.description) > 40 for tool in tools.values())
        shown = (await client.call_tool("status", {})).structured_content
        assert [row["name"] for row in shown["scenarios"]] == ["s"]
        rows = (await client.call_tool("records", {"scenario": "s", "limit": 5})).structured_content["records"]
        assert rows[0]["agent_record_id"] == receipt
        whole = (await client.call_tool("record", {"record_id": receipt})).structured_content
        said = whole["request"]["messages"][0]["content"]
        assert len(said) < 21_000 and "10,000 more characters" in said
        chain = (await client.call_tool("releases", {"scenario": "s"})).structured_content["releases"]
        assert chain[-1]["release_id"] == "r0"
        wrong = await client.call_tool("release", {"scenario": "s", "release_id": "r77"})
        assert wrong.is_error and "r77" in wrong.content[0].text and "try:" in wrong.content[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_report_and_a_promotion_are_the_persons_to_allow(running: Daemon, mode: str) -> None:
    receipt = called(running)
    report = {"scenario": "s", "references": [receipt], "score": 1, "feedback": "right"}
    refusals = ElicitResult(action="decline"), ElicitResult(action="cancel"), accept(False)
    async with agent(running.home, *refusals, accept(), accept(False), accept(), mode=mode) as (client, asked):
        for _ in refusals:
            refused = await client.call_tool("report", report)
            assert refused.is_error and "did not agree" in refused.content[0].text
            assert asked[-1] == f"Report on {receipt} of s: score 1, feedback 'right'?"
        with running.client() as direct:
            assert direct.record(receipt)["reports"] == []
            stored = await client.call_tool("report", report)
            assert not stored.is_error and len(direct.record(receipt)["reports"]) == 1
            held = await anyio.to_thread.run_sync(lambda: eventually(lambda: waiting(direct)))
            refused = await client.call_tool("promote", {"scenario": "s", "release_id": held})
            assert refused.is_error and waiting(direct) == held
            served = await client.call_tool("promote", {"scenario": "s", "release_id": held})
            assert not served.is_error and direct.get("/reef/scenarios/s")["release_id"] == held
            assert asked[-1] == f"Serve {held} of s from now on? It waits for review."


def waiting(client: ReefClient) -> str | None:
    """The release that waits for review."""
    return next((row["release_id"] for row in client.releases("s") if row["state"] == "held"), None)


async def test_where_nobody_can_be_asked_nothing_is_done_and_the_command_is_named(running: Daemon) -> None:
    receipt = called(running)
    async with agent(running.home) as (client, _):
        refused = await client.call_tool("report", {"scenario": "s", "references": [receipt], "score": 0})
        assert refused.is_error and f"reef report -s s --score 0 {receipt}" in refused.content[0].text
        refused = await client.call_tool("promote", {"scenario": "s", "release_id": "r1"})
        assert refused.is_error and "reef promote -s s r1" in refused.content[0].text
    with running.client() as client:
        assert client.record(receipt)["reports"] == []


async def test_a_daemon_that_does_not_run_is_told_and_one_started_later_is_found(tmp_path: Path) -> None:
    async with agent(tmp_path) as (client, _):
        down = await client.call_tool("status", {})
        assert down.is_error and "reef up" in down.content[0].text
        with provider() as upstream, daemon(tmp_path, reef_upstream_url=upstream.url):
            assert not (await client.call_tool("status", {})).is_error
