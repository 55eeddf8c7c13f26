"""How much of one worker each queue may fill, so that no kind of work shuts the other out.

Queues are asked in order of urgency; a long one would be all that is ever taken. Batch work leaves a quarter of a
worker's places to others, and the others leave an eighth to batch.
"""

from __future__ import annotations

from brimful.names import QUEUES, Workload
from brimful_worker.leases import Leases, leases

_BATCH = Workload.BATCH.value
_URGENT = frozenset(QUEUES) - {_BATCH}


class Shares:
    """Off until :meth:`limit` is called; main thread only."""

    def __init__(self, held: Leases = leases) -> None:
        self._leases = held
        self._places = 0

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


shares = Shares()
"""This process's."""
