"""What writing a request has in common in all dialects: nothing is left out that the dialect cannot say. Called by ``ask``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from reef.inference.dialects.fields import refuse
from reef.inference.dialects.prompt import File, Image, Other, Part, Prompt

NAMES = {
    "chat": "OpenAI's chat completions",
    "responses": "OpenAI's responses",
    "messages": "Anthropic's messages",
}


def cannot_say(at: str, route: str) -> NoReturn:
    """The 400 for what dialect ``route`` has no words for."""
    refuse(at, f"cannot be said in {NAMES[route]}, which this upstream speaks; leave it out or use another upstream")


def write_settings(
    body: dict[str, Any], prompt: Prompt, route: str, fields: Mapping[str, str], done: Iterable[str] = ()
) -> None:
    """Put each setting under its field; refuse those with none, but for ``done``, and all that nobody could read."""
    known = set(done)
    for name, setting in prompt.settings.items():
        if name in fields:
            body[fields[name]] = list(setting.value) if isinstance(setting.value, tuple) else setting.value
        elif name not in known:
            cannot_say(setting.at, route)
    for name in prompt.unread:
        cannot_say(name, route)


def write_user(body: dict[str, Any], prompt: Prompt) -> None:
    """Who asks, for OpenAI's dialects, which take 64 characters: a longer id as its hash, which tells users apart as well."""
    user = prompt.get("user")
    if user is not None:
        text = str(user)
        body["user"] = text if len(text) <= 64 else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def address(part: Image | File) -> str:
    """Where a picture or document is, its bytes as a data URL."""
    return part.url or f"data:{part.media_type};base64,{part.data}"


def refuse_part(part: Part, route: str) -> NoReturn:
    """The 400 for a part dialect ``route`` has no form for."""
    kind = part.kind if isinstance(part, Other) else type(part).__name__.lower()
    refuse(part.at, f"{kind!r} cannot be said in {NAMES[route]}, which this upstream speaks")
