"""The seam between the gateway and whatever answers a model call: Call in, Answer out.

Knows nothing of records, scenarios' trainers or HTTP servers. Implemented by passthrough and by the training backend.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from reef.core.artifacts import Release
from reef.core.records_types import Finish

__all__ = ["ROUTES", "Answer", "Call", "Finish", "InferenceBackend"]

ROUTES: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
"""Path of each recorded wire format and its short name."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as the client sent it.

    ``raw`` are the request's bytes after decompression, ``body`` the same parsed; ``headers`` only those that may go to
    an upstream (lower-case names). ``release`` is what the scenario serves, None where nothing is trained.
    """

    route: str
    path: str
    query: str
    raw: bytes
    body: Mapping[str, Any]
    headers: tuple[tuple[str, str], ...]
    stream: bool
    scenario: str
    call_id: str
    release: Release | None = None


class Answer(Protocol):
    """One answer: status and headers first, then body slices, then how it ended."""

    status: int
    headers: list[tuple[str, str]]
    release_id: str | None

    def slices(self) -> AsyncIterator[bytes]:
        """Body bytes as they come; to be iterated once, to the end or until ``aclose``."""

    def finish(self, sent: bytes, reason: str | None = None) -> Finish:
        """How it ended, judged from the bytes passed on; ``reason`` is set when the reader stopped early."""

    async def aclose(self) -> None:
        """Give the connection back, or abort the generation when it has not ended."""


class InferenceBackend(Protocol):
    """Answers calls and knows what it serves."""

    async def chat(self, call: Call) -> Answer:
        """Answer one call; returns when status and headers are known. Raises ReefError before any byte."""

    def serving(self, scenario: str) -> str | None:
        """The release id this backend answers ``scenario`` with, None for the base or for a foreign model."""

    async def models(self, headers: tuple[tuple[str, str], ...] = ()) -> Mapping[str, Any]:
        """The body of GET /v1/models; ``headers`` are the client's, whose credentials an upstream may need."""

    async def count_tokens(self, call: Call) -> Mapping[str, Any]:
        """The body of POST /v1/messages/count_tokens."""

    async def check(self) -> None:
        """Prove before the first call that what training needs arrives; BadConfig when it does not."""

    async def aclose(self) -> None:
        """Close connections."""
