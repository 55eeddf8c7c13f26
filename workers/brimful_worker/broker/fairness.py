"""How much of one worker each queue may fill, so that no kind of work shuts the other out.

Queues are asked in order of urgency; a long one would be all that is ever taken. Batch work leaves a quarter of a
worker's places to others, and the others leave an eighth to batch. And a worker that has taken a large shard lets the
other workers come first for a moment, in which its loop takes that shard in: else the one that is up a tenth of a
second before the others takes thousands of requests more than they, and opens connections for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from brimful.names import QUEUES, Workload
from brimful_worker.broker.unacked import Leases, leases

_BATCH = Workload.BATCH.value
_URGENT = frozenset(QUEUES) - {_BATCH}
_LARGE, _BYTES_A_SECOND, _MOMENT_MOST_S = 2**15, 2**21, 0.05
"""Bytes from which on a message is a large shard; about what a loop takes in; and more than a moment would keep work
waiting where nobody else is."""


class Shares:
    """Off until :meth:`limit` is called; main thread only."""

    def __init__(self, held: Leases = leases, clock: Callable[[], float] = time.monotonic) -> None:
        self._leases = held
        self._clock = clock
        self._places = 0
        self._others_until = 0.0

    def limit(self, places: int) -> None:
        """The worker runs so many tasks at once; 0 = no shares."""
        self._places = places

    def full(self) -> frozenset[str]:
        """Queues that have their share now."""
        if self._places < 2:
            return frozenset()
        counts = self._leases.in_hand()
        full = set()
        if counts[_BATCH] >= self._places - max(1, self._places // 4):
            full.add(_BATCH)
        if sum(counts[queue] for queue in _URGENT) >= self._places - max(1, self._places // 8):
            full |= _URGENT
        return frozenset(full)

    def took(self, queue: str, size: int) -> float:
        """A message of so many bytes came. The :meth:`moment` that begins with it; 0.0 = none."""
        if self._places >= 2 and queue == _BATCH and size >= _LARGE:
            moment = min(size / _BYTES_A_SECOND, _MOMENT_MOST_S)
            self._others_until = self._clock() + moment
            return moment
        return 0.0

    def moment(self) -> float:
        """Seconds for which what there is to do is left to other workers."""
        return max(0.0, self._others_until - self._clock())


shares = Shares()
"""This process's."""
