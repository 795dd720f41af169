"""Keeps keys out of the record: what a call carries to be let in somewhere is forwarded and never stored.

Pure functions over bytes, called where a text holds a key, or an escape that may spell one. Nothing is changed on the way
upstream or back.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from reef.core.records_types import Delivery, Finish
from reef.errors import BadRequest, TooLarge, Unsupported
from reef.inference.assembly import unpack

MASK = b"[redacted]"
SHORTEST_KEY = 8
"""What is shorter is no key: it would be found in half of all texts."""
LITTLE_BYTES = 2**16
"""What is shorter is always read at once."""
_MUCH_BYTES = 2**20
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://([^/?#\s]*)\S*")
_QUERY = re.compile(r"[?&;#]([^=&;#?]*)=([^&;#]*)")
_NAMES_A_KEY = re.compile("(?i)key|token|secret|auth|passw|pwd|cred|(^|[_-])sig(nature)?$").search


def keys_of_tools(body: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Credentials for other servers that a request's body hands to the provider: those of MCP servers and of other tools
    that are reached at an address, in fields, headers and addresses."""
    found: list[str] = []
    for part in (*_objects(body.get("mcp_servers")), *_objects(body.get("tools"))):
        headers = part.get("headers")
        fields = [value for name, value in part.items() if _NAMES_A_KEY(name)]
        for value in (*fields, *(headers.values() if isinstance(headers, dict) else ())):
            if isinstance(value, str):
                found += (value, value.rpartition(" ")[2])  # with and without its scheme (Bearer, Basic)
        for value in part.values():
            found += keys_of_address(value) if isinstance(value, str) else ()
    return as_keys(found)


def keys_of_address(address: str) -> list[str]:
    """What lets in whoever has this address: user and password, and values of its query that are named like a key."""
    whole = _ADDRESS.fullmatch(address)
    if whole is None:
        return []
    user = whole[1].rpartition("@")[0]
    found = [user, user.partition(":")[2], *(value for name, value in _QUERY.findall(address) if _NAMES_A_KEY(name))]
    return [*found, *map(unquote, found)]


def as_keys(texts: Iterable[str]) -> tuple[bytes, ...]:
    """Those of ``texts`` that are long enough to be keys, each once."""
    return tuple(dict.fromkeys(text.encode("utf-8", "surrogatepass") for text in texts if len(text) >= SHORTEST_KEY))


def needles(keys: Sequence[bytes]) -> tuple[bytes, ...]:
    """What a text holds that holds one of ``keys`` in any spelling: itself, or an escape of one of its characters."""
    return (*keys, b"\\u00", *_escapes(tuple(keys))[0])


def masked(raw: bytes | bytearray, keys: Sequence[bytes]) -> bytes:
    """``raw`` with every occurrence of a key replaced, longest key first, however JSON spells it; numbers stay."""
    known = tuple(key for key in keys if key.strip(b"0123456789.eE+-"))
    return _spelled(known).sub(MASK, raw) if known and _may_hold(raw, known) else bytes(raw)


def masked_json(raw: bytes, keys: Sequence[bytes]) -> bytes:
    """As ``masked``, for a JSON document: only within its texts, so that it stays one, and numbers in them too. It is
    ``raw`` itself where no key can be."""
    if not _may_hold(raw, tuple(keys)):
        return raw
    replaced = _spelled(tuple(keys)).sub
    return _TEXT.sub(lambda text: replaced(MASK, text[0]), raw)


def masked_text(text: str, keys: Sequence[bytes]) -> str:
    """As ``masked``, for a text."""
    return masked(text.encode("utf-8", "surrogatepass"), keys).decode("utf-8", "surrogatepass")


def masked_answer(finish: Finish, delivery: Delivery, keys: Sequence[bytes]) -> tuple[Finish, Delivery]:
    """An answer as it is stored: one that holds a key is kept without its content coding."""
    coding = delivery.headers.get("content-encoding")
    sent, headers = delivery.sent, delivery.headers
    if coding is not None:
        try:
            sent = unpack(sent, coding)
        except (BadRequest, Unsupported, TooLarge):
            return finish, delivery
        headers = {name: value for name, value in headers.items() if name != "content-encoding"}
    kept = masked(sent, keys)
    if kept == sent:
        return finish, delivery
    model = None if finish.model is None else masked_text(finish.model, keys)
    return replace(finish, model=model), replace(delivery, sent=kept, headers=headers)


def costly(sent: bytes | bytearray, headers: Mapping[str, str]) -> bool:
    """Whether reading this answer may take so long that it is done off the event loop: packed, it may unpack to very much."""
    return len(sent) > (LITTLE_BYTES if "content-encoding" in headers else _MUCH_BYTES)


def _may_hold(raw: bytes | bytearray, keys: tuple[bytes, ...]) -> bool:
    """False when no key is there in any spelling; most escapes spell signs that are in no key."""
    odd, codes = _escapes(keys)
    if any(one in raw for one in (*keys, *odd)):
        return True
    return not codes.isdisjoint(after[:2].lower() for after in raw.split(b"\\u00")[1:])


@functools.lru_cache(maxsize=64)
def _escapes(keys: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], frozenset[bytes]]:
    """Escapes other than by number that a spelling of a key may have, and the numbers of its signs."""
    signs = b"".join(keys)
    odd = not signs.isascii() or b'"' in signs or b"\\" in signs
    slash = (b"\\/",) if b"/" in signs else ()
    return (*slash, b"\\") if odd else slash, frozenset(b"%02x" % sign for sign in signs)


@functools.lru_cache(maxsize=64)
def _spelled(keys: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Matches each of ``keys`` however JSON may spell it, also where one document is a text of another.

    Backslashes are taken whole and never given back, so that a long row of them costs no more than it is long.
    """
    words = [b"".join(map(_sign, key.decode("utf-8", "surrogatepass"))) for key in sorted(keys, key=len, reverse=True)]
    return re.compile(rb"(?<!\\)(?:" + b"|".join(words) + b")")


def _sign(sign: str) -> bytes:
    if sign == "\\":  # how many there are is no matter, and those before every other sign are taken with it
        return b""
    units = sign.encode("utf-16-be", "surrogatepass")
    escaped = [rb"u(?i:%02x%02x)" % (units[at], units[at + 1]) for at in range(0, len(units), 2)]
    return rb"\\*+(?:" + re.escape(sign.encode("utf-8", "surrogatepass")) + b"|" + rb"\\*+".join(escaped) + b")"


def _objects(value: Any) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
