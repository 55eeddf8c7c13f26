"""The clock of every deadline: seconds since boot."""

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
"""Seconds since boot. Nobody can set this clock, and it includes the time for which the machine was suspended: a laptop
that wakes sees its leases' true age. ``time.monotonic()`` where the system has no such clock."""
