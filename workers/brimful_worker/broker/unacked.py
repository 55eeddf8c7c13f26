"""Which messages this process holds: what is running or waiting here, and acknowledgements still owed to Redis.

The broker's channel (main thread) and the renewal thread share it. It follows the live requests themselves, so that
a message nobody works on any more is not kept from others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from celery.worker import state


class Leases:
    """Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self.grace_s = 5.0
        """How long Redis must have answered without a gap before abandoned messages are looked for."""
        self.patience_s = 10.0
        """Longer than this without a renewal is a gap; a laptop's sleep is one, too."""
        self._monotonic = monotonic
        self._wall = wall
        self._lock = threading.Lock()
        self._requests: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._owed: set[str] = set()
        self._offset = 0.0
        self._steady_since: float | None = None
        self._renewed_at = 0.0

    def add(self, tag: str, request: Any) -> None:
        """A request was made of the message ``tag``; it counts for as long as anybody refers to it."""
        self._requests[tag] = request

    def drop(self, tag: str) -> None:
        """The message was given back, or should have been: others may have it."""
        self._requests.pop(tag, None)

    def owe(self, tag: str) -> None:
        """The message is done with, but Redis could not be told."""
        with self._lock:
            self._owed.add(tag)

    def paid(self, tags: set[str]) -> None:
        with self._lock:
            self._owed -= tags

    def owed(self) -> set[str]:
        with self._lock:
            return set(self._owed)

    def renewable(self) -> set[str]:
        """Tags of all messages that are ours and not acknowledged, those owed left out."""
        requests = [reference() for reference in self._requests.valuerefs()]
        requests += list(state.requests.values())
        return {
            request.message.delivery_tag for request in requests if request is not None and not request.acknowledged
        }

    def in_hand(self) -> Counter[str]:
        """Queue -> how many of its messages run or wait for a place here; those that wait for their time left out."""
        requests = [reference() for reference in self._requests.valuerefs()]
        return Counter(
            str(request.delivery_info.get("routing_key"))
            for request in requests
            if request is not None and not request.acknowledged and (request.eta is None or request.time_start)
        )

    def held(self) -> set[str]:
        """What a lost connection must not give back: running here, or done and owed. Main thread only."""
        running = {request.message.delivery_tag for request in state.active_requests if not request.acknowledged}
        return running | self.owed()

    # -- time

    def renewed(self, server_time: float) -> None:
        """A renewal has succeeded; the server's clock said ``server_time``."""
        now = self._monotonic()
        if self._steady_since is None or self._gap():
            self._steady_since = now
        self._renewed_at = self._wall()
        self._offset = server_time - self._renewed_at

    def lost(self) -> None:
        """A renewal has failed."""
        self._steady_since = None

    def steady(self) -> bool:
        """Whether everybody has had the time to renew since Redis was last away."""
        since = self._steady_since
        return since is not None and not self._gap() and self._monotonic() - since >= self.grace_s

    def server_time(self) -> float:
        """Redis's clock, as well as this process knows it; Unix seconds."""
        return self._wall() + self._offset

    def _gap(self) -> bool:
        return abs(self._wall() - self._renewed_at) > self.patience_s


leases = Leases()
"""This process's."""
