"""What a run shows while it goes on: one live display on a terminal, or one plain line an interval; all on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from brimful.packing.units import DriveStatus
from brimful.run.display.gauges import Gauges
from brimful.run.display.summary import Summary, duration

PLAIN_S = 10.0
"""Between two plain lines."""


@dataclass(frozen=True)
class Progress:
    """A run's figures at one moment; the fleet's own are :class:`Gauges`."""

    seconds: float
    requests: int
    total: int | None
    succeeded: int
    failed: int
    rollouts: int
    new_rollouts: int
    tokens: int
    budget: int | None = None
    retries: dict[str, int] = field(default_factory=dict)
    rate_limited: int = 0
    drive: DriveStatus = field(default_factory=DriveStatus)
    stopping: bool = False

    @property
    def done(self) -> int:
        return self.succeeded + self.failed


class Display(Protocol):
    """What a session speaks to."""

    def say(self, text: str) -> None:
        """A line that stays."""

    async def show(self, progress: Progress) -> None:
        """The figures; called about twice a second."""

    def end(self, summary: Summary) -> None:
        """The end table."""

    def close(self) -> None: ...


ReadGauges = Callable[[], Awaitable[Gauges | None]]


class Rate:
    """Rollouts a minute over the last half minute, and when the rest will be there."""

    def __init__(self, span_s: float = 30.0) -> None:
        self._span_s = span_s
        self._points: list[tuple[float, int, int]] = []

    def update(self, progress: Progress, gauges: Gauges | None = None) -> tuple[float, float | None]:
        """``(rollouts a minute, seconds to go or None)``; a window that is full decides how fast it goes on."""
        self._points.append((progress.seconds, progress.new_rollouts, progress.done))
        while len(self._points) > 2 and self._points[1][0] < progress.seconds - self._span_s:
            self._points.pop(0)
        (then, rollouts, done), (now, rollouts_now, done_now) = self._points[0], self._points[-1]
        span = now - then
        left = 0 if progress.total is None else max(0, progress.total - progress.done)
        by_window = _by_window(left, progress.drive, gauges)
        if span <= 0:
            return 0.0, by_window or None
        pace = (done_now - done) / span
        to_go = left / pace if left and pace > 0 else None
        if by_window and gauges is not None:
            to_go = by_window if gauges.window_full else max(by_window, to_go or 0.0)
        return (rollouts_now - rollouts) / span * 60, to_go


def _by_window(left: int, drive: DriveStatus, gauges: Gauges | None) -> float:
    """Seconds until so many requests can have started, at so many starts in a window; 0 where nothing holds them up."""
    if gauges is None or not gauges.starts or not gauges.window_s:
        return 0.0
    calls = -(-left // max(1, drive.pack)) - gauges.slots_used - max(0, gauges.starts - gauges.starts_used)
    if calls <= 0:
        return 0.0
    return (gauges.next_start_s or gauges.window_s) + (calls - 1) // gauges.starts * gauges.window_s


class Quiet:
    """``--no-progress``: only what must be said, and the end table."""

    def __init__(self, *, table: bool = True) -> None:
        self._table = table

    def say(self, text: str) -> None:
        print(f"brimful: {text}", file=sys.stderr, flush=True)

    async def show(self, progress: Progress) -> None: ...

    def end(self, summary: Summary) -> None:
        if self._table:
            print(plain_table(summary.rows()), file=sys.stderr, flush=True)

    def close(self) -> None: ...


class Plain(Quiet):
    """No terminal: a line an interval."""

    def __init__(self, gauges: ReadGauges, *, table: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(table=table)
        self._gauges = gauges
        self._clock = clock
        self._rate = Rate()
        self._next = clock() + PLAIN_S / 5  # soon once, to say that it lives

    async def show(self, progress: Progress) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + PLAIN_S
        gauges = await self._gauges()
        self.say(plain_line(progress, gauges, *self._rate.update(progress, gauges)))


def plain_line(progress: Progress, gauges: Gauges | None, per_minute: float, eta_s: float | None) -> str:
    """``310/1,291 requests, 620 rollouts, 580/min, slots 16/16, window 583/600, …``"""
    total = "" if progress.total is None else f"/{progress.total:,}"
    words = [f"{progress.done:,}{total} requests", f"{progress.rollouts:,} rollouts"]
    words.append(waiting_for_window(progress, gauges) or f"{per_minute:,.0f}/min")
    words += [f"{label} {value}" for label, value in gauge_words(progress, gauges) if value]
    if progress.failed:
        words.append(f"failed {progress.failed:,}")
    words.append(f"tokens {progress.tokens:,}")
    if eta_s is not None:
        words.append(f"about {duration(eta_s)} to go")
    return ", ".join(words)


def waiting_for_window(progress: Progress, gauges: Gauges | None) -> str:
    """Nothing is on the wire since the window is full; empty where that is not so."""
    idle = gauges is not None and not gauges.slots_used and gauges.next_start_s >= 1
    if gauges is None or not idle or progress.stopping:
        return ""
    return f"next start in about {duration(round(gauges.next_start_s))}"


def gauge_words(progress: Progress, gauges: Gauges | None) -> list[tuple[str, str]]:
    """Slots, window, what waits, retries and pause; empty values where there is nothing to tell."""
    words = []
    if gauges is not None:
        words.append(("slots", f"{gauges.slots_used}/{gauges.slots}"))
        if gauges.starts is not None:
            words.append(("window", f"{gauges.starts_used}/{gauges.starts}"))
        words.append(("waiting", f"{gauges.waiting:,}" if gauges.waiting else ""))
    drive = progress.drive
    words.append(("queued", f"{drive.queued:,}" if drive.queued else ""))
    words.append(("pack", f"{drive.pack:,}" if drive.pack > 1 else ""))
    words.append(("retries", ", ".join(f"{cause} {count:,}" for cause, count in sorted(progress.retries.items()))))
    if gauges is not None and gauges.paused_s >= 0.5:
        words.append(
            (
                "paused",
                f"{gauges.paused_s:.0f} s ({gauges.pause_reason})"
                if gauges.pause_reason
                else f"{gauges.paused_s:.0f} s",
            )
        )
    if gauges is not None and gauges.workers == 0:
        words.append(("workers", "none yet"))
    return words


def plain_table(rows: list[tuple[str, str]]) -> str:
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"  {label.ljust(width)}  {value}" for label, value in rows)


def make_display(*, progress: bool, table: bool, gauges: ReadGauges, stream: Any = None) -> Display:
    """The one that fits: live on a terminal, plain elsewhere, quiet when asked for."""
    stream = stream or sys.stderr
    if not progress:
        return Quiet(table=table)
    if not stream.isatty():
        return Plain(gauges, table=table)
    from brimful.run.display.terminal import Terminal

    return Terminal(gauges, table=table)
