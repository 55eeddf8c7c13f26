"""How long to wait before asking again: pure functions over named constants; randomness is passed in.

Full jitter (a uniform draw from zero to the exponential bound) spreads a crowd that failed together over the whole
bound, so that it does not come back together.
"""

from __future__ import annotations

from collections.abc import Callable

_GROWTH = 2.0
_LAST_DOUBLING = 60  # 2.0 ** 60 s is past any cap; a float exponent without end would overflow


def bound(failures: int, *, base_s: float, cap_s: float) -> float:
    """The longest wait in seconds after ``failures`` failed attempts (1 or more): base, 2 base, 4 base … cap."""
    return min(cap_s, base_s * _GROWTH ** min(max(failures, 1) - 1, _LAST_DOUBLING))


def full_jitter(failures: int, *, base_s: float, cap_s: float, uniform: Callable[[], float]) -> float:
    """A wait in seconds in [0, bound); ``uniform`` draws from [0, 1)."""
    return uniform() * bound(failures, base_s=base_s, cap_s=cap_s)


def poll_pause(polls: int, *, first_s: float, uniform: Callable[[], float]) -> float:
    """Seconds before the next poll of a Job after ``polls`` polls: from ``first_s`` up to ten times that, ±20 %."""
    return bound(polls + 1, base_s=first_s, cap_s=10 * first_s) * (0.8 + 0.4 * uniform())
