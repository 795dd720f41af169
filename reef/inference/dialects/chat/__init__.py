"""OpenAI's chat completions."""

from __future__ import annotations

from reef.inference.dialects.chat.ask import ask
from reef.inference.dialects.chat.parse import parse
from reef.inference.dialects.chat.read import ChatReader
from reef.inference.dialects.chat.write import ChatStream, plain
from reef.inference.dialects.dialect import Dialect

CHAT = Dialect(parse, ask, plain, ChatStream, ChatReader)
"""The chat route's dialect."""
