"""Code that is not ours: it may take for ever, and a step must make room all the same."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as futures_wait
from typing import TypeVar

from reef.evolve.values import Outage

T = TypeVar("T")

_LOOK_S = 0.2
_LEAVING_S = 10.0
"""An episode that is to end has ended by then."""


def wait(seconds: float, go_on: Callable[[], bool]) -> None:
    """Sleep; raises Outage when the step is to make room."""
    until_s = time.monotonic() + seconds
    while go_on():
        if (left_s := until_s - time.monotonic()) <= 0:
            return
        time.sleep(min(left_s, _LOOK_S))
    raise Outage("interrupted")


def leaving(call: Callable[[], T], go_on: Callable[[], bool]) -> T:
    """What ``call`` returns or raises, on a thread of its own, because code that is not ours may never come back.

    Raises Outage when the step is to make room and it does not end soon; what it finds afterwards goes nowhere.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="reef-foreign", daemon=True).start()
    until_s = math.inf
    while not futures_wait([done], _LOOK_S).done:
        if not go_on():
            until_s = min(until_s, time.monotonic() + _LEAVING_S)
        if time.monotonic() > until_s:
            raise Outage("interrupted")
    return done.result()
