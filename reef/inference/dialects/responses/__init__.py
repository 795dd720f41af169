"""OpenAI's responses."""

from __future__ import annotations

from reef.inference.dialects.dialect import Dialect
from reef.inference.dialects.responses.ask import ask
from reef.inference.dialects.responses.parse import parse
from reef.inference.dialects.responses.read import ResponsesReader
from reef.inference.dialects.responses.write import ResponsesStream, plain

RESPONSES = Dialect(parse, ask, plain, ResponsesStream, ResponsesReader)
"""The responses route's dialect."""
