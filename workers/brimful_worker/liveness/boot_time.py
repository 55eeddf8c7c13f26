"""The clock of every deadline: seconds that nobody can set and that pass while the machine is suspended.

It stands alone because every room from ``liveness`` up reads it. The guardian, a script without imports, has a copy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial


def _clock() -> Callable[[], float]:
    if sys.platform == "darwin":  # CLOCK_MONOTONIC includes sleep there; time.monotonic() does not
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if clock is None else partial(time.clock_gettime, clock)


boot_time: Callable[[], float] = _clock()
"""Seconds since boot, suspension included, so that a laptop that wakes does not take its leases for young ones.
``time.monotonic()`` where no such clock exists."""
