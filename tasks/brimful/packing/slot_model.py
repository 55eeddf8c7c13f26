"""A model of the key's slots, from what this submitter enqueues and what ends: when slots come free, and how many more
requests to enqueue. Pure.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

AHEAD_S = 2.5
"""Seconds of work enqueued ahead of the slots: enough for the way to the workers, with something to spare."""
AHEAD_ADAPTING_S = 1.0
"""The same while sizes are still being learnt: what is enqueued cannot be changed any more."""
AHEAD_SHARE, AHEAD_ADAPTING_SHARE = 1 / 2, 1 / 8
"""And at least this share of the slots: requests that began together end together, and this process is too slow to
enqueue their successors at that moment."""
_AT_ONCE_SHARE = 1 / 8
"""Of what is kept ahead, this share at least is enqueued together: a shard costs its worker as much as fifty requests
in it."""
_MEASURED_S = 3.0
_MOST_OUTSTANDING = 20_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The key's limits that matter for packing."""

    slots: int
    starts: int | None
    """Starts in any window; None = no limit."""
    window_s: float
    learnt: tuple[str, ...] = ()
    """What the provider allows, where that is less than is set: for the summary."""

    @property
    def start_rate(self) -> float:
        """Starts a second in the long run."""
        return float("inf") if self.starts is None else self.starts / self.window_s


class Weights(NamedTuple):
    """Weights of the runs that share the slots: this run's, the smallest, and the sum."""

    own: float = 1.0
    least: float = 1.0
    total: float = 1.0

    def share(self, amount: float, least: float) -> float:
        """This run's share of an ``amount``, such that no run's is below ``least``.

        Queues serve runs by what they have in them, so what each keeps there must be in proportion to its weight. With
        ``least``, any one of them can fill the slots when the others stop.
        """
        return self.own * max(amount / self.total, least / self.least)


class SlotModel:
    """Assumes that the slots serve requests in the order in which they are enqueued. Times are monotonic seconds."""

    def __init__(self, limits: Limits, *, adapting: bool = False) -> None:
        """``adapting``: pack sizes are learnt on the way."""
        self.limits = limits
        self.weights = Weights()
        self.places: int | None = None
        """Shards that all workers run at once; None = not known."""
        self._ahead_s = AHEAD_ADAPTING_S if adapting else AHEAD_S
        self._ahead_share = AHEAD_ADAPTING_SHARE if adapting else AHEAD_SHARE
        self._running: dict[str, tuple[float, Callable[[], float]]] = {}
        # Not a dict: with many items removed at its front, finding the first takes long.
        self._waiting: OrderedDict[str, Callable[[], float]] = OrderedDict()
        self._starts: deque[float] = deque()
        self._ends: deque[float] = deque()
        self._free: tuple[float, list[float]] | None = None
        """When :meth:`free` was computed, and its result."""

    @property
    def per_place(self) -> int:
        """Requests that a shard must carry for the workers' places to hold as many as there are slots; 0 = any."""
        slots = self.limits.slots
        if not self.places or self.places >= 2 * slots:
            return 0
        return -(-3 * slots // (2 * self.places))  # half as many again: a shard counts until its last request has ended

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    def enqueued(self, id: str, seconds: Callable[[], float], now: float) -> None:
        """``seconds`` predicts, whenever it is called, how long the request takes in its slot."""
        self._waiting[id] = seconds
        self._advance(now)
        if self._free is not None:
            slots = self._free[1]
            heapq.heapreplace(slots, slots[0] + seconds())

    def ended(self, id: str, now: float) -> None:
        """The request has an outcome, or was withdrawn."""
        if self._running.pop(id, None) is None:
            self._waiting.pop(id, None)
        self._free = None
        self._ends.append(now)
        self._advance(now)

    def _advance(self, now: float) -> None:
        while self._waiting and len(self._running) < self.limits.slots:
            id, seconds = self._waiting.popitem(last=False)
            self._running[id] = (now, seconds)
            self._starts.append(now)
        while self._starts and self._starts[0] <= now - self.limits.window_s:
            self._starts.popleft()
        while self._ends and self._ends[0] <= now - _MEASURED_S:
            self._ends.popleft()

    def free(self, now: float) -> list[float]:
        """A heap of the seconds from now until each slot has done all that is enqueued. Do not change it.

        Computed once per ``now``; what is enqueued meanwhile is added.
        """
        if self._free is not None and self._free[0] == now and len(self._free[1]) == max(1, self.limits.slots):
            return self._free[1]
        slots = [0.0] * max(0, self.limits.slots - len(self._running))
        for began, seconds in self._running.values():
            predicted = seconds()
            slots.append(max(began + predicted - now, 0.05 * predicted))
        heapq.heapify(slots)
        for seconds in self._waiting.values():
            heapq.heapreplace(slots, slots[0] + seconds())
        self._free = now, slots
        return slots

    def starts_left(self, now: float) -> int | None:
        """Starts left in the window for what is not enqueued yet; None where starts are not limited."""
        if self.limits.starts is None:
            return None
        self._advance(now)
        return max(0, self.limits.starts - len(self._starts) - len(self._waiting))

    def rate(self, now: float) -> float:
        """Requests a second that ended lately."""
        self._advance(now)
        return len(self._ends) / _MEASURED_S

    def room(self, seconds: float | None, now: float) -> int:
        """How many more requests to enqueue now; ``seconds``: predicted for each of them, None = unknown."""
        slots, rate = self.limits.slots, self.rate(now)
        if seconds:
            rate = max(min(rate, self.limits.start_rate), min(slots / seconds, self.limits.start_rate))
        least = slots + max(self._ahead_share * slots, 2.0, 2.0 * self.per_place)
        most = min(int(self.weights.share(max(slots + self._ahead_s * rate, least), least)), _MOST_OUTSTANDING)
        room, kept_ahead = most - len(self), max(0, most - slots)
        at_once = max(1, int(kept_ahead * _AT_ONCE_SHARE), self.per_place)
        return room if room >= at_once or not len(self) else 0
