"""Grants come on two ways, pushed and in replies, and may be missing on one of them: each is taken once, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Inbox:
    """``take(ticket, granted_at_ms)`` is called for every grant, by ascending number."""

    def __init__(self, take: Callable[[str, float], None]) -> None:
        self.seen = 0
        """The number up to which all grants were taken; Redis keeps those above."""
        self._take = take
        self._early: dict[int, tuple[str, float]] = {}

    @property
    def gap(self) -> bool:
        """A grant is missing ahead of one that came: the next turn brings it."""
        return bool(self._early)

    def restart(self, base: int = 0) -> None:
        """A new epoch numbers from one; who joins again while it lasts goes on above ``base``."""
        self.seen = base
        self._early.clear()

    def knows(self, number: int) -> bool:
        return number <= self.seen or number in self._early

    def pushed(self, grants: Iterable[Any]) -> None:
        """Some grants, as far as they follow on those taken; others wait for those ahead of them."""
        for number, ticket, granted_ms in grants:
            if number > self.seen:
                self._early[number] = (ticket, granted_ms)
        while (following := self._early.pop(self.seen + 1, None)) is not None:
            self.seen += 1
            self._take(*following)

    def replied(self, grants: Iterable[Any]) -> None:
        """All grants that Redis keeps for us: what is missing below them does not exist."""
        self.pushed(grants)
        for number in sorted(self._early):
            self.seen = number
            self._take(*self._early.pop(number))
