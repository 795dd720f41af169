"""Keeps keys out of the record: what a call carries to be let in somewhere is forwarded and never stored.

Pure functions over bytes, called by the gateway when a body holds such a text. Nothing is changed on the way upstream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from reef.inference.sse import dump

MASK = b"[redacted]"
SHORTEST_KEY = 8
"""What is shorter is no key: it would be found in half of all texts."""
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def keys_of_tools(body: Mapping[str, Any]) -> list[bytes]:
    """Credentials for other servers that a request's body hands to the provider (MCP servers and their headers)."""
    found: list[Any] = []
    for part in (*_objects(body.get("mcp_servers")), *_objects(body.get("tools"))):
        found += [part.get("authorization_token"), part.get("authorization")]
        headers = part.get("headers")
        found += headers.values() if isinstance(headers, dict) else ()
    return [
        text.encode("utf-8", "surrogatepass") for text in found if isinstance(text, str) and len(text) >= SHORTEST_KEY
    ]


def masked(raw: bytes | bytearray, keys: Iterable[bytes]) -> bytes:
    """``raw`` with every occurrence of a key replaced, longest key first; nothing else is touched."""
    for key in sorted(keys, key=len, reverse=True):
        raw = raw.replace(key, MASK)
    return bytes(raw)


def masked_json(raw: bytes, keys: Iterable[bytes]) -> bytes:
    """As ``masked``, for a JSON document: only within its texts, so that it stays one, and however they are escaped."""
    known = list(keys)

    def clean(found: re.Match[bytes]) -> bytes:
        said = json.loads(found[0].decode()).encode("utf-8", "surrogatepass")
        kept = masked(said, known)
        return found[0] if kept == said else dump(kept.decode("utf-8", "surrogatepass"))

    return _TEXT.sub(clean, raw)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
