"""Tab: Recipe. Not built yet; says where the same is found."""

from __future__ import annotations

from typing import ClassVar

from reef.tui.tabs.unbuilt import Unbuilt


class Recipe(Unbuilt):
    """Names the command that shows the same."""

    TITLE: ClassVar[str] = "Recipe"
    COMMAND: ClassVar[str] = "reef config show, reef recipe"
