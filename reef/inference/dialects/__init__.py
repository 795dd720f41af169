"""The wire formats the embedded engine speaks: each turns a request into one Prompt and renders what was generated."""

from __future__ import annotations

from collections.abc import Mapping

from reef.inference.dialects.chat import CHAT
from reef.inference.dialects.messages import MESSAGES
from reef.inference.dialects.responses import RESPONSES
from reef.inference.dialects.values import Dialect

DIALECTS: Mapping[str, Dialect] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
"""Dialect of each route."""

__all__ = ["DIALECTS", "Dialect"]
