"""The progress bar of everything that may take over a second; on stderr, and only on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from reef.cli.common import talk

Progress = Callable[[str, int, int | None], None]
"""``(stage, done, total)``; total None where it is not known."""


@contextlib.contextmanager
def bar(*, bytes: bool = True) -> Iterator[Progress]:
    """A bar that the given function moves; counts bytes, else plain numbers."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Shown

    count = DownloadColumn() if bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Shown(*columns, console=talk, transient=True, disable=not talk.is_terminal) as shown:
        task = shown.add_task("", total=None)
        yield lambda stage, done, total: shown.update(task, description=stage, completed=done, total=total)
