"""Long output of a command in a pager, on a terminal only. Knows no command; those that may be long are marked with it."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from reef.cli.common import out

P = ParamSpec("P")
R = TypeVar("R")


def paged(command: Callable[P, R]) -> Callable[P, R]:
    """``command``, whose output goes through a pager where it is longer than the terminal, and nothing follows it."""

    @functools.wraps(command)
    def shown(*args: P.args, **kwargs: P.kwargs) -> R:
        given = inspect.signature(command).bind(*args, **kwargs).arguments
        if given.get("as_json") or given.get("follow") or not _wanted():
            return command(*args, **kwargs)
        held = out.capture()
        try:
            with held:
                return command(*args, **kwargs)
        finally:
            _show(held.get())

    return shown


def _wanted() -> bool:
    """A pager is for somebody who sits before a terminal that can be moved on, and has not said no."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        return False
    return not os.environ.get("NO_PAGER") and os.environ.get("TERM") != "dumb" and _pager() is not None


def _pager() -> list[str] | None:
    """The words that start it, None for none: an empty PAGER, or cat, is none."""
    try:
        words = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:  # a quote that does not end
        return None
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return None
    return words


def _show(text: str) -> None:
    if text.count("\n") < out.height:
        sys.stdout.write(text)
        return
    words = _pager()
    assert words is not None
    environ = {**os.environ, "LESS": os.environ.get("LESS", "FRX")}  # colours stay, and a short text does not wait
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=environ, text=True, errors="backslashreplace") as reader:
        try:
            assert reader.stdin is not None
            reader.stdin.write(text)
            reader.stdin.close()
        except BrokenPipeError:  # who has seen enough leaves before the end
            pass
        while True:
            try:
                reader.wait()
                return
            except KeyboardInterrupt:  # it is the pager's, which goes on
                continue
