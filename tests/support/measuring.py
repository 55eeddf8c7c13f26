"""Measuring what a busy machine moves, such as shares: at most three times, of which one must hold.

Only for what cannot be shown by order, counts or a passed-in clock. Never for the limits (active requests, starts in a
window): ``measure`` asserts those itself, and its first failure is final.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

_TIMES = 3
T = TypeVar("T")


def one_of_three(measure: Callable[[], T], holds: Callable[[T], bool]) -> T:
    """The first measured value that ``holds``. Fails with all three where none does."""
    found: list[T] = []
    while len(found) < _TIMES:
        found.append(measure())
        if holds(found[-1]):
            return found[-1]
    raise AssertionError(f"none of {_TIMES} measurements holds: {found}")


async def one_of_three_async(measure: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """As :func:`one_of_three`, on the loop."""
    found: list[T] = []
    while len(found) < _TIMES:
        found.append(await measure())
        if holds(found[-1]):
            return found[-1]
    raise AssertionError(f"none of {_TIMES} measurements holds: {found}")
