"""The gateway's two limits: slots with a FIFO queue before them, and an exact sliding window of starts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class QueueFull(Exception):
    """All slots are taken and as many requests wait as may."""


class Slots:
    """Active requests, at most ``limit``; further ones wait in order, at most ``waiters``. It keeps its own peaks."""

    def __init__(self, limit: int | None, waiters: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self.waiters = waiters
        self._clock = clock
        self._queue: deque[tuple[asyncio.Future[None], bool]] = deque()
        self._queued = 0
        self.active = 0
        self.waiting = 0
        self.peak_active = 0
        self.peak_waiting = 0
        self.peak_present = 0
        self._busy_s = 0.0
        self._changed = clock()

    async def take(self, *, background: bool = False) -> None:
        """Returns with a slot taken. A ``background`` request (a Job's) waits without counting among the waiters.

        Raises QueueFull at once where no slot is free and no more may wait.
        """
        if self._queued == 0 and self._free():
            self._enter()
            return
        if not background and self.waiting >= self.waiters:
            raise QueueFull
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, background))
        self._queued += 1
        if not background:
            self.waiting += 1
            self._note()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # its turn came while its client went away
            else:
                turn.cancel()
                self._leave_queue(background)
            raise

    def give(self) -> None:
        """The slot goes to the next waiter, or becomes free."""
        self._account()
        self.active -= 1
        self._wake()

    def resize(self, limit: int | None) -> None:
        self._limit = limit
        self._wake()

    @property
    def slot_seconds(self) -> float:
        """The integral of active requests over time, up to now."""
        return self._busy_s + self.active * (self._clock() - self._changed)

    def reset(self) -> None:
        """Peaks and slot-seconds begin anew from what is active now."""
        self._busy_s, self._changed = 0.0, self._clock()
        self.peak_active, self.peak_waiting = self.active, self.waiting
        self.peak_present = self.active + self.waiting

    def _free(self) -> bool:
        return self._limit is None or self.active < self._limit

    def _wake(self) -> None:
        while self._queue and self._free():
            turn, background = self._queue.popleft()
            if not turn.done():
                self._leave_queue(background)
                turn.set_result(None)
                self._enter()

    def _leave_queue(self, background: bool) -> None:
        self._queued -= 1
        if not background:
            self.waiting -= 1

    def _enter(self) -> None:
        self._account()
        self.active += 1
        self._note()

    def _account(self) -> None:
        now = self._clock()
        self._busy_s += self.active * (now - self._changed)
        self._changed = now

    def _note(self) -> None:
        self.peak_active = max(self.peak_active, self.active)
        self.peak_waiting = max(self.peak_waiting, self.waiting)
        self.peak_present = max(self.peak_present, self.active + self.waiting)


class Window:
    """An exact log of the last ``window_s`` seconds. Of two events exactly a window apart the first has left it."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.peak = 0
        self._log: deque[float] = deque()

    def admit(self, now: float, limit: int | None, *, count_refused: bool = False) -> float | None:
        """None, and the event is logged; or the seconds until there is room for one more.

        ``count_refused`` logs a refused one too, so that who keeps knocking stays out.
        """
        held = self.count(now)
        if limit is not None and held >= limit:
            wait = self._log[held - limit] + self.window_s - now
            if count_refused:
                self._log.append(now)
            return max(wait, 0.001)
        self._log.append(now)
        self.peak = max(self.peak, held + 1)
        return None

    def count(self, now: float) -> int:
        """Events in (now - window_s, now]."""
        log, edge = self._log, now - self.window_s
        while log and log[0] <= edge:
            log.popleft()
        return len(log)

    def reset_peak(self, now: float) -> None:
        self.peak = self.count(now)
