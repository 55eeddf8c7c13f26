"""What is queued and on the wire, as its submitter can tell: when slots come free, how much to keep ahead. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

AHEAD_S = 2.5
"""How far ahead of the slots requests are enqueued: enough for the way there, with something to spare."""
AHEAD_ADAPTING_S = 1.0
"""The same where what is enqueued is still being learnt: little enough to change one's mind."""
AHEAD_SHARE, AHEAD_ADAPTING_SHARE = 1 / 2, 1 / 8
"""And of the slots at least so much: requests that began together end together, and those that follow must be there
already, since they come no faster than this process can make them."""
_AT_ONCE_SHARE = 1 / 8
"""Where nearly all that is kept ahead is there, what comes after it waits for company: a shard costs its worker as much
as fifty requests in it."""
_MEASURED_S = 3.0
_MOST_OUTSTANDING = 20_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What all runs of the key share."""

    slots: int
    starts: int | None
    window_s: float

    @property
    def start_rate(self) -> float:
        """Starts a second in the long run."""
        return float("inf") if self.starts is None else self.starts / self.window_s


class SlotModel:
    """A model of the slots, kept in step by what is enqueued and what ends. Times are any monotonic seconds."""

    def __init__(self, limits: Limits, *, adapting: bool = False) -> None:
        self.limits = limits
        self._ahead_s = AHEAD_ADAPTING_S if adapting else AHEAD_S
        self._ahead_share = AHEAD_ADAPTING_SHARE if adapting else AHEAD_SHARE
        self._on_wire: dict[str, tuple[float, Callable[[], float]]] = {}
        self._waiting: dict[str, Callable[[], float]] = {}
        self._starts: deque[float] = deque()
        self._ends: deque[float] = deque()
        self._free: tuple[float, list[float]] | None = None
        """What :meth:`free` found, and when."""

    def __len__(self) -> int:
        return len(self._on_wire) + len(self._waiting)

    def enqueued(self, id: str, seconds: Callable[[], float], now: float) -> None:
        """``seconds`` predicts its time on the wire, whenever asked."""
        self._waiting[id] = seconds
        self._advance(now)
        if self._free is not None:
            slots = self._free[1]
            heapq.heapreplace(slots, slots[0] + seconds())

    def ended(self, id: str, now: float) -> None:
        """With an outcome, or withdrawn."""
        if self._on_wire.pop(id, None) is None:
            self._waiting.pop(id, None)
        self._free = None
        self._ends.append(now)
        self._advance(now)

    def _advance(self, now: float) -> None:
        while self._waiting and len(self._on_wire) < self.limits.slots:
            id = next(iter(self._waiting))
            self._on_wire[id] = (now, self._waiting.pop(id))
            self._starts.append(now)
        while self._starts and self._starts[0] <= now - self.limits.window_s:
            self._starts.popleft()
        while self._ends and self._ends[0] <= now - _MEASURED_S:
            self._ends.popleft()

    def free(self, now: float) -> list[float]:
        """A heap of seconds from now until each slot has nothing left of what is enqueued. Not to be changed.

        Gone through once for all that is enqueued at one moment: what comes to it meanwhile is added.
        """
        if self._free is not None and self._free[0] == now and len(self._free[1]) == max(1, self.limits.slots):
            return self._free[1]
        slots = [0.0] * max(0, self.limits.slots - len(self._on_wire))
        for began, seconds in self._on_wire.values():
            predicted = seconds()
            slots.append(max(began + predicted - now, 0.05 * predicted))
        heapq.heapify(slots)
        for seconds in self._waiting.values():
            heapq.heapreplace(slots, slots[0] + seconds())
        self._free = now, slots
        return slots

    def starts_left(self, now: float) -> int | None:
        """Starts that the window still holds for what is not enqueued yet; None: no such limit."""
        if self.limits.starts is None:
            return None
        self._advance(now)
        return max(0, self.limits.starts - len(self._starts) - len(self._waiting))

    def rate(self, now: float) -> float:
        """Requests that end a second, of late."""
        self._advance(now)
        return len(self._ends) / _MEASURED_S

    def room(self, seconds: float | None, now: float) -> int:
        """How many more requests to enqueue now; ``seconds``: predicted on the wire for the next ones."""
        slots, rate = self.limits.slots, self.rate(now)
        if seconds:
            rate = max(min(rate, self.limits.start_rate), min(slots / seconds, self.limits.start_rate))
        ahead = max(self._ahead_s * rate, self._ahead_share * slots, 2.0)
        most = min(int(slots + ahead), _MOST_OUTSTANDING)
        room, kept_ahead = most - len(self), max(0, most - slots)
        return room if room >= max(1, int(kept_ahead * _AT_ONCE_SHARE)) else 0
