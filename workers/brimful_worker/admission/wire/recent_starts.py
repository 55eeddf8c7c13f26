"""This process's starts of the last window: what it reports when Redis has lost its memory."""

from __future__ import annotations

import math
from collections import OrderedDict

_EXTRA_S = 15.0
"""Starts are kept this much longer than the window, so that a window count a few commands old can be recounted."""
_MOST = 20_000
"""Entries kept at most. They are kept without a limit on starts too, since one may be set at any time."""


class RecentStarts:
    """ticket → since when it counts (``boot_time()``) and its tokens, oldest first."""

    def __init__(self) -> None:
        self._starts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, ticket: str, at: float, tokens: int) -> None:
        self._starts[ticket] = (at, tokens)
        if len(self._starts) > _MOST:
            self._starts.popitem(last=False)

    def drop(self, ticket: str) -> None:
        self._starts.pop(ticket, None)

    def set_tokens(self, ticket: str, tokens: int) -> None:
        if (known := self._starts.get(ticket)) is not None:
            self._starts[ticket] = (known[0], tokens)

    def trim(self, now: float, span_s: float) -> None:
        """Drop starts older than ``span_s`` and a little."""
        while self._starts:
            ticket, (at, _) = next(iter(self._starts.items()))
            if now - at <= span_s + _EXTRA_S:
                return
            del self._starts[ticket]

    def ages(self, now: float) -> list[tuple[str, int, int]]:
        """(ticket, age in ms, tokens) of each. The age is negative for a start that counts from a later time on."""
        return [(ticket, math.floor((now - at) * 1000), tokens) for ticket, (at, tokens) in self._starts.items()]
