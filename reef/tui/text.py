"""Texts as they are shown: what strangers wrote becomes literal and visible, numbers become words. Knows no widgets.

A line is a tuple of spans, a span is a text and a kind (KINDS); nothing here or above it reads markup.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import lru_cache
from typing import Any

from reef.core.texts import writable

KINDS = ("", "dim", "bold", "good", "bad", "warn", "accent", "head", "cursor", "marked")
Span = tuple[str, str]
Line = tuple[Span, ...]

_ASCII = str.maketrans({"…": "~", "→": "->", "·": "-", "─": "-", "“": '"', "”": '"', "‘": "'", "’": "'", "×": "x"})


@lru_cache(4096)
def plain(text: str, ascii_only: bool = False) -> str:
    """``text`` with what a terminal would obey, hide or turn round written as escapes."""
    if text.isascii() and text.isprintable():
        return text
    shown = "".join(map(_visible, text))
    return shown.translate(_ASCII).encode("ascii", "backslashreplace").decode() if ascii_only else shown


def _visible(one: str) -> str:
    if one.isprintable():
        return "" if one in "\ufe0e\ufe0f" else one  # these only choose a glyph, and terminals disagree about its width
    if one == "\t":
        return "    "
    if one.isspace() and one not in "\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029":
        return " "
    return one.encode("unicode_escape", "surrogatepass").decode("ascii")


def sendable(text: str) -> str:
    """``text`` for the clipboard: as it is, but for what UTF-8 has no form for."""
    return writable(text)


def one(text: object, kind: str = "") -> Line:
    """A line of one span."""
    return ((str(text), kind),)


def clock(at: float | None) -> str:
    """A time of day, with the date where it is not of the last half day."""
    if not at:
        return "-"
    try:
        return datetime.fromtimestamp(at).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"


def minute(at: float | None) -> str:
    """A time of day without the seconds."""
    return clock(at)[:5]


def span_of(seconds: float) -> str:
    """A length of time: ``2 s``, ``14 m``, ``3 h``, ``5 d``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def uptime(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) if seconds < 86400 else span_of(seconds)


def size(count: float) -> str:
    """Bytes."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def number(value: Any, digits: int = 2) -> str:
    """A measured number, or a dash where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def short(name: object) -> str:
    """The beginning of an id, enough to tell it from others on a screen."""
    text = str(name or "-")
    return text if len(text) <= 8 else text[:6]
