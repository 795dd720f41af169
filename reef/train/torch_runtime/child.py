"""What both children have in common as processes: environment, end, memory. Knows nothing of what they do."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

STOP_TIMEOUT_S = 5.0


def child_environment(threads: int, **more: str) -> dict[str, str]:
    """The daemon's environment without surprises: quiet threads, no downloads, no telemetry."""
    return {
        **os.environ,
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(threads),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def stop_child(process: subprocess.Popen[bytes] | None) -> None:
    """Close its stdin, which asks it to end; kill it when it does not."""
    if process is None:
        return
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def memory_bytes(pid: int | None) -> int | None:
    """Resident memory of a process, None where the system does not tell."""
    if pid is None:
        return None
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
