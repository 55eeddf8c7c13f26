"""Limits each queue to a share of a worker's places, so that batch and interactive work cannot starve each other.

kombu asks queues in order of priority, so a long urgent queue would be all that a worker takes. Either kind of work may
take as many places as the worker's concurrency; a quarter more, the reserve, is left to the other kind.

A worker that received a large shard also stops asking for a moment, while its loop starts that shard. Otherwise a
worker that comes up a tenth of a second early takes thousands of requests more than the others, and opens connections
for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from brimful.names import QUEUES, Workload
from brimful_worker.broker.unacked import UnackedMessages, unacked
from brimful_worker.broker.worker_state import autoscale_maximum

_BATCH = Workload.BATCH.value
URGENT = frozenset(QUEUES) - {_BATCH}
_LARGE_BYTES = 2**15
"""Size of a message from which it counts as a large shard."""
_BYTES_PER_S, _LONGEST_PAUSE_S = 2**19, 0.08
"""About what an event loop starts, 3,000 short requests; and the longest pause, since work may wait while no other
worker is up. With four times as many bytes a second, 6,000 slots took 8,900 connections instead of 7,700."""


class Fairness:
    """Off until :meth:`set_concurrency`. Main thread only."""

    def __init__(
        self,
        messages: UnackedMessages = unacked,
        clock: Callable[[], float] = time.monotonic,
        autoscale_maximum: Callable[[], int] = autoscale_maximum,
    ) -> None:
        self._messages = messages
        self._clock = clock
        self._autoscale_maximum = autoscale_maximum
        self._concurrency = 0
        self._limits_by_broker = False
        self._paused_until = 0.0
        self.backlog = False
        """Whether messages of other queues than batch were left behind when some were taken last. Of any thread."""

    def set_concurrency(self, tasks: int) -> None:
        """The pool runs ``tasks`` at once. With fewer than two, no queue is limited."""
        self._concurrency = tasks

    def leave_limits_to_broker(self) -> None:
        """The broker limits each queue to the concurrency, so the pool needs that many places for each of them."""
        self._limits_by_broker = True

    @property
    def limit(self) -> int:
        """Messages that each kind of work may have here. A pool that scales itself must see more than it runs."""
        return max(self._concurrency, self._autoscale_maximum()) if self._concurrency else 0

    @property
    def reserve(self) -> int:
        """Places beyond the pool's concurrency."""
        return (len(QUEUES) - 1) * self._concurrency if self._limits_by_broker else reserve(self._concurrency)

    @property
    def prefetch_reserve(self) -> int:
        """Messages that may be held here beyond Celery's prefetch count."""
        return reserve(self.limit)

    def full_queues(self) -> frozenset[str]:
        """Queues that hold their share of this worker now."""
        limit = self.limit
        if limit < 2:
            return frozenset()
        counts = self._messages.count_by_queue()
        full = set()
        if counts[_BATCH] >= limit:
            full.add(_BATCH)
        if sum(counts[queue] for queue in URGENT) >= limit:
            full |= URGENT
        return frozenset(full)

    def urgent_room(self) -> int:
        """How many more messages of the queues other than batch this worker may hold."""
        limit = self.limit
        if limit < 2:
            return 1
        counts = self._messages.count_by_queue()
        return limit - sum(counts[queue] for queue in URGENT)

    def received(self, queue: str, size: int) -> float:
        """A message of ``size`` bytes came. Returns the seconds of the pause that begins with it, or 0."""
        if self.limit >= 2 and queue == _BATCH and size >= _LARGE_BYTES:
            pause = min(size / _BYTES_PER_S, _LONGEST_PAUSE_S)
            self._paused_until = self._clock() + pause
            return pause
        return 0.0

    def pause_s(self) -> float:
        """Seconds for which other workers go first."""
        return max(0.0, self._paused_until - self._clock())


def reserve(concurrency: int) -> int:
    return max(1, concurrency // 4) if concurrency >= 2 else 0


fairness = Fairness()
"""This process's."""
