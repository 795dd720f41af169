"""Public stand-ins for what answers calls: a scripted provider and a scripted engine, real HTTP servers on loopback.

Know nothing of Reef's backends. Used by tests of this package and of anybody who writes a backend or a gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from reef.inference.sse import DONE
from reef.inference.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: ``chunks`` are written one by one, ``pause_s`` apart; ``cut`` drops the connection after the last."""

    chunks: Sequence[bytes] = ()
    status: int = 200
    headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),)
    pause_s: float = 0.0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived; header names in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    raw: bytes


class _Server:
    """Start and stop of a small aiohttp application on a free loopback port."""

    def __init__(self) -> None:
        self.url = ""
        self._runner: web.AppRunner | None = None

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, auto_decompress=False, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


class ScriptedProvider(_Server):
    """Answers each request with the next script (the last one again and again) and keeps what it saw.

    ``gone`` counts clients that hung up before their answer was written. ``only`` are the paths it has, all when empty;
    calls of others (404) and empty ones (400), which many servers refuse before they do anything, are kept in ``refused``.
    """

    def __init__(self, *scripts: Script, only: Collection[str] = ()) -> None:
        super().__init__()
        self.scripts = list(scripts)
        self.only = only
        self.seen: list[Seen] = []
        self.refused: list[Seen] = []
        self.gone = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = tuple((name.lower(), value) for name, value in request.headers.items())
        seen = Seen(request.method, request.path_qs, headers, await request.read())
        if self.only and (request.path not in self.only or seen.raw == b"{}"):
            self.refused.append(seen)
            missing = request.path not in self.only
            return web.Response(status=404 if missing else 400, text="404 page not found" if missing else "empty")
        self.seen.append(seen)
        script = self.scripts[min(len(self.seen), len(self.scripts)) - 1]
        response = web.StreamResponse(status=script.status)
        for name, value in script.headers:
            response.headers.add(name, value)
        try:
            await response.prepare(request)
            for chunk in script.chunks:
                await response.write(chunk)
                if script.pause_s:
                    await asyncio.sleep(script.pause_s)
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        if script.cut and request.transport is not None:
            await asyncio.sleep(0)
            request.transport.close()
        else:
            await response.write_eof()
        return response


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine samples: ``text`` and then the end token, unless ``finish`` is length.

    ``abort_after`` cuts attempts short: 3 ends the first one after 3 tokens with finish reason abort.
    """

    text: str
    finish: str = "stop"
    abort_after: Sequence[int] = ()
    log_probs: Sequence[float] | None = None


@dataclass(slots=True)
class _Run:
    prompt_tokens: int
    ids: list[int]
    completion: Completion
    aborts: list[int] = field(default_factory=list)


class ScriptedEngine(_Server):
    """Speaks an engine's /generate and "samples" the given completions, with a log-prob of -(n + 1) / 8 for token n.

    ``cumulative`` sends everything so far in each event, as SGLang does by default, else only what is new, ``step``
    tokens at a time. ``requests`` keeps every request body, ``aborted`` the ids named to /abort_request.
    """

    def __init__(
        self,
        template: ChatTemplate,
        *completions: Completion,
        cumulative: bool = False,
        step: int = 1,
        pause_s: float = 0.0,
        key: str | None = None,
    ) -> None:
        super().__init__()
        self.requests: list[Mapping[str, Any]] = []
        self.aborted: list[str] = []
        self.version = "v0"
        self._template = template
        self._completions = completions
        self._cumulative = cumulative
        self._step = step
        self._pause_s = pause_s
        self._key = key
        self._runs: dict[str, _Run] = {}
        self._arrival = asyncio.Condition()

    async def reached(self, count: int) -> None:
        """Wait until ``count`` requests have come."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.requests) >= count)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/generate", self._generate), web.post("/abort_request", self._abort)]

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.json_response({})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if self._key is not None and request.headers.get("authorization") != f"Bearer {self._key}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        body = await request.json()
        async with self._arrival:
            self.requests.append(body)
            self._arrival.notify_all()
        events = self._events(body)
        if not body["stream"]:
            last = list(events)[-1]
            await asyncio.sleep(self._pause_s)
            return web.json_response(last)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(self._pause_s)
        await response.write(DONE)
        return response

    def _events(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of one attempt; a plain answer is the last of cumulative ones."""
        run = self._run(body)
        done = len(body["input_ids"]) - run.prompt_tokens
        ids, finish = self._attempt(run, done, body["sampling_params"])
        shown, text_before = 0, ""
        while True:
            upto = min(shown + self._step, len(ids)) if body["stream"] else len(ids)
            is_last = upto == len(ids)
            text = self._template.decode(ids[:upto])
            text = text if is_last and finish["type"] != "abort" else text.rstrip("\ufffd")
            start = 0 if self._cumulative or not body["stream"] else shown
            yield {
                "text": text if start == 0 else text[len(text_before) :],
                "output_ids": ids[start:upto],
                "meta_info": {
                    "id": body["rid"],
                    "finish_reason": finish if is_last else None,
                    "prompt_tokens": len(body["input_ids"]),
                    "completion_tokens": upto,
                    "cached_tokens": 0,
                    "weight_version": self.version,
                    "weight_versions": [{"version": self.version, "start": 0, "end": upto}] if is_last else None,
                    "output_token_logprobs": self._triples(run, done, ids, start, upto),
                    "output_top_logprobs": [
                        [[-0.5, token_id, None]] * body["top_logprobs_num"] for token_id in ids[start:upto]
                    ],
                },
            }
            if is_last:
                return
            shown, text_before = upto, text

    def _triples(self, run: _Run, done: int, ids: list[int], start: int, upto: int) -> list[list[Any]]:
        given = run.completion.log_probs
        return [
            [given[done + at] if given is not None else -(done + at + 1) / 8, ids[at], None]
            for at in range(start, upto)
        ]

    def _attempt(self, run: _Run, done: int, params: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """Ids and finish reason of one attempt."""
        ids = run.ids[done:]
        if run.aborts:
            return ids[: run.aborts.pop(0)], {"type": "abort", "message": "paused"}
        if len(ids) > params["max_new_tokens"] or run.completion.finish == "length":
            ids = ids[: params["max_new_tokens"]]
            return ids, {"type": "length", "length": len(ids)}
        return ids, {"type": "stop", "matched": ids[-1]}

    def _run(self, body: Mapping[str, Any]) -> _Run:
        """The run a request starts or, by its id without the attempt's number, goes on with."""
        name = str(body["rid"]).rpartition("-")[0]
        if name not in self._runs:
            completion = self._completions[min(len(self._runs), len(self._completions) - 1)]
            ends = list(self._template.stop_ids[:1]) if completion.finish == "stop" else []
            ids = [*self._template.encode(completion.text), *ends]
            self._runs[name] = _Run(len(body["input_ids"]), ids, completion, list(completion.abort_after))
        return self._runs[name]
