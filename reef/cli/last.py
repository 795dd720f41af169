"""How a state directory's daemon was last started: written by reef up and reef serve, told by hints. Holds no secret."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FILE = "last_start.json"
_SECRETS = ("reef.upstream_api_key", "reef.token")


@dataclass(frozen=True, slots=True)
class LastStart:
    """What was typed: a file, settings, and the names of secrets that were given and are not kept."""

    config: str | None
    settings: Mapping[str, str]
    secrets: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What starts it so again, as it is typed; a secret must be given anew."""
        words = ["reef", "up", *(["-c", self.config] if self.config is not None else [])]
        for key, value in self.settings.items():
            words += [f"--{key}", value]
        return " ".join([shlex.join(words), *(f"--{key} ..." for key in self.secrets)])


def last_start(home: Path) -> LastStart | None:
    """How it was last started there, None where nobody knows, or with nothing set."""
    try:
        kept = json.loads((home / _FILE).read_text(encoding="utf-8"))
        config = kept["config"]
        found = LastStart(
            None if config is None else str(config),
            {str(key): str(value) for key, value in kept["settings"].items()},
            tuple(map(str, kept["secrets"])),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.config or found.settings or found.secrets else None


def remember(home: Path, config: Path | None, overrides: Mapping[str, str]) -> None:
    """Keep what was typed to start it; a directory that takes nothing is left alone."""
    hidden = [
        key for key, value in overrides.items() if key in _SECRETS or "@" in value
    ]  # an address may hold a password
    kept = {
        "config": None if config is None else os.path.abspath(config),
        "settings": {key: value for key, value in overrides.items() if key not in hidden},
        "secrets": hidden,
        "at": time.time(),
    }
    fresh = home / f".{_FILE}.{os.getpid()}"
    with contextlib.suppress(OSError):
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(kept), encoding="utf-8")
        os.replace(fresh, home / _FILE)
