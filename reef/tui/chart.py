"""A line chart in text: braille, two by four dots a cell, or one mark a cell in ASCII. Pure; knows no widgets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reef.tui.text import Line, Span

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points from left to right, the kind of their line, and its mark where there is ASCII alone."""

    points: Sequence[Point]
    kind: str = "accent"
    mark: str = "*"
    dashed: bool = False


def chart(values: Sequence[float], width: int, height: int, *, ascii_only: bool = False, first: int = 0) -> list[Line]:
    """``values`` over their numbers, which begin at ``first``, with scales on the left and below."""
    return plot([Series(list(enumerate(values, first)))], width, height, ascii_only=ascii_only)


def plot(
    series: Sequence[Series],
    width: int,
    height: int,
    *,
    ascii_only: bool = False,
    level: float | None = None,
    label: Callable[[float], str] = "{:5.2f}".format,
    empty: str = "no step has been made yet",
) -> list[Line]:
    """All ``series`` on one pair of scales, the first on top; ``level`` is drawn across where no series is."""
    if width < 12 or height < 3:
        return []
    points = [point for one in series for point in one.points]
    if not points:
        return [((empty, "dim"),)]
    ys = [y for _, y in points] + ([] if level is None else [level])
    low, high = min(ys), max(ys)
    if low == high:
        low, high = low - 0.5, high + 0.5
    rows, cells = height - 1, width - 7
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    frame = _Frame(left, right, low, high, *((cells, rows) if ascii_only else (cells * 2, rows * 4)))
    grid: list[list[Span]] = [[(" ", "")] * cells for _ in range(rows)]
    if level is not None:
        at = frame.row(level) // (1 if ascii_only else 4)
        grid[at] = [("-" if ascii_only else "┄", "warn")] * cells
    for one in reversed(series):
        dots = frame.dots(one.points)
        if one.dashed and len(one.points) > 1:
            dots = [dot for at, dot in enumerate(dots) if at % 4 < 2]
        (_plain if ascii_only else _braille)(grid, dots, one)
    marks = {0: high, rows // 2: low + (high - low) * (1 - (rows // 2 + 0.5) / rows), rows - 1: low}
    lines: list[Line] = [
        ((f"{label(marks[at])[:5]:>5} " if at in marks else " " * 6, "dim"), *_joined(grid[at])) for at in range(rows)
    ]
    begin, end = f"{left:g}", f"{right:g}"
    return [*lines, ((f"{' ' * 6}{begin}{end:>{max(1, cells - len(begin))}}", "dim"),)]


@dataclass(frozen=True, slots=True)
class _Frame:
    left: float
    right: float
    low: float
    high: float
    across: int
    down: int

    def column(self, x: float) -> int:
        return round((x - self.left) / ((self.right - self.left) or 1) * (self.across - 1))

    def row(self, y: float) -> int:
        return round((self.high - y) / (self.high - self.low) * (self.down - 1))

    def dots(self, points: Sequence[Point]) -> list[tuple[int, int]]:
        """Dots of the line from point to point, as column and row."""
        places = [(self.column(x), self.row(y)) for x, y in points]
        found = places[:1]
        for (x0, y0), (x1, y1) in itertools.pairwise(places):
            steps = max(abs(x1 - x0), abs(y1 - y0), 1)
            found += [
                (x0 + round((x1 - x0) * at / steps), y0 + round((y1 - y0) * at / steps)) for at in range(1, steps + 1)
            ]
        return found


def _braille(grid: list[list[Span]], dots: Sequence[tuple[int, int]], one: Series) -> None:
    masks: dict[tuple[int, int], int] = {}
    for x, y in dots:
        at = y // 4, x // 2
        masks[at] = masks.get(at, 0) | _DOTS[y % 4][x % 2]
    for (row, column), mask in masks.items():
        under = ord(grid[row][column][0]) - 0x2800
        grid[row][column] = chr(0x2800 + (mask | (under if 0 < under < 256 else 0))), one.kind


def _plain(grid: list[list[Span]], dots: Sequence[tuple[int, int]], one: Series) -> None:
    for x, y in dots:
        grid[y][x] = one.mark, one.kind


def _joined(cells: Sequence[Span]) -> list[Span]:
    return [
        ("".join(text for text, _ in group), kind) for kind, group in itertools.groupby(cells, lambda cell: cell[1])
    ]
