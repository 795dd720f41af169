"""Keeps keys out of the record: what a call carries to be let in somewhere is forwarded and never stored.

Pure functions over bytes, called by the gateway when a body holds such a text. Nothing is changed on the way upstream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MASK = b"[redacted]"


def keys_of_tools(body: Mapping[str, Any]) -> list[bytes]:
    """Credentials for other servers that a request's body hands to the provider (MCP servers and their headers)."""
    found: list[Any] = []
    for part in (*_objects(body.get("mcp_servers")), *_objects(body.get("tools"))):
        found += [part.get("authorization_token"), part.get("authorization")]
        headers = part.get("headers")
        found += headers.values() if isinstance(headers, dict) else ()
    return [text.encode("utf-8", "surrogatepass") for text in found if isinstance(text, str) and text]


def masked(raw: bytes | bytearray, keys: Iterable[bytes]) -> bytes:
    """``raw`` with every occurrence of a key replaced, longest key first; the JSON around it stays as it is."""
    for key in sorted(keys, key=len, reverse=True):
        raw = raw.replace(key, MASK)
    return bytes(raw)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
