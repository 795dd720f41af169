"""Tab: Training. Not built yet; says where the same is found."""

from __future__ import annotations

from typing import ClassVar

from reef.tui.tabs.unbuilt import Unbuilt


class Training(Unbuilt):
    """Names the command that shows the same."""

    TITLE: ClassVar[str] = "Training"
    COMMAND: ClassVar[str] = "reef status, reef releases"
