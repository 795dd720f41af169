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
from itertools import pairwise
from json import JSONDecoder, scanner
from typing import Any

import orjson
import zstandard

from reef.errors import BadRequest, Unavailable

_SHARE_FROM_BYTES = 64
_TENSOR_CHUNK = 256
_SKIP: Callable[[str, int], re.Match[str]] = re.compile(r"[ \t\n\r]*").match  # type: ignore[assignment]
_MARK: Callable[[str, int], re.Match[str]] = re.compile(r"[ \t\n\r]*(.?)[ \t\n\r]*", re.DOTALL).match  # type: ignore[assignment]
"""The next sign with the space around it; an empty one at the end of the text."""
_SCAN: Callable[[str, int], tuple[Any, int]] = scanner.make_scanner(JSONDecoder())  # type: ignore[arg-type]

Segment = tuple[bool, bytes]
"""``(shared, bytes)``: shared segments are stored once, the others stay in the record."""


def split_json(raw: bytes) -> tuple[Any, list[Segment]]:
    """Parse a JSON document and cut it where its top-level arrays' elements and long values begin and end.

    The segments joined are ``raw``. Raises BadRequest with the position when it is not JSON, not UTF-8 or too deep.
    One pass and one function, because it is on the path of every request: the C scanner parses each value and says where
    it ends; only the top level and its arrays are walked here.
    """
    text, at, cuts = "", 0, [0]
    try:
        text = raw.decode()
        at = _SKIP(text, 0).end()
        if text[at : at + 1] != "{":
            value, at = _SCAN(text, at)
        else:
            value = {}
            at = _SKIP(text, at + 1).end()
            sign = "," if text[at : at + 1] != "}" else ""
            while sign == ",":
                key, at = _SCAN(text, at)
                mark = _MARK(text, at)
                if type(key) is not str or mark[1] != ":":
                    raise StopIteration(at)
                at = start = mark.end()
                if text[at : at + 1] != "[":
                    value[key], at = _SCAN(text, at)
                    if at - start >= _SHARE_FROM_BYTES:
                        cuts += (start, at)
                else:
                    items = value[key] = []
                    at = start = _SKIP(text, at + 1).end()
                    sign = "," if text[at : at + 1] != "]" else ""
                    while sign == ",":
                        item, end = _SCAN(text, at)
                        items.append(item)
                        if end - at >= _SHARE_FROM_BYTES:
                            cuts += (start, end)
                        at = start = end  # a comma belongs to what follows it: that stays so when the array grows
                        mark = _MARK(text, at)
                        sign = mark[1]
                        at = mark.end() if sign == "," else mark.start(1)
                    if text[at : at + 1] != "]":
                        raise StopIteration(at)
                    at += 1
                mark = _MARK(text, at)
                sign = mark[1]
                at = mark.end() if sign == "," else mark.start(1)
            if text[at : at + 1] != "}":
                raise StopIteration(at)
            at += 1
        if _SKIP(text, at).end() != len(text):
            raise StopIteration(at)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 (byte {error.start})", hint="send JSON as UTF-8") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", hint="send a flatter JSON document") from None
    except (StopIteration, json.JSONDecodeError) as error:
        position = error.value if isinstance(error, StopIteration) else error.pos
        where = f"unexpected text at character {position}" if text.strip() else "it is empty"
        raise BadRequest(f"the body is not JSON: {where}", hint="send a JSON object") from None
    except ValueError as error:  # what is left: a whole number of more digits than Python reads
        raise BadRequest(f"a number of the body cannot be read: {error}", hint="send it as text") from None
    cuts.append(len(text))
    if text.isascii():
        pieces = [raw[start:end] for start, end in pairwise(cuts)]
    else:
        pieces = [text[start:end].encode() for start, end in pairwise(cuts)]
    return value, [(number % 2 == 1, piece) for number, piece in enumerate(pieces) if piece]


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
        self._compress = zstandard.ZstdCompressor(level=3, write_checksum=True).compress  # SQLite has no checksums

    def put(self, db: sqlite3.Connection, segments: Sequence[Segment]) -> bytes | None:
        """Store what is new and return the manifest for the record's row; None for an empty body."""
        if not segments:
            return None
        entries: list[int] = []
        literal = bytearray()
        for shared, data in segments:
            if not shared:
                entries.append(-len(data))
                literal += data
                continue
            key = hashlib.sha256(data).digest()[:16]  # processors have an instruction for it
            known = self._known.get(key)
            if known is None:
                row = db.execute("SELECT id FROM segments WHERE hash = ?", (key,)).fetchone()
                if row is None:
                    packed = b"\x01" + self._compress(data)
                    known = db.execute("INSERT INTO segments(hash, data) VALUES (?, ?)", (key, packed)).lastrowid or 0
                else:
                    known = int(row[0])
                self._known[key] = known
                if len(self._known) > self._remember:
                    self._known.popitem(last=False)
            entries.append(known)
        manifest = orjson.dumps(entries) + b"\n" + bytes(literal)
        return b"\x01" + self._compress(manifest)

    def forget(self) -> None:
        """Drop the memory of hashes: a rollback or a purge may have taken their rows away."""
        self._known.clear()


def unpack(data: bytes) -> bytes:
    """The bytes that were packed; raises Unavailable when they are not those any more."""
    if data[:1] == b"\x01":
        try:
            return zstandard.ZstdDecompressor().decompress(data[1:])
        except zstandard.ZstdError as error:
            raise _garbled(str(error)) from error
    raise _garbled("they begin with no known mark")


def _garbled(why: str) -> Unavailable:
    return Unavailable(
        f"the stored bytes of a record are damaged: {why}",
        hint="see what else is: reef verify; the others can be read; restore a backup: reef restore FILE --force",
        code="store_damaged",
    )


def read_body(db: sqlite3.Connection, manifest: bytes | None) -> bytes:
    """The exact bytes of a body; empty for none. Raises Unavailable when they are not whole."""
    if manifest is None:
        return b""
    head, _, literal = unpack(manifest).partition(b"\n")
    entries: list[int] = orjson.loads(head)
    wanted = sorted({entry for entry in entries if entry > 0})
    found: dict[int, bytes] = {}
    for start in range(0, len(wanted), 500):
        some = wanted[start : start + 500]
        marks = ",".join("?" * len(some))
        for segment_id, data in db.execute(f"SELECT id, data FROM segments WHERE id IN ({marks})", some):
            found[segment_id] = unpack(data)
    if missing := set(wanted) - found.keys():
        raise _garbled(f"{len(missing)} of its parts are gone")
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
    return {entry for entry in orjson.loads(unpack(manifest).partition(b"\n")[0]) if entry > 0}
