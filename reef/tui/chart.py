"""A line chart in text: braille, two by four dots a cell, or one mark a column in ASCII. Pure; knows no widgets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from reef.tui.text import Line

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def chart(values: Sequence[float], width: int, height: int, *, ascii_only: bool = False, first: int = 0) -> list[Line]:
    """``values`` over their numbers, which begin at ``first``, with scales on the left and below."""
    if width < 12 or height < 3:
        return []
    if not values:
        return [(("no step has been made yet", "dim"),)]
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    rows, cells = height - 1, width - 7
    grid = _plain(values, low, high, cells, rows) if ascii_only else _braille(values, low, high, cells, rows)
    marks = {0: high, rows // 2: low + (high - low) * (1 - (rows // 2 + 0.5) / rows), rows - 1: low}
    lines: list[Line] = [
        ((f"{marks[at]:5.2f} " if at in marks else " " * 6, "dim"), (grid[at], "accent")) for at in range(rows)
    ]
    last = str(first + len(values) - 1)
    lines.append(((f"{' ' * 6}{first}{last:>{max(1, cells - len(str(first)))}}", "dim"),))
    return lines


def _places(values: Sequence[float], low: float, high: float, across: int, down: int) -> list[tuple[int, int]]:
    """Dots of the line from value to value, as column and row."""
    scale_x = (across - 1) / max(1, len(values) - 1)
    points = [
        (round(at * scale_x), round((high - value) / (high - low) * (down - 1))) for at, value in enumerate(values)
    ]
    dots = points[:1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots += [(x0 + round((x1 - x0) * at / steps), y0 + round((y1 - y0) * at / steps)) for at in range(1, steps + 1)]
    return dots


def _braille(values: Sequence[float], low: float, high: float, cells: int, rows: int) -> list[str]:
    grid = [[0] * cells for _ in range(rows)]
    for x, y in _places(values, low, high, cells * 2, rows * 4):
        grid[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return ["".join(chr(0x2800 + dots) if dots else " " for dots in row) for row in grid]


def _plain(values: Sequence[float], low: float, high: float, cells: int, rows: int) -> list[str]:
    grid = [[" "] * cells for _ in range(rows)]
    for x, y in _places(values, low, high, cells, rows):
        grid[y][x] = "*"
    return ["".join(row) for row in grid]
