"""Anthropic's messages."""

from __future__ import annotations

from reef.inference.dialects.dialect import Dialect
from reef.inference.dialects.messages.ask import ask
from reef.inference.dialects.messages.parse import parse
from reef.inference.dialects.messages.read import MessagesReader
from reef.inference.dialects.messages.write import MessagesStream, plain

MESSAGES = Dialect(parse, ask, plain, MessagesStream, MessagesReader)
"""The messages route's dialect."""
