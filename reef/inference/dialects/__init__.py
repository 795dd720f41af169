"""The wire formats of model calls: each reads and writes requests and answers, through one form that knows none of them."""

from __future__ import annotations

from collections.abc import Mapping

from reef.inference.dialects.chat import CHAT
from reef.inference.dialects.dialect import Dialect
from reef.inference.dialects.messages import MESSAGES
from reef.inference.dialects.responses import RESPONSES

DIALECTS: Mapping[str, Dialect] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
"""Dialect of each route."""

__all__ = ["DIALECTS", "Dialect"]
