"""Relays calls to a provider, byte for byte, over one pooled HTTP client. Never retries, never rewrites an answer.

Knows nothing of records, scenarios or training. Built by the composition root; called by the gateway.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import urllib.request
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from reef.core.records_types import RecordState
from reef.errors import BadRequest, TooLarge, Unsupported, UpstreamError, UpstreamTimeout
from reef.inference.assembly import assemble, unpack
from reef.inference.base import Answer, Call, Finish
from reef.inference.health import Health
from reef.inference.jsonspan import replace_value

HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers that belong to one connection."""

_NOT_SENT = HOP_BY_HOP | {"host", "content-length", "content-encoding", "cookie", "expect", "accept-encoding"}
_NOT_RETURNED = HOP_BY_HOP | {"content-length", "set-cookie", "set-cookie2"}
_CREDENTIALS = frozenset({"authorization", "x-api-key"})
_READABLE_CODINGS = ("gzip", "deflate", "zstd")
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no header's value may hold: one that does is not passed on, or the whole answer could not be."""
_OWN_DEFAULTS = ("User-Agent", "Accept", "Content-Type", "Accept-Encoding")
"""Headers aiohttp would add by itself; the client's own are sent instead, or none."""
_UNPAID = (401, 402, 403)
"""A key that is wrong, spent, or not allowed to: the next call fails as well."""
_ANTHROPIC_VERSION = "2023-06-01"


@dataclass(slots=True)
class _RelayedAnswer:
    """An upstream answer whose body has not been read yet."""

    status: int
    headers: list[tuple[str, str]]
    release_id: str | None
    _route: str
    _response: aiohttp.ClientResponse
    _health: Health
    _left_bytes: int
    _broken: str | None = None

    async def slices(self) -> AsyncIterator[bytes]:
        """Body bytes as the network gives them; UpstreamError or UpstreamTimeout when they break off, or do not end."""
        try:
            async for chunk in self._response.content.iter_any():
                self._left_bytes -= len(chunk)
                if self._left_bytes < 0:
                    if fits := chunk[: self._left_bytes]:
                        yield fits
                    self._broken = "answer_too_large"
                    raise UpstreamError(
                        "the model's server sent more than one answer may hold",
                        hint="raise reef.max_answer_mb if that is right",
                        code=self._broken,
                    )
                yield chunk
        except TimeoutError as error:
            self._broken = "upstream_timeout"
            self._health.failed(self._broken, "the model's server stopped sending")
            raise UpstreamTimeout("the model's server stopped sending", hint="see upstream idle timeout") from error
        except aiohttp.ClientError as error:
            # What came in the same read as the break is still in the buffer, which the public calls do not give any more.
            if rest := self._response.content._read_nowait(-1):
                yield rest
            self._broken = "upstream_broke_off"
            said = f"the model's server broke off in the middle of its answer: {error}"
            self._health.failed(self._broken, said)
            raise UpstreamError(said) from error

    def finish(self, sent: bytes, reason: str | None = None) -> Finish:
        """Judge the bytes passed on; an answer that is whole counts as complete even when the reader left after it."""
        headers = self._response.headers
        try:
            raw = unpack(sent, headers["content-encoding"]) if "content-encoding" in headers else sent
        except (BadRequest, Unsupported, TooLarge):
            return Finish(RecordState.INCOMPLETE, reason or self._broken or "coding_not_readable")
        read = assemble(self._route, headers.get("content-type", ""), raw)
        if self.status >= 300:
            state, code = RecordState.FAILED, f"upstream_{self.status}"
            if self.status == 400 and b"anthropic-beta" in raw:
                code += ": the server knows no such beta; drop it with reef.upstream_drop_beta, or in the client"
        elif read.error is not None:
            state, code = RecordState.FAILED, "upstream_error_event"
        elif read.complete and (self._broken is None or self._has_end_mark(raw)):
            state, code = RecordState.COMPLETE, read.flags[0] if read.flags else "empty_answer" if read.empty else ""
        elif reason is not None and self._broken is None:
            state, code = RecordState.ABORTED, reason
        else:
            state, code = RecordState.INCOMPLETE, self._broken or (read.flags[0] if read.flags else "no_end_mark")
        return Finish(state, code or None, read.finish_reason, read.usage, read.model)

    def _has_end_mark(self, raw: bytes) -> bool:
        """Whether a complete answer is a stream with its last event: what breaks off behind that has ended before."""
        streamed = self._response.headers.get("content-type", "").startswith("text/event-stream")
        return streamed and (self._route != "chat" or raw.rstrip().endswith(b"[DONE]"))

    async def aclose(self) -> None:
        """Give the connection back; one that is still sending is cut, which cancels the work upstream."""
        self._response.close()


class PassthroughBackend:
    """An InferenceBackend in front of any OpenAI- or Anthropic-speaking URL.

    ``api_key`` replaces the client's credentials; None forwards them. ``model`` replaces the request's model name,
    the one change ever made to a body, and only when the deployment asks for it. ``drop_beta`` names values of
    ``anthropic-beta`` that the server does not know.
    """

    unspoken: Collection[str] = ()
    """Routes the provider is known not to have. Only a subclass that answers them in another way names any."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 600.0,
        max_answer_bytes: int = 2**28,
        model: str | None = None,
        drop_beta: str | None = None,
    ) -> None:
        self._base = url.rstrip("/")
        self.health = Health(self._base)
        self._is_anthropic = (urlsplit(self._base).hostname or "").endswith("anthropic.com")
        self._api_key = api_key
        self._model = model
        self._max_answer_bytes = max_answer_bytes
        self._drop_beta = frozenset((drop_beta or "").replace(" ", "").split(",")) - {""}
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=None, sock_connect=connect_timeout_s, sock_read=idle_timeout_s
        )
        self._proxy = proxy_for(self._base)
        self._session: aiohttp.ClientSession | None = None

    async def chat(self, call: Call) -> Answer:
        """Send the call once; returns at the answer's headers."""
        if call.route in self.unspoken:
            return await self.otherwise(call, None)
        headers: list[tuple[str, str]] = []
        codings, version_known = "identity", False
        for name, value in call.headers:
            if name == "accept-encoding" and not call.stream:  # a stream stays readable: an error event may follow
                codings = ", ".join(filter(value.__contains__, _READABLE_CODINGS)) or codings
            if name in _NOT_SENT or name.startswith("x-reef-") or (self._api_key and name in _CREDENTIALS):
                continue
            if name == "anthropic-beta" and self._drop_beta:
                value = ",".join(one for one in value.replace(" ", "").split(",") if one not in self._drop_beta)
                if not value or "all" in self._drop_beta:
                    continue
            version_known = version_known or name == "anthropic-version"
            headers.append((name, value if value.isascii() else _as_sent(value)))
        headers.append(("accept-encoding", codings))
        if self._api_key and (call.route == "messages" or self._is_anthropic):
            headers.append(("x-api-key", self._api_key))
            if not version_known:
                headers.append(("anthropic-version", _ANTHROPIC_VERSION))
        elif self._api_key:
            headers.append(("authorization", f"Bearer {self._api_key}"))
        raw = call.raw
        if self._model is not None and raw and call.body.get("model") != self._model:
            raw = replace_value(raw, "model", self._model)
        path = call.path[3:] if self._base.endswith("/v1") and call.path.startswith("/v1/") else call.path
        url = URL(self._base + path + ("?" + call.query if call.query else ""), encoded=True)
        if self._session is None:
            self._session = self._open()
        method = "POST" if raw else "GET"
        try:
            response = await self._session.request(
                method, url, data=raw or None, headers=headers, allow_redirects=False, proxy=self._proxy
            )
        except (TimeoutError, aiohttp.ClientError) as error:
            unreachable = self._unreachable(error)
            self.health.failed(unreachable.code, unreachable.message)
            raise unreachable from error
        if not 200 <= response.status < 600:
            response.close()
            raise UpstreamError(
                f"the model's server at {self.health.address} answered {response.status}, which is no final status"
            )
        if response.status >= 500 or response.status in _UNPAID:
            self.health.failed(f"upstream_{response.status}", f"{self.health.address} answered {response.status}")
        elif self.health.failing:
            self.health.answers()
        returned: list[tuple[str, str]] = []
        for key, held in response.raw_headers:
            name = key.decode("latin-1").lower()
            if name not in _NOT_RETURNED and not _CONTROLS.search(held):
                returned.append((name, held.decode("latin-1")))
        answer = _RelayedAnswer(
            response.status, returned, None, call.route, response, self.health, self._max_answer_bytes
        )
        return await self.otherwise(call, answer) if response.status in (404, 405) else answer

    async def otherwise(self, call: Call, answered: Answer | None) -> Answer:
        """The answer where the provider does not have the route, or perhaps not (404, 405): here, what it ``answered``."""
        assert answered is not None, "no route is unspoken here"
        return answered

    def serving(self, scenario: str) -> str | None:
        """A foreign model has no release."""
        return None

    async def models(self, headers: tuple[tuple[str, str], ...] = ()) -> Mapping[str, Any]:
        """The upstream's own list; ``headers`` are the client's, for its credentials."""
        kept = tuple(pair for pair in headers if pair[0] in _CREDENTIALS or pair[0].startswith("anthropic-"))
        return await self._ask(Call("models", "/v1/models", "", b"", {}, kept, False, "", ""))

    async def count_tokens(self, call: Call) -> Mapping[str, Any]:
        """The upstream's own count; an error keeps the upstream's status."""
        return await self._ask(call)

    async def check(self) -> None:
        """Nothing to prove: a provider may be down now and up when it is called, and nothing of it trains."""

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        """The one session, made on the loop that first needs it."""
        return aiohttp.ClientSession(
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0),
            timeout=self._timeout,
            skip_auto_headers=_OWN_DEFAULTS,
        )

    def _unreachable(self, error: Exception) -> UpstreamError | UpstreamTimeout:
        """The client's error in our words."""
        if isinstance(error, TimeoutError):
            return UpstreamTimeout(f"the model's server at {self.health.address} did not answer in time")
        if isinstance(error, aiohttp.ClientResponseError):
            return UpstreamError(
                f"the server at {self.health.address} answered something that is not HTTP: {error.message.strip()[:200]}",
                hint="check that the upstream URL is right, its scheme and port too",
            )
        return UpstreamError(
            f"the model's server at {self.health.address} cannot be reached: {_in_words(error)}",
            hint="check that it runs and that the upstream URL is right",
        )

    async def _ask(self, call: Call) -> Mapping[str, Any]:
        """The JSON body of a small side request; a refusal keeps its status and words."""
        answer = await self.chat(call)
        try:
            parts = [chunk async for chunk in answer.slices()]
        finally:
            await answer.aclose()
        coding = "".join(value for name, value in answer.headers if name == "content-encoding")
        try:
            body = json.loads(await asyncio.to_thread(unpack, b"".join(parts), coding))
        except ValueError:
            body = None
        if answer.status == 200 and isinstance(body, dict):
            return body
        fault = body.get("error") if isinstance(body, dict) else None
        words = fault.get("message") if isinstance(fault, dict) else fault
        refusal = UpstreamError(f"the model's server answered {answer.status}: {words or 'no reason given'}")
        refusal.status = answer.status if answer.status >= 400 else refusal.status
        raise refusal


def _as_sent(value: str) -> str:
    """A header's text whose UTF-8 form, which the HTTP client writes, is the client's own bytes, where that can be."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def proxy_for(url: str) -> str | None:
    """The proxy the environment names for ``url``; none for loopback, whatever the environment says."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return None
    except ValueError:  # a name, not an address
        if host.endswith(".localhost"):
            return None
    if urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _in_words(error: Exception) -> str:
    """Why no connection was made; what the client library says of it names its own settings too."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno).lower()
    if isinstance(error, aiohttp.ClientConnectorDNSError) and cause is not None and cause.strerror:
        return cause.strerror.lower()
    return str(error) or type(error).__name__
