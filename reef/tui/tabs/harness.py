"""Tab: Harness. Not built yet; says where the same is found."""

from __future__ import annotations

from typing import ClassVar

from reef.tui.tabs.unbuilt import Unbuilt


class Harness(Unbuilt):
    """Names the command that shows the same."""

    TITLE: ClassVar[str] = "Harness"
    COMMAND: ClassVar[str] = "reef harness, reef why"
