"""The way into the ``reef`` command: an interrupt is answered in one line from the first moment on, while all else loads."""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = 130


def main() -> None:
    """Entry point of the command."""
    mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it was told to ignore interrupts
    if mine:
        signal.signal(signal.SIGINT, _leave)
    from reef.cli.app import run

    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = run()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        _leave()
    if mine:
        signal.signal(signal.SIGINT, _leave)  # what is left is only to end
    sys.exit(code)


def _leave(*_: object) -> None:
    """Say it and end here: Python would end by the signal where a module it was loading had been interrupted."""
    as_json = '{"schema": "reef.error/1", "error": {"code": "interrupted", "message": "interrupted", "hint": ""}}'
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(sys.stderr.fileno(), (f"{as_json}\n" if "--json" in sys.argv else "interrupted\n").encode())
    except (OSError, AttributeError, ValueError):  # streams that are closed, or none
        pass
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
