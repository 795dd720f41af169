"""Bodies kept once: JSON and tensors cut into segments, long segments shared between records by content.

An agent resends its whole conversation on every call, so a record is a short list of segment ids plus what is new; the
exact bytes come back. Pure functions over bytes, and two that read and write the ``segments`` table.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from json import JSONDecoder, scanner
from typing import Any

import orjson
import zstandard

from reef.errors import BadRequest

_SHARE_FROM_BYTES = 64
_TENSOR_CHUNK = 256
_SPACE = re.compile(r"[ \t\n\r]*")
_SCAN: Callable[[str, int], tuple[Any, int]] = scanner.make_scanner(JSONDecoder())  # type: ignore[arg-type]

Segment = tuple[bool, bytes]
"""``(shared, bytes)``: shared segments are stored once, the others stay in the record."""


def split_json(raw: bytes) -> tuple[Any, list[Segment]]:
    """Parse a JSON document and cut it where its top-level arrays' elements and long values begin and end.

    The segments joined are ``raw``. Raises BadRequest with the position when it is not JSON, not UTF-8 or too deep.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 (byte {error.start})", hint="send JSON as UTF-8") from None
    try:
        cuts: list[tuple[int, int]] = []
        value = _walk(text, cuts)
    except RecursionError:
        raise BadRequest("the body is nested too deeply", hint="send a flatter JSON document") from None
    except (StopIteration, ValueError) as error:
        raise BadRequest(f"the body is not JSON: {_where(text, error)}", hint="send a JSON object") from None
    segments: list[Segment] = []
    at = 0
    for start, end in cuts:
        if end - start >= _SHARE_FROM_BYTES:
            if start > at:
                segments.append((False, text[at:start].encode()))
            segments.append((True, text[start:end].encode()))
            at = end
    if at < len(text):
        segments.append((False, text[at:].encode()))
    return value, segments


def _where(text: str, error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return str(error)
    position = error.value if isinstance(error, StopIteration) else 0
    return f"unexpected text at character {position}" if text.strip() else "it is empty"


def _walk(text: str, cuts: list[tuple[int, int]]) -> Any:
    """The parsed document; ``cuts`` receives the spans worth sharing, in order."""
    scan, space = _SCAN, _SPACE.match
    at = space(text, 0).end()  # type: ignore[union-attr]
    if text[at : at + 1] != "{":
        value, at = scan(text, at)
        _nothing_after(text, at)
        return value
    found: dict[str, Any] = {}
    at = space(text, at + 1).end()  # type: ignore[union-attr]
    while text[at : at + 1] != "}" or found:
        key, at = scan(text, at)
        if not isinstance(key, str):
            raise json.JSONDecodeError("a key must be a string", text, at)
        at = space(text, at).end()  # type: ignore[union-attr]
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("':' expected", text, at)
        at = space(text, at + 1).end()  # type: ignore[union-attr]
        start = at
        if text[at : at + 1] == "[":
            found[key], at = _walk_array(text, at, cuts)
        else:
            found[key], at = scan(text, at)
            cuts.append((start, at))
        at = space(text, at).end()  # type: ignore[union-attr]
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("',' or '}' expected", text, at)
        at = space(text, at + 1).end()  # type: ignore[union-attr]
    _nothing_after(text, at + 1)
    return found


def _walk_array(text: str, at: int, cuts: list[tuple[int, int]]) -> tuple[list[Any], int]:
    scan, space = _SCAN, _SPACE.match
    items: list[Any] = []
    at = space(text, at + 1).end()  # type: ignore[union-attr]
    if text[at : at + 1] == "]":
        return items, at + 1
    while True:
        start = at
        item, at = scan(text, at)
        items.append(item)
        cuts.append((start, at))
        at = space(text, at).end()  # type: ignore[union-attr]
        if text[at : at + 1] == "]":
            return items, at + 1
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("',' or ']' expected", text, at)
        at = space(text, at + 1).end()  # type: ignore[union-attr]


def _nothing_after(text: str, at: int) -> None:
    end = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if end != len(text):
        raise json.JSONDecodeError("nothing may follow the document", text, end)


def split_bytes(raw: bytes) -> list[Segment]:
    """An answer's wire bytes as one segment (equal answers are stored once)."""
    return [(len(raw) >= _SHARE_FROM_BYTES, raw)] if raw else []


def split_tensors(block: Mapping[str, Any]) -> list[Segment]:
    """A training block: numeric lists as binary chunks (a re-sent prompt's ids are shared), the rest as JSON."""
    plain: dict[str, Any] = {}
    layout: list[tuple[str, str, int]] = []
    chunks: list[Segment] = []
    for key, value in block.items():
        kind = _kind(value)
        if kind is None:
            plain[key] = value
            continue
        layout.append((key, kind, len(value)))
        for start in range(0, len(value), _TENSOR_CHUNK):
            chunks.append((True, array(kind, value[start : start + _TENSOR_CHUNK]).tobytes()))
    head = json.dumps({"plain": plain, "layout": layout}).encode()
    return [(False, head + b"\n"), *chunks]


def _kind(value: Any) -> str | None:
    """The array code for a list of ints or floats, None for anything else."""
    if not isinstance(value, list | tuple) or not value:
        return None
    if all(type(item) is int and -(2**31) <= item < 2**31 for item in value):
        return "i"
    return "d" if all(type(item) is float for item in value) else None


def join_tensors(raw: bytes) -> dict[str, Any]:
    """The training block that ``split_tensors`` cut."""
    head, _, body = raw.partition(b"\n")
    described = json.loads(head)
    block: dict[str, Any] = dict(described["plain"])
    at = 0
    for key, kind, count in described["layout"]:
        values = array(kind)
        end = at + count * values.itemsize
        values.frombytes(body[at:end])
        block[key] = values.tolist()
        at = end
    return block


class Segments:
    """Writes bodies; lives on the writer thread. Remembers recent hashes so that a re-sent history needs no look-up."""

    def __init__(self, remember: int = 50_000) -> None:
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._remember = remember
        self._compress = zstandard.ZstdCompressor(level=3).compress

    def put(self, db: sqlite3.Connection, segments: Sequence[Segment]) -> bytes | None:
        """Store what is new and return the manifest for the record's row; None for an empty body."""
        if not segments:
            return None
        entries: list[int] = []
        literal = bytearray()
        for shared, data in segments:
            if shared:
                entries.append(self._segment(db, data))
            else:
                entries.append(-len(data))
                literal += data
        return self._pack(orjson.dumps(entries) + b"\n" + bytes(literal))

    def forget(self) -> None:
        """Drop the memory of hashes: a rollback or a purge may have taken their rows away."""
        self._known.clear()

    def _segment(self, db: sqlite3.Connection, data: bytes) -> int:
        key = hashlib.blake2b(data, digest_size=16).digest()
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        row = db.execute("SELECT id FROM segments WHERE hash = ?", (key,)).fetchone()
        if row is None:
            found = db.execute("INSERT INTO segments(hash, data) VALUES (?, ?)", (key, self._pack(data))).lastrowid
            assert found is not None
        else:
            found = int(row[0])
        self._known[key] = found
        if len(self._known) > self._remember:
            self._known.popitem(last=False)
        return found

    def _pack(self, data: bytes) -> bytes:
        if len(data) >= _SHARE_FROM_BYTES:
            packed = self._compress(data)
            if len(packed) < len(data):
                return b"\x01" + packed
        return b"\x00" + data


def _unpack(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data[1:]) if data[:1] == b"\x01" else data[1:]


def read_body(db: sqlite3.Connection, manifest: bytes | None) -> bytes:
    """The exact bytes of a body; empty for none."""
    if manifest is None:
        return b""
    head, _, literal = _unpack(manifest).partition(b"\n")
    entries: list[int] = orjson.loads(head)
    wanted = sorted({entry for entry in entries if entry > 0})
    found: dict[int, bytes] = {}
    for start in range(0, len(wanted), 500):
        some = wanted[start : start + 500]
        marks = ",".join("?" * len(some))
        for segment_id, data in db.execute(f"SELECT id, data FROM segments WHERE id IN ({marks})", some):
            found[segment_id] = _unpack(data)
    parts: list[bytes] = []
    at = 0
    for entry in entries:
        if entry > 0:
            parts.append(found[entry])
        else:
            parts.append(literal[at : at - entry])
            at -= entry
    return b"".join(parts)


def segment_ids(manifest: bytes | None) -> set[int]:
    """The shared segments a body uses (for retention)."""
    if manifest is None:
        return set()
    return {entry for entry in orjson.loads(_unpack(manifest).partition(b"\n")[0]) if entry > 0}
