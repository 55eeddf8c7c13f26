"""Ends a worker that takes more memory than ``BRIMFUL_WORKER_MAX_MEMORY`` allows, gracefully.

The worker sends itself SIGTERM: requests on the wire end, the other tasks go back to the queue, and whoever started
the worker (``brimful up``, systemd, a container's restart policy) starts another. Without the setting, a worker that
grows would in the end be killed by the system, and with it what it has on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable

import psutil

from brimful.errors import SettingError
from brimful_worker.metrics import catalogue as metrics

log = logging.getLogger(__name__)

_LOOK_S = 1.0


class MemoryLimit:
    """``limit`` in bytes. The functions are those of this process, except in tests."""

    def __init__(
        self,
        limit: int,
        *,
        resident: Callable[[], int] = lambda: int(psutil.Process().memory_info().rss),
        pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(_LOOK_S),
        stop: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        """Raises SettingError if the process is larger already, since every worker would end at once."""
        self._limit = limit
        self._resident = resident
        self._pause = pause
        self._stop = stop
        if (least := resident()) >= limit:
            raise SettingError(
                f"BRIMFUL_WORKER_MAX_MEMORY: {_megabytes(limit)} is too little, as a worker takes {_megabytes(least)} "
                "before its first task; set more than that"
            )

    async def watch(self) -> None:
        """Look every second, until the limit is exceeded; then stop the worker and return."""
        exceeded = False
        while True:
            await self._pause()
            size = self._resident()
            if size <= self._limit:
                exceeded = False
            elif exceeded:
                break
            else:  # a large answer may have come and gone: the next look decides
                exceeded = True
                release_unused()
        metrics.MEMORY_EXCEEDED.inc()
        log.warning(
            "this worker takes %s of memory, more than BRIMFUL_WORKER_MAX_MEMORY = %s: it stops, as on SIGTERM. Its "
            "requests on the wire end, its other tasks go to other workers",
            _megabytes(size),
            _megabytes(self._limit),
        )
        self._stop()


def release_unused() -> None:
    """Return memory to the system that only garbage or the allocator holds."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
