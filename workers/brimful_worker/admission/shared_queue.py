"""Access to one workload's waiters, for a program that shares grants by weight among flows of several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.places import Places
from brimful_worker.admission.turns import Demand, Flow
from brimful_worker.admission.waiters import Queue


class SharedQueue:
    """Reports what waits and was granted, by flow, and sets the waiters' places in the fleet's queue."""

    def __init__(self, local_state: LocalState, queue: Queue) -> None:
        self._state = local_state
        self._queue = queue
        self._turns = local_state.waiting.turns[queue]

    @property
    def registered(self) -> int:
        """Waiters that Redis knows at the same time, at most."""
        return self._state.rules.registered

    def demands(self) -> dict[str, Demand]:
        """By flow, of those that wait."""
        return self._turns.demands()

    def take_granted(self) -> Counter[Flow]:
        """Grants since the last call, by flow; the first call begins to count them."""
        granted, self._turns.granted = self._turns.granted, Counter()
        return granted or Counter()

    def correct(self, served: Mapping[str, float], now: float) -> None:
        """As :meth:`Turns.correct`."""
        self._turns.correct(served, now)

    def place(self, places: Places | None, tolerance_s: float = 0.0) -> None:
        """Register waiters with these places from now on, and again those that are further from theirs than this.

        None: with the times of their arrival.
        """
        waiting = self._state.waiting
        if places is None:
            waiting.places.pop(self._queue, None)
            return
        waiting.places[self._queue] = places
        self._state.outgoing.cancels += waiting.withdraw(self._queue, tolerance_s)
        self._state.look_for_waiters(self._queue)
