"""The marks that the dashboard draws with, for terminals that have them and for those that have not. Data only."""

from __future__ import annotations

import locale
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symbols:
    """One set of marks; ``plain`` sets are made of ASCII alone."""

    plain: bool
    serving: str
    busy: str
    idle: str
    held: str
    rejected: str
    rolled_back: str
    cursor: str
    branch_top: str
    branch: str
    older: str
    full: str
    empty: str
    up: str
    down: str
    to: str
    cut: str
    bars: str


UNICODE = Symbols(
    False, "●", "◐", "○", "◌", "✗", "↶", "▸", "╭", "├", "┊", "▰", "▱", "▲", "▼", "→", "…", "▁▂▃▄▅▆▇█"
)  # fmt: skip
ASCII = Symbols(True, "*", "%", ".", "o", "x", "<", ">", "/", "|", ":", "#", "-", "^", "v", "->", "~", "_.-~=+*#")


def symbols_for(ascii_only: bool) -> Symbols:
    """The set for this terminal: ASCII where it is asked for or where the locale has no UTF-8."""
    utf8 = locale.getpreferredencoding(False).lower().replace("-", "") == "utf8"
    return ASCII if ascii_only or not utf8 else UNICODE


def spark(values: list[float], symbols: Symbols) -> str:
    """A line of bars, one a value, between the least and the greatest of them."""
    if not values:
        return ""
    low, high = min(values), max(values)
    steps = len(symbols.bars) - 1
    return "".join(
        symbols.bars[round((one - low) / (high - low) * steps) if high > low else steps // 2] for one in values
    )


def gauge(have: int, need: int, width: int, symbols: Symbols) -> str:
    """How much of ``need`` is there, as a bar of ``width`` cells."""
    full = min(width, have * width // need) if need > 0 else 0
    return symbols.full * full + symbols.empty * (width - full)
