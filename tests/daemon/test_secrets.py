"""Keys go where they are meant to go and nowhere else: canaries are looked for in every file a daemon leaves."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx

from reef.client import ReefClient
from reef.inference.testing import Script
from reef.records import RecordStore
from tests.support import Daemon, daemon, provider

KEY, CLIENT_KEY, MCP_KEY = "sk-canary-upstream-51", "sk-canary-client-52", "canary-mcp-header-53"
JSON = (("content-type", "application/json"),)
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}


def asking(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def files_with(home: Path, canary: str) -> list[str]:
    """Every file under ``home`` that holds ``canary``, and every stored body that does."""
    found = [
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and canary.encode() in path.read_bytes()
    ]
    store = RecordStore(home / "reef.db")
    for row in store.page("s", limit=100):
        record_id = row.record.agent_record_id
        held = json.dumps([dict(row.record.payload), dict(row.record.meta), row.record.session], default=str)
        if canary in held or canary.encode() in store.request_bytes(record_id):
            found.append(record_id)
    store.close()
    return found


def test_a_key_is_found_in_no_file_but_the_one_meant_for_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    echo = Script([json.dumps({**ANSWER, "note": f"you sent {KEY}"}).encode()], headers=JSON)
    stream = Script([b'data: {"note": "' + KEY.encode() + b'"}\n\n', b"data: [DONE]\n\n"])
    with provider(echo, echo, stream, Script([], status=401)) as upstream:
        one = Daemon(home, {"reef.upstream_url": upstream.url, "reef.upstream_api_key": KEY})
        one.start()
        try:
            with one.client() as client:
                token = client.http.headers["x-reef-token"]
                mcp = {"type": "mcp", "server_url": "https://x.test", "headers": {"Authorization": f"Bearer {MCP_KEY}"}}
                answer = client.call(asking(f"my key is {KEY} and {token}", tools=[mcp]))
                assert KEY in answer.text, "what the provider says goes through as it is"
                headers = {"authorization": f"Bearer {CLIENT_KEY}", "x-reef-token": token, "x-reef-scenario": "s"}
                httpx.post(one.url + "/v1/chat/completions", json=asking("hi"), headers=headers)
                with client.stream(asking("hi")) as response:
                    assert KEY in response.read().decode()
                httpx.post(
                    one.url + "/v1/chat/completions", json=asking("hi"), headers={"authorization": f"Bearer {KEY}x"}
                )
                client.get("/reef/status")
            assert one.child is not None
            listed = subprocess.run(
                ["ps", "-ww", "-o", "args=", "-p", str(one.child.pid)], capture_output=True, text=True
            )
            assert "serve" in listed.stdout and KEY not in listed.stdout and token not in listed.stdout
            sent = [json.dumps([seen.headers, seen.raw.decode()]) for seen in upstream.seen]
        finally:
            one.stop()
    assert MCP_KEY in sent[0] and f"my key is {KEY}" in sent[0], "the provider gets the body untouched"
    assert all(KEY in one for one in sent) and not any(CLIENT_KEY in one for one in sent)
    assert files_with(home, token) == ["token"]
    assert [files_with(home, canary) for canary in (KEY, CLIENT_KEY, MCP_KEY)] == [[], [], []]


def test_a_key_is_found_however_it_is_escaped_and_what_is_none_changes_nothing(tmp_path: Path) -> None:
    server = {
        "type": "url",
        "url": "https://x.test",
        "authorization_token": "canary/54=",
        "headers": {"x-version": "1"},
    }
    numbered = {**server, "headers": {"x-tenant": "10000000"}}
    plain = Script([json.dumps(ANSWER).encode()], headers=JSON)
    with (
        provider(plain, plain) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url) as one,
        one.client() as client,
    ):
        for asked in (asking("1 \ud83d", mcp_servers=[server]), asking("1", n=10000000, mcp_servers=[numbered])):
            raw = json.dumps(asked).replace("/", "\\/").replace("=", "\\u003d")
            answer = client.http.post("/v1/chat/completions", content=raw, headers={"x-reef-scenario": "s"})
            held = client.get(f"/reef/records/{answer.headers['x-reef-agent-record-id']}")["request"]
            assert held["mcp_servers"][0]["authorization_token"] == "[redacted]"
            assert held["messages"] == asked["messages"] and held.get("n") == asked.get("n")
            assert upstream.seen[-1].raw == raw.encode()


def spelled(text: str, canary: str) -> str:
    """JSON ``text`` in which the signs of ``canary`` are escapes by number."""
    return text.replace(canary, "".join(f"\\u{ord(sign):04X}" for sign in canary))


def test_a_key_is_found_in_every_place_and_spelling(tmp_path: Path) -> None:
    home, in_url, user = tmp_path / "home", "canary-in-an-url-61", "reef:canary-password-62"
    echo = json.dumps({**ANSWER, "model": KEY, "note": [KEY, in_url, user]})
    coded = Script([gzip.compress(spelled(echo, KEY).encode())], headers=[*JSON, ("content-encoding", "gzip")])
    stream = Script(
        [f'data: {{"note": "{in_url}"}}\n\n'.encode(), spelled(f'data: {{"note": "{KEY}"}}\n\n', KEY).encode()]
    )
    settings = {"reef.upstream_api_key": KEY, "reef.default_scenario": "s"}
    with provider(coded, Script([json.dumps(ANSWER).encode()], headers=JSON), stream) as upstream:
        one = Daemon(home, {"reef.upstream_url": upstream.url, **settings})
        one.start()
        try:
            with one.client() as client:
                inner = json.dumps({"key": f"{KEY}"})
                tools = [{"type": "mcp", "server_url": f"https://{user}@x.test/mcp?apiKey={in_url}&page=1"}]
                asked = asking(f"{KEY} \\ {KEY}", tools=tools, prompt_cache_key=f"key {KEY}", model=KEY)
                asked["messages"].append({"role": "tool", "content": spelled(inner, KEY) + in_url})
                raw = spelled(json.dumps(asked), KEY)
                noted = {"x-reef-tag-run": f"{'x' * 250}{KEY}", "user-agent": f"{'x' * 100}{KEY}"}
                answer = client.http.post("/v1/chat/completions", content=raw, headers=noted)
                assert answer.json()["note"] == [KEY, in_url, user] and upstream.seen[-1].raw == raw.encode()
                held = client.record(answer.headers["x-reef-agent-record-id"])
                assert (
                    held["request"]["tools"][0]["server_url"]
                    == "https://[redacted]@x.test/mcp?apiKey=[redacted]&page=1"
                )
                assert held["request"]["messages"][0]["content"] == "[redacted] \\ [redacted]"
                assert json.loads(held["request"]["messages"][1]["content"].split("}")[0] + "}") == {
                    "key": "[redacted]"
                }
                assert (held["response"]["model"], held["session"]) == ("[redacted]", "key [redacted]")
                server = {"type": "url", "name": "x", "url": f"https://x.test/sse?token={in_url}"}
                asked = asking("hi", mcp_servers=[server], max_tokens=5)
                client.http.post("/v1/messages", json=asked, headers={"x-reef-session": f"run {KEY}"})
                with client.stream(asking("hi", tools=tools)) as response:
                    assert in_url in response.read().decode()
                receipt = answer.headers["x-reef-agent-record-id"]
                said = spelled(json.dumps({"score": 1, "references": [receipt], "feedback": f"it said {KEY}"}), KEY)
                assert client.http.post("/reef/report", content=said).status_code == 200
                told = {"agent_record_id": "i", "request": asking(KEY), "response": ANSWER, "session": KEY}
                assert client.http.post("/reef/records", content=spelled(json.dumps(told), KEY)).status_code == 200
            one.stop()
            one.settings = {**one.settings, "reef.upstream_url": f"http://{user}@127.0.0.1:9/v1"}
            del one.settings["reef.upstream_api_key"]
            one.start()
            with one.client() as client:
                for streamed in (False, True):
                    failed = client.http.post("/v1/chat/completions", json=asking("hi", stream=streamed))
                    assert failed.status_code == 502
        finally:
            one.stop()
    assert [files_with(home, canary) for canary in (KEY, in_url, user)] == [[], [], []]


def test_what_is_no_key_stays_as_it_is(tmp_path: Path) -> None:
    server = {"type": "url", "url": "https://x.test/?page=introduction&id=5"}
    pin = {**server, "authorization_token": "20260101"}
    plain = Script([json.dumps({**ANSWER, "n": 20260101, "said": "a\\u0073k"}).encode()], headers=JSON)
    with (
        provider(plain) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url) as one,
        one.client() as client,
    ):
        for servers in ([server], [pin]):
            asked = asking("introduction \u001b[1m \\\\ \\" + "\\" * 100_001, mcp_servers=servers, n=20260101)
            answer = client.http.post("/v1/chat/completions", json=asked)
            held = client.record(answer.headers["x-reef-agent-record-id"])
            assert held["request"]["messages"] == asked["messages"] and held["request"]["n"] == 20260101
            assert held["response"] == answer.json()
            assert client.http.get(f"/reef/records/{held['agent_record_id']}/request").content == (
                upstream.seen[-1].raw.replace(b'"20260101"', b'"[redacted]"')
            )


def test_what_agents_ask_beside_their_turns_is_no_turn(tmp_path: Path) -> None:
    plain = Script([json.dumps(ANSWER).encode()], headers=JSON)
    broken = Script([b"{}"], status=500, headers=JSON)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    with (
        provider(plain, plain, broken, plain, plain) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url) as one,
        one.client() as client,
    ):
        title = receipt(client, asking("a title for this"), agent="opencode/1.18 ai-sdk/5")
        turn = receipt(client, asking("do it", tools=tools), agent="opencode/1.18 ai-sdk/5")
        failed = receipt(client, asking("go on", tools=tools), agent="opencode/1.18 ai-sdk/5")
        first = receipt(client, asking("again", tools=tools))
        second = receipt(client, asking("again", tools=tools), **{"x-stainless-retry-count": "1"})
        assert client.record(title)["meta"]["helper"] == "no_tools"
        assert client.record(second)["meta"]["retry_of"] == first
        assert client.record(failed)["state"] == "failed"
        assert client.report(score=1.0, session="run")["references"] == [turn, second]


def receipt(client: ReefClient, body: dict[str, Any], *, agent: str = "tests", **headers: str) -> str:
    headers = {"x-reef-session": "run", "user-agent": agent, **headers}
    return client.http.post("/v1/chat/completions", json=body, headers=headers).headers["x-reef-agent-record-id"]


def test_a_beta_the_server_does_not_know_is_named_and_can_be_dropped(tmp_path: Path) -> None:
    refusal = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "Unexpected value(s) for the `anthropic-beta` header"},
    }
    refused = Script([json.dumps(refusal).encode()], status=400, headers=JSON)
    body = asking("hi", max_tokens=5)
    beta = {"anthropic-beta": "new-1, old-2"}
    with provider(refused) as upstream, daemon(tmp_path, reef_upstream_url=upstream.url) as one, one.client() as client:
        answer = client.http.post("/v1/messages", json=body, headers=beta)
        assert (answer.status_code, answer.json()) == (400, refusal)
        assert dict(upstream.seen[-1].headers)["anthropic-beta"] == "new-1, old-2"
        reason = client.record(answer.headers["x-reef-agent-record-id"])["reason"]
        assert reason["code"] == "upstream_400" and "reef.upstream_drop_beta" in reason["message"]
        one.stop()
        one.settings["reef.upstream_drop_beta"] = "new-1"
        one.start()
        with one.client() as client:
            client.http.post("/v1/messages", json=body, headers=beta)
        assert dict(upstream.seen[-1].headers)["anthropic-beta"] == "old-2"


def test_no_name_that_holds_a_key_is_taken(tmp_path: Path) -> None:
    home = tmp_path / "home"
    plain = Script([json.dumps(ANSWER).encode()], headers=JSON)
    with provider(plain) as upstream, daemon(home, reef_upstream_url=upstream.url) as one, one.client() as client:
        token = client.http.headers["x-reef-token"]
        named, other = f"a-{token}", {"x-reef-scenario": "s"}
        used = receipt(client, asking("hi"), **{f"x-reef-tag-{token}": "x", **other})
        said = {"score": 1.0, "references": [used]}
        for path, body, headers in (
            ("/v1/chat/completions", asking("hi"), {"x-reef-scenario": named}),
            ("/v1/chat/completions", asking("hi", stream=True), {"x-reef-scenario": token}),
            ("/v1/messages", asking("hi"), {"x-reef-scenario": f"_{token}"}),  # an odd name is quoted in the refusal
            ("/reef/report", said, {"x-reef-scenario": named}),
            ("/reef/report", {**said, "scenario": named}, {}),
            ("/reef/report", said, {**other, "idempotency-key": named}),
            ("/reef/report", {**said, "agent_record_id": named}, other),
            ("/reef/records", {"request": {}, "response": {}}, {"x-reef-scenario": named}),
            ("/reef/scenarios", {"name": named}, {}),
            ("/reef/scenarios", {"name": f"_{token}"}, {}),
        ):
            answer = client.http.post(path, json=body, headers=headers)
            assert answer.status_code == 400 and token not in answer.text, path
        client.http.post("/reef/scenarios/s/pause", headers={"x-reef-actor": token})
    assert files_with(home, token) == ["token"]
