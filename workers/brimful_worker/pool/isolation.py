"""Runs a task that killed workers alone, if another app sent it, so that a further death counts against no other task.

Requests to the provider are isolated by :mod:`brimful_worker.sampling.suspects` instead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

ALONE_AFTER = 2
"""Deaths after which a task runs alone."""
MOST_WAIT_S = 30.0
"""How long a task waits for others to end, at most: they may wait for it."""
_TIMER_S = 0.01
"""Added to it, so that a timer does not fire just before."""


class _Waiting(NamedTuple):
    id: int
    suspect: bool
    since: float
    start: Callable[[], None]


class TaskIsolation:
    """Starts the tasks of one process that are not requests to the provider. Main thread only."""

    def __init__(
        self, after: Callable[[float, Callable[[], None]], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``after(seconds, call)`` makes the call that much later."""
        self._after = after
        self._clock = clock
        self._running: dict[int, bool] = {}
        """Id → whether it is a suspect."""
        self._waiting: deque[_Waiting] = deque()

    def begin(self, id: int, deaths: int, start: Callable[[], None]) -> None:
        """Call ``start`` when the task may run: at once, or when another one ends. First come, first served."""
        self._waiting.append(_Waiting(id, deaths >= ALONE_AFTER, self._clock(), start))
        self._look()
        if id not in self._running:
            self._after(MOST_WAIT_S + _TIMER_S, self._look)

    def ended(self, id: int) -> None:
        if self._running.pop(id, None) is not None:
            self._look()

    def forget_waiting(self) -> None:
        """Drop the tasks that wait: their messages go back to the queue."""
        self._waiting.clear()

    def _look(self) -> None:
        while self._waiting and self._may_run(first := self._waiting[0]):
            self._waiting.popleft()
            self._running[first.id] = first.suspect
            first.start()

    def _may_run(self, task: _Waiting) -> bool:
        if not self._running or not (task.suspect or any(self._running.values())):
            return True
        return self._clock() - task.since >= MOST_WAIT_S
