"""A command of reef as a child process: what the dashboard may not import, it runs."""

from __future__ import annotations

import asyncio
import sys


async def run_child(*arguments: str) -> tuple[bool, str]:
    """One command of reef: whether it went well, and what it said."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "reef.cli.main", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await child.communicate()
    return child.returncode == 0, out.decode("utf-8", "replace").strip()
