"""One finding of doctor. Knows nothing of what is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from reef.cli.place import here

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``repair`` does what ``fix`` says, where that is safe to do unasked, and says what it did."""

    id: str
    state: State
    message: str
    fix: str = ""
    repair: Callable[[], str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "id": self.id,
            "state": self.state,
            "ok": self.state == "ok",
            "message": self.message,
            "fix": here(self.fix),
            "fixable": self.repair is not None,
        }
