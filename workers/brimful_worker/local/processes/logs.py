"""Removes log directories, ``logs/<owner's pid>-…``, of local fleets that were killed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

KEPT = "kept"
"""A file that marks the logs of a fleet that failed: they are kept for a week."""
_KEPT_S = 7 * 24 * 3600.0


def clear_logs(logs: Path) -> None:
    """Best effort; several fleets may do it at the same time."""
    for directory in logs.glob("*-*"):
        pid = directory.name.partition("-")[0]
        if pid.isdecimal() and not _alive(int(pid)) and not _wanted(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's process
    return True


def _wanted(directory: Path) -> bool:
    try:
        return time.time() - (directory / KEPT).stat().st_mtime < _KEPT_S
    except OSError:
        return False
