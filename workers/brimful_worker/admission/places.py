"""Where a process's waiters stand in the fleet's queue: a time for each, used for the order instead of its arrival."""

from __future__ import annotations

from collections.abc import Sequence


class Places:
    """The places of this process's waiters, by their position among them."""

    def __init__(self, ages: Sequence[float], step: int, now: float) -> None:
        """``ages``: seconds before ``now`` that are the places of the first waiter, the ``step``-th, and so on.
        ``now``: a ``boot_time()``."""
        self._ages = ages
        self._step = step
        self._now = now
        self.granted = 0
        """Grants since ``now``: the first waiters are gone."""

    def since(self, position: int) -> float:
        """The place, on ``boot_time()``, of the registered waiter with so many of this process's before it."""
        return self._now - self._ages[min((self.granted + position) // self._step, len(self._ages) - 1)]
