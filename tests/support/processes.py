"""Looks at processes that may end at any moment. One that has ended reads as empty, and killing it does nothing."""

from __future__ import annotations

import contextlib

import psutil

# A zombie raises ZombieProcess, which is a NoSuchProcess.


def alive(process: psutil.Process) -> bool:
    """Whether it has neither ended nor become a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def command_line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return []


def variables(process: psutil.Process) -> dict[str, str]:
    """Its environment."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return dict(process.environ())
    return {}


def descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
