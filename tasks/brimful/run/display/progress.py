"""A run's figures while it goes on, and how displays word them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from brimful.packing.units import DriveStatus
from brimful.run.display.summary import duration, money
from brimful.state.status import Status

ReadStatus = Callable[[], Awaitable[Status | None]]
"""Returns the fleet's newest figures, or None before the first."""


@dataclass(frozen=True)
class Progress:
    """A run's figures at one moment; the fleet's are in :class:`brimful.state.status.Status`."""

    seconds: float
    requests: int
    total: int | None
    """None: the input's end was not seen yet."""
    succeeded: int
    failed: int
    rollouts: int
    new_rollouts: int
    """Those of this try."""
    tokens: int
    budget: int | None = None
    """Tokens."""
    cost: float | None = None
    """In the currency of the prices; None without any."""
    money: float | None = None
    """The budget in that currency."""
    retries: dict[str, int] = field(default_factory=dict)
    """Failed attempts by cause."""
    drive: DriveStatus = field(default_factory=DriveStatus)
    stopping: bool = False

    @property
    def done(self) -> int:
        return self.succeeded + self.failed


class Rate:
    """Rollouts a minute over the last half minute, and an estimate of the time left."""

    def __init__(self, span_s: float = 30.0) -> None:
        self._span_s = span_s
        self._points: list[tuple[float, int, int]] = []

    def update(self, progress: Progress, fleet: Status | None = None) -> tuple[float, float | None]:
        """``(rollouts a minute, seconds left or None)``. While the window of starts is full, it alone decides."""
        self._points.append((progress.seconds, progress.new_rollouts, progress.done))
        while len(self._points) > 2 and self._points[1][0] < progress.seconds - self._span_s:
            self._points.pop(0)
        (then, rollouts, done), (now, rollouts_now, done_now) = self._points[0], self._points[-1]
        span = now - then
        left = 0 if progress.total is None else max(0, progress.total - progress.done)
        by_window = _by_window(left, progress.drive, fleet)
        if span <= 0:
            return 0.0, by_window or None
        per_second = (done_now - done) / span
        seconds_left = left / per_second if left and per_second > 0 else None
        if by_window and fleet is not None:
            seconds_left = by_window if window_full(fleet) else max(by_window, seconds_left or 0.0)
        return (rollouts_now - rollouts) / span * 60, seconds_left


def window_full(fleet: Status) -> bool:
    return bool(fleet.starts) and fleet.starts_used >= 0.95 * (fleet.starts or 0)


def _by_window(left: int, drive: DriveStatus, fleet: Status | None) -> float:
    """Seconds until the last of ``left`` lines can have started; 0 if the window does not delay it."""
    if fleet is None or not fleet.starts or not fleet.window_s:
        return 0.0
    requests = -(-left // max(1, drive.pack)) - fleet.slots_used - max(0, fleet.starts - fleet.starts_used)
    if requests <= 0:
        return 0.0
    return (fleet.next_start_s or fleet.window_s) + (requests - 1) // fleet.starts * fleet.window_s


def plain_line(progress: Progress, fleet: Status | None, per_minute: float, seconds_left: float | None) -> str:
    """``310/1,291 requests, 620 rollouts, 580/min, slots 16/16, window 583/600, …``"""
    total = "" if progress.total is None else f"/{progress.total:,}"
    words = [f"{progress.done:,}{total} requests", f"{progress.rollouts:,} rollouts"]
    words.append(waiting_for_window(progress, fleet) or f"{per_minute:,.0f}/min")
    words += [f"{label} {value}" for label, value in details(progress, fleet)]
    if progress.failed:
        words.append(f"failed {progress.failed:,}")
    words.append(f"tokens {progress.tokens:,}")
    if (cost := cost_text(progress)) is not None:
        words.append(f"cost {cost}")
    if seconds_left is not None:
        words.append(f"about {duration(seconds_left)} to go")
    return ", ".join(words)


def cost_text(progress: Progress) -> str | None:
    """``0.42``, or ``0.42 of 5.00`` with a budget; None without prices."""
    if progress.cost is None:
        return None
    return money(progress.cost) + (f" of {money(progress.money)}" if progress.money is not None else "")


def waiting_for_window(progress: Progress, fleet: Status | None) -> str:
    """Says so if no request is running because the window is full; else empty."""
    if fleet is None or fleet.slots_used or fleet.next_start_s < 1 or progress.stopping:
        return ""
    return f"next start in about {duration(round(fleet.next_start_s))}"


def details(progress: Progress, fleet: Status | None) -> list[tuple[str, str]]:
    """Slots, window, waiting, retries and pause, as label and value; without those that are zero."""
    drive, words = progress.drive, []
    if fleet is not None:
        words.append(("slots", f"{fleet.slots_used}/{fleet.slots}"))
        if fleet.starts is not None:
            words.append(("window", f"{fleet.starts_used}/{fleet.starts}"))
        if waiting := sum(fleet.waiting.values()):
            words.append(("waiting", f"{waiting:,}"))
    if drive.queued:
        words.append(("queued", f"{drive.queued:,}"))
    if drive.pack > 1:
        words.append(("pack", f"{drive.pack:,}"))
    if progress.retries:
        words.append(("retries", ", ".join(f"{cause} {count:,}" for cause, count in sorted(progress.retries.items()))))
    if fleet is not None and fleet.pause_s >= 0.5:
        reason = f" ({fleet.pause_reason})" if fleet.pause_reason else ""
        words.append(("paused", f"{fleet.pause_s:.0f} s{reason}"))
    if fleet is not None and not fleet.workers:
        words.append(("workers", "none yet"))
    return words
