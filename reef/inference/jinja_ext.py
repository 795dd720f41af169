"""The ``{% generation %}`` block that some chat templates wrap answers in: here it renders its inside and no more.

Imported only when a template is compiled, because jinja2 is not part of the base install.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationTag(Extension):
    """Accepts ``{% generation %}...{% endgeneration %}``."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it on the instance)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
