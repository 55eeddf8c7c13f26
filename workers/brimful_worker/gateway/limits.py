"""The mock gateway's limits: slots with a FIFO queue, an exact sliding window of starts, and a token budget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from brimful.words.counted import counted
from brimful_worker.gateway.responses import Refusal


class Slots:
    """Active requests, at most ``limit``; at most ``waiters`` more wait in order. It records its own peaks."""

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
        self._changed_at = clock()

    async def take(self, *, background: bool = False) -> None:
        """Wait for a slot and take it. A ``background`` request (a Job) does not count among the waiters.

        Raises Refusal (429 ``queue_full``) at once if no slot is free and no more requests may wait.
        """
        if self._queued == 0 and self._free():
            self._enter()
            return
        if not background and self.waiting >= self.waiters:
            message = f"All slots are in use, with {counted(self.waiters, 'request')} waiting for one."
            raise Refusal(429, "queue_full", message, retry_s=1.0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, background))
        self._queued += 1
        if not background:
            self.waiting += 1
            self._record_peaks()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # the slot was handed over while the client disconnected
            else:
                turn.cancel()
                self._leave_queue(background)
            raise

    def give(self) -> None:
        """Hand the slot to the next waiter, or free it."""
        self._add_busy_time()
        self.active -= 1
        self._wake()

    def resize(self, limit: int | None) -> None:
        self._limit = limit
        self._wake()

    @property
    def slot_seconds(self) -> float:
        """The integral of active requests over time, up to now."""
        return self._busy_s + self.active * (self._clock() - self._changed_at)

    def reset(self) -> None:
        """Restart the peaks and slot-seconds from the current state."""
        self._busy_s, self._changed_at = 0.0, self._clock()
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
        self._add_busy_time()
        self.active += 1
        self._record_peaks()

    def _add_busy_time(self) -> None:
        now = self._clock()
        self._busy_s += self.active * (now - self._changed_at)
        self._changed_at = now

    def _record_peaks(self) -> None:
        self.peak_active = max(self.peak_active, self.active)
        self.peak_waiting = max(self.peak_waiting, self.waiting)
        self.peak_present = max(self.peak_present, self.active + self.waiting)


class Window:
    """An exact log of the last ``window_s`` seconds. Of two events exactly a window apart, the first has left it."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.peak = 0
        self._log: deque[float] = deque()

    def admit(self, now: float, limit: int | None) -> float | None:
        """Log the event and return None; or, if the window is full, return the seconds until it has room."""
        count = self.count(now)
        if limit is not None and count >= limit:
            return max(self._log[count - limit] + self.window_s - now, 0.001)
        self._log.append(now)
        self.peak = max(self.peak, count + 1)
        return None

    def count(self, now: float) -> int:
        """Events in (now - window_s, now]."""
        log, edge = self._log, now - self.window_s
        while log and log[0] <= edge:
            log.popleft()
        return len(log)

    def reset_peak(self, now: float) -> None:
        self.peak = self.count(now)


class Budget:
    """The key's tokens. A running request holds all it may use; when it ends, only what it used is subtracted."""

    def __init__(self, total: int | None) -> None:
        """``total`` None is unlimited."""
        self.total = total
        self.used = 0
        self.held = 0
        self.peak_held = 0
        self.refused = 0

    @property
    def left(self) -> int | None:
        """Tokens that are neither used nor held."""
        return None if self.total is None else self.total - self.used - self.held

    def hold(self, tokens: int) -> bool:
        """Hold ``tokens``; False, and nothing is held, if more than are left."""
        if self.left is not None and tokens > self.left:
            self.refused += 1
            return False
        self.held += tokens
        self.peak_held = max(self.peak_held, self.held)
        return True

    def settle(self, held: int, used: int) -> None:
        """End a hold of ``held`` tokens, ``used`` of which were used."""
        self.held -= held
        self.used += used
