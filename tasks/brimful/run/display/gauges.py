"""The fleet's own figures for a run's display: slots, window, what waits. Read at most once a second."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_EVERY_S = 0.9
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Gauges:
    slots_used: int
    slots: int
    starts_used: int
    starts: int | None
    """None: no such limit."""
    waiting: int
    paused_s: float = 0.0
    pause_reason: str = ""
    workers: int | None = None
    window_s: float = 0.0
    next_start_s: float = 0.0
    """Until the full window has room again; 0 = it has."""

    @property
    def window_full(self) -> bool:
        return self.starts is not None and self.starts > 0 and self.starts_used >= 0.95 * self.starts


class GaugeReader:
    """Call it for the newest figures: None while there are none. A Redis that is away leaves the last ones."""

    def __init__(
        self, read: Callable[[], Awaitable[Gauges | None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._last: Gauges | None = None
        self._due = 0.0

    async def __call__(self) -> Gauges | None:
        if self._clock() >= self._due:
            self._due = self._clock() + _EVERY_S
            with contextlib.suppress(Exception):  # figures are no reason to stop a run
                async with asyncio.timeout(_PATIENCE_S):
                    self._last = await self._read()
        return self._last
