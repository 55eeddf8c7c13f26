"""Places in the fleet's queue that a process registers its waiters with, if they are not those of their arrival."""

from __future__ import annotations

from collections.abc import Sequence


class Places:
    """The order of the waiters of several processes, as far as it concerns this one's next grants."""

    def __init__(self, ages: Sequence[float], step: int, now: float) -> None:
        """``ages``: seconds for which the first, the ``step``-th, … of its next grants should have waited.
        ``now``: the ``boot_time()`` at which they should."""
        self._ages = ages
        self._step = step
        self._now = now
        self.granted = 0
        """Grants since then."""

    def since(self, position: int) -> float:
        """On ``boot_time()``, of the registered waiter that has so many of this process's before it."""
        return self._now - self._ages[min((self.granted + position) // self._step, len(self._ages) - 1)]
