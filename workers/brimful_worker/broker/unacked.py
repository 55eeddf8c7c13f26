"""The messages this process holds: those of its live requests, and those whose acknowledgement Redis has yet to get.

The tasks of dead workers are requeued in :mod:`.qos`.

The broker's channel (main thread) and the renewal thread share it. It follows the requests themselves, so a message
whose request is gone is not kept from other workers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any
from weakref import ref

from brimful_worker.broker.worker_state import reserved_requests, running_requests


class UnackedMessages:
    """Delivery tags of unacknowledged messages, and how well the connection to Redis has held. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self.stable_after_s = 5.0
        """Seconds without a gap after which abandoned messages are looked for."""
        self.gap_s = 10.0
        """A renewal later than this is a gap. The wall clock sees a laptop's sleep too."""
        self._monotonic = monotonic
        self._wall = wall
        self._lock = threading.Lock()
        self._requests: dict[str, ref[Any]] = {}
        self._places: defaultdict[str, set[str]] = defaultdict(set)
        """Queue -> tags of its messages that run or wait for the pool here."""
        self._deferred: set[str] = set()
        self._clock_offset = 0.0
        self._renewing_since: float | None = None
        self._renewed_at = 0.0

    def add(self, tag: str, request: Any) -> None:
        """The message counts for as long as anything refers to ``request``, until it is acknowledged."""

        def gone(reference: ref[Any]) -> None:
            if self._requests.get(tag) is reference:  # not another delivery's
                self.remove(tag)

        self._requests[tag] = ref(request, gone)
        if request.eta is None:
            self._places[request.queue].add(tag)

    def begun(self, tag: str, queue: str) -> None:
        """A message whose ETA has come goes to the pool."""
        self._places[queue].add(tag)

    def remove(self, tag: str) -> None:
        """The message goes back to its queue: it is renewed no longer, so other workers may take it."""
        self._requests.pop(tag, None)
        self.leave_place(tag)

    def defer_ack(self, tag: str) -> None:
        """The acknowledgement could not be sent; the renewal thread sends it when Redis is back."""
        with self._lock:
            self._deferred.add(tag)

    def acks_sent(self, tags: set[str]) -> None:
        with self._lock:
            self._deferred -= tags

    def deferred_acks(self) -> set[str]:
        with self._lock:
            return set(self._deferred)

    def acknowledged(self, tag: str) -> None:
        self.leave_place(tag)

    def owed(self) -> int:
        """Acknowledgements that Redis has yet to get."""
        with self._lock:
            return len(self._deferred)

    def to_renew(self) -> set[str]:
        """Tags of all messages held and not acknowledged."""
        return {
            request.message.delivery_tag
            for request in [*self._live(), *reserved_requests()]
            if not request.acknowledged
        } - self.deferred_acks()

    def count_by_queue(self) -> Counter[str]:
        """Queue (its plain name) -> messages that run or wait for the pool here.

        Those that wait for their ETA do not count.
        """
        return Counter({queue: len(tags) for queue, tags in list(self._places.items()) if tags})

    def kept(self) -> set[str]:
        """Tags that a lost connection must not requeue: running here, or finished with a deferred acknowledgement.

        Main thread only.
        """
        running = {request.message.delivery_tag for request in running_requests() if not request.acknowledged}
        return running | self.deferred_acks()

    def _live(self) -> list[Any]:
        # list() copies at once; other threads add and remove meanwhile
        return [request for reference in list(self._requests.values()) if (request := reference()) is not None]

    def leave_place(self, tag: str) -> None:
        """The message counts no longer in :meth:`count_by_queue`; it is renewed until it is acknowledged."""
        for tags in list(self._places.values()):
            tags.discard(tag)

    # -- the connection to Redis

    def renewed(self, server_time: float) -> None:
        """A renewal succeeded when the server's clock said ``server_time`` (Unix seconds)."""
        if self._renewing_since is None or self._has_gap():
            self._renewing_since = self._monotonic()
        self._renewed_at = self._wall()
        self._clock_offset = server_time - self._renewed_at

    def renewal_failed(self) -> None:
        self._renewing_since = None

    def stable(self) -> bool:
        """Whether Redis has answered long enough for every worker to have renewed its messages."""
        since = self._renewing_since
        return since is not None and not self._has_gap() and self._monotonic() - since >= self.stable_after_s

    def server_time(self) -> float:
        """An estimate of Redis's clock, Unix seconds."""
        return self._wall() + self._clock_offset

    def _has_gap(self) -> bool:
        return abs(self._wall() - self._renewed_at) > self.gap_s


unacked = UnackedMessages()
"""This process's."""
