"""The starts of this process in the last window: what it tells when Redis has lost its memory."""

from __future__ import annotations

from collections import OrderedDict

_EXTRA_S = 15.0
"""Kept beyond the window, so that a window seen a few turns ago can be recounted."""


class History:
    """ticket → when it was granted (steady) and its tokens, oldest first."""

    def __init__(self) -> None:
        self._starts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, ticket: str, at: float, tokens: int) -> None:
        self._starts[ticket] = (at, tokens)

    def drop(self, ticket: str) -> None:
        self._starts.pop(ticket, None)

    def settle(self, ticket: str, tokens: int) -> None:
        if (known := self._starts.get(ticket)) is not None:
            self._starts[ticket] = (known[0], tokens)

    def trim(self, now: float, span_s: float) -> None:
        """Forgets what is older than ``span_s`` and a little."""
        while self._starts:
            ticket, (at, _) = next(iter(self._starts.items()))
            if now - at <= span_s + _EXTRA_S:
                return
            del self._starts[ticket]

    def ages(self, now: float) -> list[tuple[str, int, int]]:
        """ticket, age in ms, tokens"""
        return [(ticket, max(0, int((now - at) * 1000)), tokens) for ticket, (at, tokens) in self._starts.items()]

    def __len__(self) -> int:
        return len(self._starts)
