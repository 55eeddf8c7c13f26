"""Tokens a second that a provider has reached over all requests at once, from those that ended. Pure.

A service in the cloud serves more requests as fast as few. A server of one's own shares its throughput among them:
twice the tokens in flight then take twice as long, which does not show in the latency of the first few requests.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate

_BUCKET_S = 0.25
_KEPT_S = 120.0
"""What was reached longer ago does not count."""


class Throughput:
    """Requests count with the tokens that they ask for, spread evenly over the time that they took."""

    def __init__(self) -> None:
        self._changes: deque[float] = deque()
        """By how many tokens each bucket differs from the one before: a request changes two of them, however long it
        took."""
        self._first = 0
        """The number of the oldest bucket; bucket k begins at ``k * _BUCKET_S``."""
        self._most = 0.0
        self._stale = False

    def add(self, tokens: int, began: float, ended: float) -> None:
        """A request for so many tokens succeeded. Seconds on one clock."""
        first, last = int(began / _BUCKET_S), int(ended / _BUCKET_S)
        oldest = last - int(_KEPT_S / _BUCKET_S)
        while self._changes and self._first < oldest:
            change = self._changes.popleft()
            self._first += 1
            if self._changes:
                self._changes[0] += change
        if not self._changes:
            self._first = max(first, oldest)
        first = max(first, self._first)
        if last < first:
            return
        self._changes.extend([0.0] * (last + 2 - self._first - len(self._changes)))
        share = tokens / (last + 1 - first)
        self._changes[first - self._first] += share
        self._changes[last + 1 - self._first] -= share
        self._stale = True

    @property
    def most(self) -> float | None:
        """Tokens a second in the best quarter of a second; None before any request has succeeded."""
        if self._stale:
            self._stale = False
            self._most = max(accumulate(self._changes), default=0.0) / _BUCKET_S
        return self._most or None
