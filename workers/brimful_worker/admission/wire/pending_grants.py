"""Puts grants in order: they arrive both pushed and in replies, may be missing on either way, and are taken once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class PendingGrants:
    """``take(ticket, granted_at_ms, deaths, lag_ms)`` is called for every grant, by ascending number; the last two may
    be missing."""

    def __init__(self, take: Callable[..., None]) -> None:
        self.seen = 0
        """All grants up to this number were taken; Redis keeps those above."""
        self._take = take
        self._early: dict[int, list[Any]] = {}

    @property
    def gap(self) -> bool:
        """Whether a grant is missing below one that arrived; the next reply brings it."""
        return bool(self._early)

    def restart(self, base: int = 0) -> None:
        """A new epoch numbers grants from 1; a process that joins again in the same epoch goes on above ``base``."""
        self.seen = base
        self._early.clear()

    def knows(self, number: int) -> bool:
        return number <= self.seen or number in self._early

    def pushed(self, grants: Iterable[Any]) -> None:
        """Take some grants as far as their numbers follow on those taken; keep the others."""
        for number, *grant in grants:
            if number > self.seen:
                self._early[number] = grant
        while (following := self._early.pop(self.seen + 1, None)) is not None:
            self.seen += 1
            self._take(*following)

    def replied(self, grants: Iterable[Any]) -> None:
        """Take all grants that Redis keeps for this process: numbers missing below them do not exist."""
        self.pushed(grants)
        for number in sorted(self._early):
            self.seen = number
            self._take(*self._early.pop(number))
