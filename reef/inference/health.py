"""How a provider fares: its address as it may be shown, and the last time that it did not answer as it should.

Knows nothing of calls. Held by the backend in front of the provider; read by status.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger("reef.inference")


class Health:
    """``failing`` from a failure until the next answer; the last failure is kept."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        """Without user, password and query."""
        self.failing = False
        self._failure: dict[str, Any] | None = None

    def failed(self, code: str, message: str) -> None:
        """It did not answer, broke off, or refused; only the first of several in a row is logged."""
        if not self.failing:
            log.warning("calls fail (%s): %s", code, message)
        self.failing = True
        self._failure = {"at": time.time(), "code": code, "message": message}

    def answers(self) -> None:
        """It answers again."""
        self.failing = False
        log.info("the model's server at %s answers again", self.address)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"url": self.address, "failing": self.failing, "last_failure": self._failure}
