"""From the wire bytes of an answer, plain or streamed, to the plain response object of its route. Pure functions.

Works on all bytes at once, so the result cannot depend on how the network cut them. Repairs nothing: what looks wrong
is named in ``flags``. Called by the backends' ``finish``, by readers of records and by tests.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import zstandard

from reef.errors import BadRequest, TooLarge, Unsupported
from reef.inference.streams import STREAMS

MAX_DECODED_BYTES = 256 * 1024 * 1024
"""An answer that unpacks to more than this is not read."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """One answer, read. ``complete``: it ended as its protocol says; ``error``: what an in-band error event said.

    ``finish_reason`` is the provider's word (chat ``finish_reason``, messages ``stop_reason``, responses ``status`` or
    the reason it is incomplete), None when it gave none. ``usage`` counts tokens under the same names for all routes.
    ``flags`` name oddities: ``not_json``, ``odd_shape``, ``event_not_json``, ``arguments_not_json``, ``arguments_repeated`` and
    ``call_index_reused``.
    """

    body: dict[str, Any] | None
    complete: bool
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    model: str | None = None
    empty: bool = True
    error: str | None = None
    flags: tuple[str, ...] = ()


_USAGE_PATHS: tuple[tuple[str, str, str | None], ...] = (
    ("input_tokens", "prompt_tokens", None),
    ("input_tokens", "input_tokens", None),
    ("output_tokens", "completion_tokens", None),
    ("output_tokens", "output_tokens", None),
    ("total_tokens", "total_tokens", None),
    ("cached_tokens", "prompt_tokens_details", "cached_tokens"),
    ("cached_tokens", "input_tokens_details", "cached_tokens"),
    ("cached_tokens", "cache_read_input_tokens", None),
    ("cache_creation_tokens", "cache_creation_input_tokens", None),
    ("reasoning_tokens", "completion_tokens_details", "reasoning_tokens"),
    ("reasoning_tokens", "output_tokens_details", "reasoning_tokens"),
)


def assemble(route: str, content_type: str, raw: bytes) -> Assembled:
    """Read the bytes of one answer (already unpacked, see ``unpack``) of ``route`` (chat, responses or messages)."""
    flags: list[str] = []
    body: Any
    complete, error = True, None
    try:
        if content_type.startswith("text/event-stream") or raw[:64].lstrip()[:5] in (b"data:", b"event"):
            joined = STREAMS[route](raw)
            body, complete, error = joined.body, joined.complete, joined.error
            flags.extend(joined.flags)
            if body is None:
                return Assembled(None, complete, error=error, flags=tuple(flags))
        else:
            body = json.loads(raw)
            if not isinstance(body, dict):
                return Assembled(None, False, flags=("not_json",))
        finish_reason, empty, whole = _JUDGES[route](body, flags)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as odd:
        # A foreign server may send anything as anything, at any depth. That is a fact about its answer, which still goes
        # to the client and whose bytes are kept; only nothing can be learned from it.
        return Assembled(None, False, flags=("not_json" if isinstance(odd, ValueError) else "odd_shape",))
    fault = body.get("error")
    if fault and error is None:
        error = str(fault.get("message") or fault) if isinstance(fault, dict) else str(fault)
    usage: dict[str, int] = {}
    counts = body.get("usage")
    for name, key, inner in _USAGE_PATHS if isinstance(counts, dict) else ():
        value = counts.get(key)
        if inner is not None:
            value = value.get(inner) if isinstance(value, dict) else None
        if type(value) is int and abs(value) < 2**53:
            usage[name] = value
    # Kept beside the bytes as UTF-8, which halves of surrogate pairs are not.
    reason, model = [
        text.encode("utf-8", "replace").decode() if isinstance(text, str) else None
        for text in (finish_reason, body.get("model"))
    ]
    done = complete and whole and error is None
    return Assembled(body, done, reason, usage, model, empty, error, tuple(flags))


def unpack(raw: bytes, content_encoding: str) -> bytes:
    """``raw`` without its content codings; what a cut stream still holds is given. Unsupported for others (br)."""
    for coding in reversed(content_encoding.lower().replace(" ", "").split(",")):
        if coding in ("", "identity"):
            continue
        try:
            raw = _UNPACKERS[coding](raw)
        except KeyError as error:
            raise Unsupported(f"content coding {coding!r} cannot be read") from error
        except (zlib.error, zstandard.ZstdError) as error:
            raise BadRequest(f"the body is not valid {coding}: {error}", field="content-encoding") from error
        if len(raw) > MAX_DECODED_BYTES:
            raise TooLarge(f"the body unpacks to more than {MAX_DECODED_BYTES} bytes")
    return raw


def _gunzip(raw: bytes) -> bytes:
    """Member by member, each fed in slices that grow: what is left of a slice behind many small members is little to copy."""
    parts: list[bytes] = []
    room, at, whole = MAX_DECODED_BYTES + 1, 0, memoryview(raw)
    while at < len(raw) and room > 0:
        member, step = zlib.decompressobj(31), 256
        while not member.eof and at < len(raw) and room > 0:
            parts.append(member.decompress(whole[at : at + step], room))
            room -= len(parts[-1])
            at, step = at + step, min(step * 4, 2**20)
        at = min(at, len(raw)) - len(member.unused_data)
    return b"".join(parts)


def _inflate(raw: bytes) -> bytes:
    try:
        return zlib.decompressobj(15).decompress(raw, MAX_DECODED_BYTES + 1)
    except zlib.error:
        return zlib.decompressobj(-15).decompress(raw, MAX_DECODED_BYTES + 1)


def _unzstd(raw: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw), read_across_frames=True)
    return reader.read(MAX_DECODED_BYTES + 1)


_UNPACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
    "zstd": _unzstd,
}


def _judge_chat(body: dict[str, Any], flags: list[str]) -> tuple[str | None, bool, bool]:
    """Finish reason, empty, whole; notes bad arguments in ``flags``."""
    finish_reason, empty, choices = None, True, body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        finish_reason = finish_reason or choice.get("finish_reason")
        message = choice.get("message")
        if not isinstance(message, dict):
            continue
        if (
            message.get("content")
            or message.get("reasoning_content")
            or message.get("reasoning")
            or message.get("refusal")
        ):
            empty = False
        for call in message.get("tool_calls") or ():
            empty = False
            if isinstance(call, dict) and isinstance(call.get("function"), dict):
                _check_arguments(call["function"].get("arguments"), flags)
    return finish_reason, empty, bool(choices)


def _judge_responses(body: dict[str, Any], flags: list[str]) -> tuple[str | None, bool, bool]:
    """As ``_judge_chat``; an answer that is still ``in_progress`` or ``queued`` is not whole."""
    empty, status, output = True, body.get("status"), body.get("output")
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict):
            continue
        if item.get("type") == "message":
            for part in item.get("content") or ():
                empty = empty and not (isinstance(part, dict) and (part.get("text") or part.get("refusal")))
        else:
            empty = False
        if item.get("type") == "function_call":
            _check_arguments(item.get("arguments"), flags)
    details = body.get("incomplete_details")
    finish_reason = details.get("reason") if isinstance(details, dict) else status
    return finish_reason, empty, status not in ("in_progress", "queued", None)


def _judge_messages(body: dict[str, Any], flags: list[str]) -> tuple[str | None, bool, bool]:
    """As ``_judge_chat``; an input that is still text could not be parsed."""
    empty, content = True, body.get("content")
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        empty = empty and block.get("type") == "text" and not block.get("text")
        if block.get("type") == "tool_use" and isinstance(block.get("input"), str):
            _check_arguments(block["input"], flags)
    return body.get("stop_reason"), empty, isinstance(content, list)


_JUDGES: Mapping[str, Callable[[dict[str, Any], list[str]], tuple[str | None, bool, bool]]] = {
    "chat": _judge_chat,
    "responses": _judge_responses,
    "messages": _judge_messages,
}


def _check_arguments(arguments: object, flags: list[str]) -> None:
    """Flag argument text that is not JSON, or that is the same JSON twice; empty text stands for no arguments."""
    if not isinstance(arguments, str) or not arguments.strip():
        return
    try:
        first, end = json.JSONDecoder().raw_decode(arguments.strip())
    except ValueError:
        flags.append("arguments_not_json")
        return
    rest = arguments.strip()[end:].strip()
    if not rest:
        return
    try:
        repeated = json.loads(rest) == first
    except ValueError:
        repeated = False
    flags.append("arguments_repeated" if repeated else "arguments_not_json")
