"""The daemon's log: one JSON object a line, in files bounded in size, written at a bounded rate.

A line has ``time`` (UTC), ``level``, ``logger``, ``message``, and where there are any ``fields`` and ``exc``. Set up by
lifecycle, read by ``reef logs``.
"""

from __future__ import annotations

import itertools
import json
import logging
import logging.handlers
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

_FILE_BYTES, _FILES = 10 * 2**20, 3
_SAME_PER_MINUTE, _ALL_PER_MINUTE = 20, 600
_WINDOW_S = 60.0
_NAMED_KINDS = 20
_MESSAGE_CHARS, _TRACE_CHARS = 4000, 16_000
_SHORTEST_SECRET = 8
_BEARER = re.compile(r"(?i)(bearer +)\S+")
_RECENT, _RECENT_BYTES = 1000, 256 * 2**10
LEVELS = ("debug", "info", "warning", "error", "critical")
_LINE_FIELDS = ("time", "level", "logger", "message")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def start(home: Path, level: str, *, echo: bool, secrets: Sequence[str]) -> Recent:
    """Log to ``logs/reef.jsonl``, with ``echo`` also plain lines to stderr; ``secrets`` are never written.

    Returns the newest lines, also those of earlier runs, for whoever asks over HTTP.
    """
    folder = home / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = LogFile(folder / "reef.jsonl")
    file.setFormatter(JsonLines(secrets))
    recent = Recent(folder / "reef.jsonl")
    recent.setFormatter(JsonLines(secrets))
    targets: list[logging.Handler] = [file, recent]
    if echo:
        console = logging.StreamHandler(sys.stderr)
        console.setFormatter(PlainLines(secrets))
        targets.append(console)
    logging.basicConfig(level=level.upper(), handlers=[Bounded(targets)], force=True)
    logging.getLogger("uvicorn").setLevel("WARNING")
    logging.getLogger("asyncio").setLevel("WARNING")
    logging.getLogger("httpx").setLevel("WARNING")  # an evolving step calls its own daemon
    return recent


class PlainLines(logging.Formatter):
    """A line for people; what is long is cut, what is secret is masked."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        self._secrets = [one for one in secrets if len(one) >= _SHORTEST_SECRET]

    def format(self, record: logging.LogRecord) -> str:
        """``record`` as a line, its trace below it."""
        return self._clean(super().format(record), _TRACE_CHARS)

    def _clean(self, text: str, limit: int) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "********")
        text = _BEARER.sub(r"\1********", text)
        return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"


class JsonLines(PlainLines):
    """One JSON object a line, cut and masked in the same way."""

    def format(self, record: logging.LogRecord) -> str:
        """``record`` as a line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._clean(record.getMessage(), _MESSAGE_CHARS),
        }
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD and name[:1] != "_"}
        if fields:
            line["fields"] = {name: self._clean(str(value), _MESSAGE_CHARS) for name, value in fields.items()}
        if record.exc_info:
            line["exc"] = self._clean(self.formatException(record.exc_info), _TRACE_CHARS)
        return json.dumps(line)


class LogFile(logging.handlers.RotatingFileHandler, logging.handlers.WatchedFileHandler):
    """Rotates by bytes, and begins a new file where somebody has removed or moved the old one, or its folder."""

    def __init__(self, path: Path, *, file_bytes: int = _FILE_BYTES, files: int = _FILES) -> None:
        super().__init__(path, maxBytes=file_bytes, backupCount=files, encoding="utf-8")
        self.dev, self.ino = -1, -1
        self._statstream()

    def _open(self) -> TextIOWrapper:
        os.makedirs(os.path.dirname(self.baseFilename), mode=0o700, exist_ok=True)
        raw = open(self.baseFilename, "ab", opener=_private)  # noqa: SIM115
        return TextIOWrapper(raw, encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            self.reopenIfNeeded()
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A log that cannot be written must neither stop the daemon nor fill another file."""


class Recent(logging.Handler):
    """The newest lines, numbered; those that ``file`` ends with come first."""

    def __init__(self, file: Path | None = None, keep: int = _RECENT) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._kept: deque[tuple[int, dict[str, Any]]] = deque(maxlen=keep)
        if file is not None and file.is_file():
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - _RECENT_BYTES))
                for line in opened.read().splitlines():
                    self._keep(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self._keep(self.format(record))

    def _keep(self, line: str | bytes) -> None:
        try:
            found = json.loads(line)
        except ValueError:  # half of one, or what somebody else wrote there
            return
        if isinstance(found, dict) and all(isinstance(found.get(name), str) for name in _LINE_FIELDS):
            self._kept.append((next(self._numbers), found))

    def lines(self, after: int, limit: int, level: str) -> list[dict[str, Any]]:
        """Kept lines of ``level`` and above with a number over ``after``, oldest first, the newest ``limit`` of them."""
        wanted = LEVELS[LEVELS.index(level) :]
        kept = list(self._kept)  # one step of the interpreter: another thread may log meanwhile
        return [{"number": at, **line} for at, line in kept if at > after and line["level"] in wanted][-limit:]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@dataclass(slots=True)
class _Kind:
    """Lines from one place in the code within the minute."""

    last: logging.LogRecord
    count: int = 0
    held_back: int = 0


class Bounded(logging.Handler):
    """Passes records on to ``targets``, but not the same line more than ``same`` times a minute, nor more than ``all`` lines.

    What was held back is counted, and said when the minute is over. Two lines are the same when they come from one place in
    the code: it is the text before its arguments are filled in that counts.
    """

    def __init__(
        self,
        targets: Sequence[logging.Handler],
        *,
        same: int = _SAME_PER_MINUTE,
        all: int = _ALL_PER_MINUTE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._targets, self._same, self._all, self._clock = targets, same, all, clock
        self._since = clock()
        self._kinds: dict[tuple[str, int, str], _Kind] = {}
        self._passed = self._others = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Pass ``record`` on, or count it."""
        if self._clock() - self._since >= _WINDOW_S:
            self._new_minute()
        key = (record.name, record.levelno, str(record.msg)[:200])
        if key not in self._kinds and len(self._kinds) >= self._all:
            self._others += 1
            return
        kind = self._kinds.setdefault(key, _Kind(record))
        kind.last, kind.count = record, kind.count + 1
        if kind.count > self._same or self._passed >= self._all:
            kind.held_back += 1
            return
        self._passed += 1
        self._pass_on(record)

    def flush(self) -> None:
        """Flush the targets."""
        for target in self._targets:
            target.flush()

    def close(self) -> None:
        """Say what is still held back, then close the targets."""
        self.acquire()
        try:
            self._new_minute()
        finally:
            self.release()
        for target in self._targets:
            target.close()
        super().close()

    def _new_minute(self) -> None:
        """Say what was held back, the most frequent kinds by name, and begin to count anew."""
        held = sorted((kind for kind in self._kinds.values() if kind.held_back), key=lambda kind: -kind.held_back)
        for kind in held[:_NAMED_KINDS]:
            said = f"{kind.held_back} more like this within a minute: {kind.last.getMessage()}"
            self._pass_on(_line(kind.last.name, kind.last.levelno, said))
        if others := self._others + sum(kind.held_back for kind in held[_NAMED_KINDS:]):
            self._pass_on(_line("reef.log", logging.WARNING, f"{others} other lines were held back within a minute"))
        self._kinds.clear()
        self._since, self._passed, self._others = self._clock(), 0, 0

    def _pass_on(self, record: logging.LogRecord) -> None:
        for target in self._targets:
            target.handle(record)


def _line(name: str, level: int, said: str) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, said, None, None)
