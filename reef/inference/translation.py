"""A PassthroughBackend whose provider speaks only some dialects: calls in the others are translated, there and back.

Calls in a dialect the provider speaks pass untouched. Knows nothing of records or scenarios. Built by the composition root.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from reef.errors import BadConfig, BadRequest, NotFound
from reef.inference.base import ROUTES, Answer, Call
from reef.inference.dialects import DIALECTS
from reef.inference.dialects.prompt import Prompt
from reef.inference.passthrough import PassthroughBackend
from reef.inference.sse import dump
from reef.inference.translated import WholeAnswer, read_whole, translate_answer, unpacked

log = logging.getLogger("reef.inference")

PATHS: Mapping[str, str] = {route: path for path, route in ROUTES.items()}
"""Path of each dialect's route."""

_MISSING = (404, 405)
_REFUSED = (400, 422)
_EFFORT = re.compile(rb"effort|reasoning|think", re.IGNORECASE)
_ANTHROPIC_VERSION = ("anthropic-version", "2023-06-01")
_FOREIGN = {"messages": "openai-", "chat": "anthropic-", "responses": "anthropic-"}
"""Beginning of header names that mean nothing to a provider of that dialect."""


def dialects_of(setting: str, url: str) -> tuple[str, ...] | None:
    """The dialects the provider at ``url`` speaks, by configuration or by its name; None: to be found out."""
    if setting != "auto":
        named = tuple(dict.fromkeys(name.strip() for name in setting.split(",")))
        if not set(named) <= PATHS.keys():
            raise BadConfig(
                f"reef.upstream_api is {setting!r}",
                hint=f"auto, or a list of {', '.join(PATHS)}, e.g. chat,responses",
                field="reef.upstream_api",
            )
        return named
    host = urlsplit(url).hostname or ""
    if host == "anthropic.com" or host.endswith(".anthropic.com"):
        return ("messages",)
    return ("chat", "responses") if host == "api.openai.com" else None


class TranslatingBackend(PassthroughBackend):
    """An InferenceBackend in front of a provider that may not speak every dialect.

    ``speaks`` names its dialects. None: every call is passed on until a route answers 404 or 405; an empty request, which
    runs nothing, then tells whether the route is missing, and if so its calls are translated from then on.
    """

    unspoken: set[str]

    def __init__(self, url: str, *, speaks: Collection[str] | None = None, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._direct = PassthroughBackend(url, **settings)
        self._direct.health = self.health
        self._proven: set[str] = set()
        self._effortless: set[str] = set()
        self._learns = speaks is None
        self.unspoken = set() if speaks is None else {route for route in PATHS if route not in speaks}
        host = urlsplit(url).hostname or ""
        self._is_openai = host == "api.openai.com" or host.endswith(".openai.azure.com")

    @property
    def speaks(self) -> tuple[str, ...]:
        """The dialects whose calls pass untouched, as far as is known."""
        return tuple(route for route in PATHS if route not in self.unspoken)

    async def otherwise(self, call: Call, answered: Answer | None) -> Answer:
        """The call in the first dialect that the provider speaks and that can say it; else what it ``answered``."""
        if answered is not None:
            if call.path not in ROUTES or not await self._is_missing(call, answered):
                return answered
            answered = whole = await read_whole(answered)
            if _names_model(call, whole):
                return answered
            self._learn(call.route)
        prompt = DIALECTS[call.route].parse(call.body)
        refusal: BadRequest | None = None
        for target in self.speaks:
            try:
                asked = self._asked(call, prompt, target)
            except BadRequest as error:
                refusal = refusal or error
                continue
            answer = await self._send(asked, call, prompt)
            if answer.status not in _MISSING or not await self._is_missing(asked, answer):
                return await translate_answer(call, prompt, target, answer)
            await answer.aclose()
            self._learn(target)
        if refusal is not None:
            raise refusal
        self.unspoken.clear()  # nothing is there at all: a wrong address, or a server that is not yet what it will be
        if answered is None:
            raise NotFound("the model's server has no route for model calls", hint="see reef.upstream_url")
        return answered

    async def _send(self, asked: Call, call: Call, prompt: Prompt) -> Answer:
        """Send the translated call; where the model is refused any say on its effort, which many agents always send, again
        without: a refusal runs nothing, and effort is a wish, not a part of what was said."""
        answer = await self._direct.chat(asked)
        wished = "effort" in prompt.settings and _model(call) not in self._effortless
        if answer.status not in _REFUSED or not wished:
            return answer
        whole = await read_whole(answer)
        if not _EFFORT.search(unpacked(whole)):
            return whole
        self._effortless.add(_model(call))
        log.info("model %.100s takes no reasoning effort; it is left out from now on", _model(call))
        return await self._direct.chat(self._asked(call, prompt, asked.route))

    async def count_tokens(self, call: Call) -> Mapping[str, Any]:
        """The provider's own count; nobody else can count its tokens."""
        if "messages" in self.unspoken:
            raise NotFound(
                "this upstream counts no tokens, since it does not speak Anthropic's messages",
                hint="read the counts in the usage of its answers",
                code="no_token_count",
            )
        return await super().count_tokens(call)

    async def aclose(self) -> None:
        """Close all connections."""
        await super().aclose()
        await self._direct.aclose()

    def _learn(self, route: str) -> None:
        self.unspoken.add(route)
        log.info("the provider has no %s; its calls are translated", PATHS[route])

    async def _is_missing(self, call: Call, answered: Answer) -> bool:
        """Whether the route that ``answered`` 404 is not there, told by an empty request that cannot run anything."""
        if not self._learns or call.route in self._proven:
            return False
        try:
            probe = await self._direct.chat(replace(call, raw=b"{}", body={}, stream=False, query=""))
        except BaseException:  # nobody will ask for the answer
            await answered.aclose()
            raise
        await probe.aclose()
        if probe.status in _MISSING:
            return True
        self._proven.add(call.route)
        return False

    def _asked(self, call: Call, prompt: Prompt, target: str) -> Call:
        """The call as a provider of dialect ``target`` takes it."""
        if _model(call) in self._effortless:
            settings = {name: setting for name, setting in prompt.settings.items() if name != "effort"}
            prompt = replace(prompt, settings=settings)
        body = DIALECTS[target].ask(prompt, _model(call), call.stream)
        if self._is_openai and target == "chat" and "max_tokens" in body:
            body["max_completion_tokens"] = body.pop("max_tokens")  # the only name its reasoning models know
        headers = _headers(call, target)
        return replace(call, route=target, path=PATHS[target], query="", raw=dump(body), body=body, headers=headers)


def _headers(call: Call, target: str) -> tuple[tuple[str, str], ...]:
    """The client's headers for a provider of dialect ``target``, its credentials where that dialect has them."""
    kept = {"content-type": "application/json"}
    for name, value in call.headers:
        if name == "authorization" and target == "messages":
            kept.setdefault("x-api-key", re.sub("^bearer +", "", value, flags=re.IGNORECASE))
        elif name == "x-api-key" and target != "messages":
            kept.setdefault("authorization", f"Bearer {value}")
        elif name not in ("content-type", "accept-encoding") and not name.startswith(_FOREIGN[target]):
            kept[name] = value
    if target == "messages":
        kept.setdefault(*_ANTHROPIC_VERSION)
    return tuple(kept.items())


def _names_model(call: Call, answered: WholeAnswer) -> bool:
    """Whether a 404 speaks of the model that was asked for, and not of the route."""
    model = _model(call)
    said = unpacked(answered).decode("utf-8", "replace")
    return bool(model) and re.search(rf"(?<![\w.-]){re.escape(model)}(?![\w.-])", said) is not None


def _model(call: Call) -> str:
    return str(call.body.get("model") or "")
