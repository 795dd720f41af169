"""64 clients, four scenarios, all routes, streamed and plain, at once: nothing is mixed up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.support import daemon, on_thread

CLIENTS, TURNS = 64, 6
ROUTES = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


class EchoProvider:
    """Answers on every route with the text of the last message, in small pieces when a stream is asked for."""

    def __init__(self) -> None:
        self.url = ""

    async def __aenter__(self) -> EchoProvider:
        app = web.Application()
        app.add_routes([web.post(path, self._answer) for path in ROUTES])
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = asked(body)
        if not body.get("stream"):
            return web.json_response(plain(request.path, text))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events(request.path, text):
            await response.write(event)
            await asyncio.sleep(0)
        return response


def asked(body: dict[str, Any]) -> str:
    """The text of the last message."""
    return str(body["input"] if "input" in body else body["messages"][-1]["content"])


def plain(path: str, text: str) -> dict[str, Any]:
    if path == ROUTES[0]:
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    if path == ROUTES[1]:
        return {"type": "message", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    part = {"type": "output_text", "text": text}
    return {"object": "response", "status": "completed", "output": [{"type": "message", "content": [part]}]}


def events(path: str, text: str) -> Iterator[bytes]:
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    if path == ROUTES[0]:
        deltas = [{"index": 0, "delta": {"content": piece}} for piece in pieces]
        made = [{"choices": [delta]} for delta in [*deltas, {"index": 0, "delta": {}, "finish_reason": "stop"}]]
    elif path == ROUTES[1]:
        made = [{"type": "message_start", "message": {"type": "message", "content": []}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}]  # fmt: skip
        made += [
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": p}} for p in pieces
        ]
        made += [{"type": "content_block_stop", "index": 0}, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
                 {"type": "message_stop"}]  # fmt: skip
    else:
        made = [{"type": "response.output_text.delta", "output_index": 0, "delta": piece} for piece in pieces]
        made.append({"type": "response.completed", "response": plain(path, text)})
    for event in made:
        name = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{name}data: {json.dumps(event)}\n\n".encode()
    if path == ROUTES[0]:
        yield b"data: [DONE]\n\n"


def said(path: str, raw: str, stream: bool) -> str:
    """The text of an answer as its client reads it."""
    if not stream:
        return text_of(path, json.loads(raw))
    datas = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    if path == ROUTES[0]:
        return "".join(data["choices"][0]["delta"].get("content", "") for data in datas)
    if path == ROUTES[1]:
        return "".join(data["delta"].get("text", "") for data in datas if data["type"] == "content_block_delta")
    return "".join(data["delta"] for data in datas if data["type"].endswith("delta"))


def text_of(path: str, body: dict[str, Any]) -> str:
    if path == ROUTES[0]:
        return str(body["choices"][0]["message"]["content"])
    return str(body["content"][0]["text"] if path == ROUTES[1] else body["output"][0]["content"][0]["text"])


async def ask(number: int, url: str, token: str, kept: dict[str, tuple[str, str, str]]) -> None:
    """One client's turns, each on another route, streamed and plain in turns."""
    scenario = f"many-{number % 4}"
    headers = {"authorization": f"Bearer {token}", "x-reef-scenario": scenario, "x-reef-session": f"run-{number}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for turn in range(TURNS):
            path, stream = ROUTES[(number + turn) % 3], bool((number // 3 + turn) % 2)
            text = f"client {number} turn {turn} 海 " + "x" * (number * 7 % 50)
            body: dict[str, Any] = {"model": "echo", "stream": stream, "max_tokens": 9}
            body |= {"input": text} if path == ROUTES[2] else {"messages": [{"role": "user", "content": text}]}
            async with http.post(url + path, json=body) as response:
                raw = await response.text()
                assert response.status == 200, raw
                receipt = response.headers["x-reef-agent-record-id"]
            assert said(path, raw, stream) == text
            assert receipt not in kept
            kept[receipt] = (scenario, path, text)


@contextlib.contextmanager
def foreign_reader(database: Path) -> Iterator[list[str]]:
    """Another program that keeps read transactions open on the database all the time; gives what went wrong for it."""
    wrong: list[str] = []
    enough = threading.Event()

    def run() -> None:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=0)) as db:
                while not enough.wait(0.05):
                    db.execute("BEGIN")
                    db.execute("SELECT COUNT(*) FROM records").fetchall()
                    enough.wait(0.3)
                    db.execute("COMMIT")
        except sqlite3.Error as error:
            wrong.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    yield wrong
    enough.set()
    thread.join()


def test_nothing_is_mixed_up(tmp_path: Path) -> None:
    kept: dict[str, tuple[str, str, str]] = {}

    async def everybody(url: str, token: str) -> None:
        await asyncio.gather(*(ask(number, url, token, kept) for number in range(CLIENTS)))

    with (
        on_thread(EchoProvider()) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url) as one,
        one.client() as client,
    ):
        token = str(client.http.headers["x-reef-token"])
        with foreign_reader(tmp_path / "reef.db") as wrong:
            asyncio.run(everybody(one.url, token))
        assert wrong == []
        assert len(kept) == CLIENTS * TURNS
        for receipt, (scenario, path, text) in kept.items():
            record = client.record(receipt)
            assert (record["scenario"], record["state"]) == (scenario, "complete")
            assert asked(record["request"]) == text_of(path, record["response"]) == text
            assert record["session"] == f"run-{text.split()[1]}"
        assert client.status()["store"]["unrecorded"] == 0
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*"))
    assert "locked" not in logs and "Traceback" not in logs
