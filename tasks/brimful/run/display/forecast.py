"""Forecasts how long a run will take, and measures its rate, from its figures so far.

It reads no clock: :attr:`Progress.seconds` is the time, in seconds since the command began.
"""

from __future__ import annotations

import math

from brimful.run.display.progress import Progress
from brimful.state.status import Status

_MEMORY_S = 30.0
"""Time constant of the rates: what ended so many seconds ago counts for a third."""
_EASE_S = 4.0
"""Time constant of the forecast shown: in so many seconds it moves two thirds of the way to the newest estimate."""
_FULL = 0.95
"""Share of a window's starts from which it counts as full."""
_BURST_S = 1.0
"""A full window whose next start is farther away was filled in a burst, and the next one will be."""
_ENOUGH = 10
"""API calls from whose attempts the share of retries is estimated."""


class Rates:
    """Means over the time so far in which the latest half minute counts most."""

    def __init__(self) -> None:
        self._last: tuple[float, tuple[float, ...]] | None = None
        self._sums: tuple[float, ...] = ()
        self._seconds = 0.0

    def update(self, now: float, *totals: float) -> tuple[float, ...]:
        """Each total's growth a second; zeros at the first call."""
        if self._last is None:
            self._last, self._sums = (now, totals), (0.0,) * len(totals)
            return self._sums
        then, before = self._last
        if now > then:
            fade = math.exp((then - now) / _MEMORY_S)
            self._seconds = self._seconds * fade + now - then
            pairs = zip(self._sums, totals, before, strict=True)
            self._sums = tuple(sum * fade + total - old for sum, total, old in pairs)
            self._last = (now, totals)
        return tuple(sum / self._seconds if self._seconds else 0.0 for sum in self._sums)


class Forecast:
    """Rollouts a minute, and the seconds that are left; call :meth:`update` whenever they are shown."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._shown: tuple[float, float] | None = None
        """When the seconds left were given last, and how many."""

    def update(self, progress: Progress, fleet: Status | None = None) -> tuple[float, float | None]:
        """``(rollouts a minute, seconds left)``; None while that is unknown."""
        now = progress.seconds
        spent = progress.cost or 0.0
        rollouts, done, tokens, cost = self._rates.update(
            now, progress.new_rollouts, progress.done, progress.tokens, spent
        )
        left = None if progress.total is None else max(0, progress.total - progress.done)
        ends = [
            _work_s(left, done, progress, fleet),
            _budget_s(progress.budget, progress.tokens, tokens),
            _budget_s(progress.money, spent, cost),
        ]
        estimate = min((seconds for seconds in ends if seconds is not None), default=None)
        return rollouts * 60, self._eased(now, None if left == 0 or progress.held_by else estimate)

    def _eased(self, now: float, estimate: float | None) -> float | None:
        """Move from the seconds shown last, less the time passed since, towards the newest estimate."""
        if estimate is None:
            self._shown = None
            return None
        if self._shown is not None:
            then, seconds = self._shown
            expected = max(0.0, seconds - (now - then))
            estimate = expected + (estimate - expected) * -math.expm1((then - now) / _EASE_S)
        self._shown = (now, estimate)
        return estimate


def window_full(fleet: Status) -> bool:
    return bool(fleet.starts) and fleet.starts_used >= _FULL * (fleet.starts or 0)


def _work_s(left: int | None, rate: float, progress: Progress, fleet: Status | None) -> float | None:
    """Seconds until the last of ``left`` prompts has ended, at so many a second; None if unknown."""
    if not left:
        return None
    by_rate = left / rate if rate > 0 else None
    by_window = _window_s(left, progress, fleet)
    if by_window and fleet is not None and window_full(fleet):
        return by_window
    return max(by_window, by_rate) if by_rate is not None else by_window or None


def _window_s(left: int, progress: Progress, fleet: Status | None) -> float:
    """Seconds until the last of ``left`` prompts can have started; 0 if the window does not delay it."""
    if fleet is None or not fleet.starts or not fleet.window_s:
        return 0.0
    drive = progress.drive
    calls = -(-left // max(1, drive.pack))
    if drive.requests >= _ENOUGH:
        calls = math.ceil(calls * max(1.0, drive.attempts / drive.requests))
    later = calls - fleet.slots_used - max(0, fleet.starts - fleet.starts_used)
    if later <= 0:
        return 0.0
    if fleet.next_start_s >= _BURST_S:
        return fleet.next_start_s + (later - 1) // fleet.starts * fleet.window_s
    return fleet.next_start_s + later / fleet.starts * fleet.window_s


def _budget_s(most: float | None, used: float, rate: float) -> float | None:
    """Seconds until ``most`` is used up at this rate; None without such a limit."""
    return max(0.0, most - used) / rate if most is not None and rate > 0 else None
