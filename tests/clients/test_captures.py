"""Requests of real clients, replayed against a daemon whose provider answers with the captured bytes (issue 2, Show 11)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from reef.inference.testing import Script, ScriptedProvider
from tests.support import Daemon, daemon, provider

CAPTURES = Path(__file__).parents[3] / "shared" / "clients" / "captures"
TOKEN = "reef-local"
"""What the captured clients were given as their key."""
OF_THE_CONNECTION = {"host", "connection", "content-length", "transfer-encoding"}
NOT_RECORDED = {"/v1/models", "/v1/messages/count_tokens"}
SESSION_HEADERS = ("x-reef-session", "session-id")

pytestmark = pytest.mark.skipif(
    not CAPTURES.is_dir(), reason="the captures of real clients are not beside this checkout"
)


def captured() -> list[Any]:
    """Every captured model call, named by client and number."""
    return [
        pytest.param(row, id=f"{path.stem}-{row['seq']}")
        for path in sorted(CAPTURES.glob("*.jsonl"))
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if "response" in row
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, ScriptedProvider]]:
    home = tmp_path_factory.mktemp("captures")
    with provider(Script()) as upstream, daemon(home, reef_upstream_url=upstream.url, reef_token=TOKEN) as one:
        yield one, upstream


def send(one: Daemon, row: dict[str, Any], content: bytes) -> httpx.Response:
    headers = [(name, value) for name, value in row["headers"] if name.lower() not in OF_THE_CONNECTION]
    if not any(name.lower() == "x-reef-scenario" for name, _ in headers):
        headers.append(("x-reef-scenario", "captured"))
    if not any(TOKEN in value for _, value in headers):  # it logs in to its provider by itself
        headers.append(("x-reef-token", TOKEN))
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.request(row["method"], one.url + row["path"], content=content or None, headers=headers)


def play(upstream: ScriptedProvider, row: dict[str, Any]) -> bytes:
    """Answer the next request as it was answered when it was captured, in small pieces."""
    answer = row["response"]
    whole = answer["body"].encode()
    pieces = [whole[at : at + 97] for at in range(0, len(whole), 97)]
    headers = [(name, value) for name, value in answer["headers"] if name not in OF_THE_CONNECTION]
    upstream.scripts[:] = [Script(pieces, status=answer["status"], headers=headers)]
    upstream.seen.clear()
    return whole


@pytest.mark.parametrize("row", captured() if CAPTURES.is_dir() else [])
def test_a_captured_call_goes_through_and_is_recorded(
    world: tuple[Daemon, ScriptedProvider], row: dict[str, Any]
) -> None:
    one, upstream = world
    whole = play(upstream, row)
    content = b"" if row["body"] is None else json.dumps(row["body"], ensure_ascii=False).encode()
    response = send(one, row, content)
    assert response.status_code == row["response"]["status"]
    if urlsplit(row["path"]).path in NOT_RECORDED:
        assert response.json() == json.loads(whole)
        return
    assert response.content == whole
    assert dict(row["response"]["headers"])["x-request-id"] == response.headers["x-request-id"]
    assert (upstream.seen[0].target, upstream.seen[0].raw) == (row["path"], content)
    credentials = {value for name, value in upstream.seen[0].headers if name in ("authorization", "x-api-key")}
    own = {value for name, value in row["headers"] if name.lower() in ("authorization", "x-api-key")}
    assert credentials == {value for value in own if TOKEN not in value}, "the daemon's token stays here"

    receipt = response.headers["x-reef-agent-record-id"]
    with one.client(scenario=None) as client:
        record = client.record(receipt)
        kept = [client.http.get(f"/reef/records/{receipt}/{part}").content for part in ("request", "response")]
    assert kept == [content, whole]
    assert record["request"] == row["body"]
    assert record["state"] == "complete", record["reason"]
    sent = {name.lower(): value for name, value in row["headers"]}
    session = next((sent[name] for name in SESSION_HEADERS if name in sent), row["body"].get("prompt_cache_key"))
    assert record["session"] == session
    assert record["scenario"] == sent.get("x-reef-scenario", "captured")
    check_answer(record, whole)


def check_answer(record: dict[str, Any], whole: bytes) -> None:
    """The recorded answer is the plain form of the captured bytes."""
    answer = record["response"]
    assert record["usage"]["output_tokens"] > 0 and record["usage"]["input_tokens"] > 0
    if whole.startswith(b"{"):
        assert answer == json.loads(whole)
        return
    said = json.dumps(answer)
    for word in (b"hello.txt contains hello", b'\\"command\\": \\"ls\\"', b"/w/proj/hello.txt"):
        if word in whole:
            assert word.decode().replace('\\"', '"') in said.replace('\\"', '"')
