"""The generation side of an SGLang server (or of the embedded engine): one sampled answer, resumed when it is aborted.

Knows token ids, log-probs and versions; nothing of templates, dialects or scenarios. Called by ``sglang_chat``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from reef.errors import BadRequest, ReefError, Unavailable, UpstreamError, UpstreamTimeout
from reef.inference.sse import EventCutter

_MAX_BARREN_RESUMES = 8
"""Aborts in a row that brought no token before the answer is given up."""
_ABORT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Part:
    """What one engine event added: text, ids with their log-probs, and the best alternatives per id."""

    text: str
    output_ids: Sequence[int]
    log_probs: Sequence[float]
    alternatives: Sequence[Sequence[tuple[float, int]]] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings as they are sent and stored; ``max_new_tokens`` is the whole answer's budget."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def params(self, spent: int) -> dict[str, Any]:
        """The engine's ``sampling_params`` after ``spent`` tokens; a seed counts with the position, so it stays."""
        params: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens - spent,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "skip_special_tokens": True,
        }
        if self.stop:
            params["stop"] = list(self.stop)
        if self.stop_token_ids:
            params["stop_token_ids"] = list(self.stop_token_ids)
        if self.seed is not None:
            params["sampling_seed"] = self.seed
        return params

    def stored(self) -> dict[str, Any]:
        """What a record keeps."""
        kept = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "top_p": self.top_p}
        return {**kept, "top_k": self.top_k, "min_p": self.min_p, "stop": list(self.stop), "seed": self.seed}


class EngineClient:
    """One pooled HTTP client of an engine whose address and key may change when it restarts."""

    def __init__(
        self,
        url: Callable[[], str],
        api_key: Callable[[], str | None],
        *,
        connect_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        self._url = url
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=None, sock_connect=connect_timeout_s, sock_read=idle_timeout_s
        )
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """The answer at its headers; a refusal becomes an error with the engine's words."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=aiohttp.TCPConnector(limit=0))
        key = self._api_key()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            response = await self._session.post(self._url() + path, json=body, headers=headers)
        except TimeoutError as error:
            raise UpstreamTimeout("the engine did not answer in time") from error
        except aiohttp.ClientError as error:
            raise Unavailable(
                f"the engine cannot be reached: {error}", hint="it may be restarting; try again in a moment"
            ) from error
        if response.status != 200:
            raise _refusal(response.status, await response.read())
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


@dataclass(slots=True)
class Generation:
    """One answer being sampled: ``output_ids``, ``log_probs`` and ``versions`` grow while ``parts`` is iterated."""

    client: EngineClient
    prompt_ids: Sequence[int]
    sampling: Sampling
    rid: str
    adapter: str | None
    stream: bool
    decode: Callable[[Sequence[int]], str]
    top_logprobs: int = 0
    output_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop_text: str | None = None
    cached_tokens: int = 0
    mismatch: str | None = None
    _text: str = ""
    _attempt: int = 0
    _base: int = 0
    _attempt_text: str = ""
    _response: aiohttp.ClientResponse | None = None
    _running: bool = False
    _abort_reason: str = ""

    async def start(self) -> None:
        """Send the request; returns when the engine has accepted it."""
        self._base, self._attempt_text = len(self.output_ids), ""
        request = {
            "input_ids": [*self.prompt_ids, *self.output_ids],
            "sampling_params": self.sampling.params(self._base),
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": self.top_logprobs,
            "stream": self.stream,
            "rid": self._rid(),
        }
        if self.adapter is not None:
            request["lora_path"] = self.adapter
        self._running = True
        try:
            self._response = await self.client.post("/generate", request)
        except ReefError:
            self._running = False
            raise

    async def parts(self) -> AsyncIterator[Part]:
        """The answer as it is sampled, over as many attempts as aborts make necessary."""
        barren = 0
        while self.finish is None:
            if self._response is None:
                await self.start()
            async for event in self._events():
                yield self._take(event)
            self._response, self._running = None, False
            if self.finish != "abort":
                return
            barren = 0 if len(self.output_ids) > self._base else barren + 1
            if barren > _MAX_BARREN_RESUMES:
                raise Unavailable(f"the engine keeps aborting this answer: {self._abort_reason}", hint="see its log")
            self.finish = "length" if len(self.output_ids) >= self.sampling.max_new_tokens else None
            self._attempt += 1

    async def aclose(self) -> None:
        """Stop sampling: hang up, and say so to an engine that would not notice."""
        if not self._running:
            return
        self._running = False
        if self._response is not None:
            self._response.close()
        if self.finish is not None:
            return
        try:
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                (await self.client.post("/abort_request", {"rid": self._rid()})).close()
        except (ReefError, TimeoutError):  # an engine that is gone has nothing left to abort
            return

    def _rid(self) -> str:
        return f"{self.rid}-{self._attempt}"

    async def _events(self) -> AsyncIterator[dict[str, Any]]:
        """The engine's JSON events of one attempt; a plain answer is one event."""
        response = self._response
        assert response is not None
        try:
            if not self.stream:
                yield json.loads(await response.read())
                return
            cutter = EventCutter()
            async for chunk in response.content.iter_any():
                for event in cutter.feed(chunk):
                    if event.data != b"[DONE]":
                        yield json.loads(event.data)
        except TimeoutError as error:
            raise UpstreamTimeout("the engine stopped sending") from error
        except aiohttp.ClientError as error:
            raise UpstreamError(f"the engine broke off in the middle of an answer: {error}") from error
        except ValueError as error:
            raise UpstreamError(f"the engine sent something that is not JSON: {error}") from error
        if self.finish is None:
            raise UpstreamError("the engine ended its answer without a finish reason")

    def _take(self, event: dict[str, Any]) -> Part:
        """What an event adds, whether its kind is new pieces or everything so far (see ``completion_tokens``)."""
        if "error" in event:
            fault = event["error"]
            raise UpstreamError(f"the engine failed: {fault.get('message') if isinstance(fault, dict) else fault}")
        meta, given = event["meta_info"], event["output_ids"]
        seen, total = len(self.output_ids) - self._base, meta["completion_tokens"]
        if len(given) == total - seen:
            fresh, text = given, event["text"]
        elif len(given) == total:
            fresh, text = given[seen:], event["text"][len(self._attempt_text) :]
        else:
            raise UpstreamError(f"the engine counts {total} tokens, sent {len(given)} and had sent {seen}")
        self._attempt_text += text
        triples = _tail(meta.get("output_token_logprobs"), len(fresh), total)
        log_probs = [float("nan") if one[0] is None else float(one[0]) for one in triples]
        if [one[1] for one in triples] != fresh:
            self.mismatch = "the engine's ids and log-probs differ"
        self.output_ids.extend(fresh)
        self.log_probs.extend(log_probs)
        self._end(meta, total)
        if self._attempt > 0:
            text = self._resumed_text()
        elif self.finish == "abort":
            text = text.rstrip("\ufffd")
        self._text += text
        best = _tail(meta.get("output_top_logprobs"), len(fresh), total)
        alternatives = [[(float(one[0]), int(one[1])) for one in options or ()] for options in best]
        return Part(text, fresh, log_probs, alternatives)

    def _end(self, meta: Mapping[str, Any], total: int) -> None:
        """Note finish reason, versions and counts when the event is an attempt's last."""
        reason = meta.get("finish_reason")
        if reason is None:
            return
        if reason["type"] == "abort" and reason.get("status_code") not in (None, 200):
            raise _refusal(int(reason["status_code"]), str(reason.get("message")).encode())
        self.finish, self._abort_reason = reason["type"], str(reason.get("message"))
        if self.finish == "stop" and isinstance(reason.get("matched"), str):
            self.stop_text = reason["matched"]
        if self._attempt == 0:
            self.cached_tokens = int(meta.get("cached_tokens") or 0)
        spans = meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0, "end": total}]
        for span in spans:
            start, end = self._base + span["start"], self._base + span["end"]
            last = self.versions[-1] if self.versions else None
            if last is not None and last["version"] == span["version"] and last["end"] == start:
                last["end"] = end
            elif end > start:
                self.versions.append({"version": span["version"], "start": start, "end": end})

    def _resumed_text(self) -> str:
        """New text after an abort, decoded over all ids, so that a character cut by the abort is whole again."""
        whole = self.decode(self.output_ids)
        if self.finish in (None, "abort"):
            whole = whole.rstrip("\ufffd")
        elif self.stop_text is not None and self.stop_text in whole:
            whole = whole[: whole.rindex(self.stop_text)]
        return whole[len(self._text) :]


def _tail(values: Sequence[Any] | None, fresh: int, total: int) -> Sequence[Any]:
    """The last ``fresh`` of a list that holds either only new entries or all ``total``."""
    values = values or ()
    if len(values) not in (fresh, total):
        return ()
    return values[len(values) - fresh :]


def _refusal(status: int, raw: bytes) -> ReefError:
    """The engine's refusal as one of our errors."""
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    fault = body.get("error", body) if isinstance(body, dict) else None
    words = fault.get("message") if isinstance(fault, dict) else fault
    message = f"the engine refuses the request: {words or raw[:500].decode('utf-8', 'replace')}"
    if status == 400 and ("adapter" in message or "lora" in message.lower()):
        return Unavailable(message, hint="the release is being loaded; try again in a moment")
    if status == 400:
        return BadRequest(message)
    if status == 503:
        return Unavailable(message)
    return UpstreamError(f"{message} (status {status})")
