"""A run's figures while it goes on, and how displays word them.

Prompts are the input's lines, API calls the requests to the provider, rollouts the texts that came back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from brimful.outcome import Cause
from brimful.packing.units import DriveStatus
from brimful.run.display.summary import duration, money
from brimful.state.status import Status
from brimful.words.counted import counted

_OF_429 = (Cause.RATE_LIMITED, Cause.QUEUE_FULL)
"""Causes of retries that ``rate-limited`` counts."""

ReadStatus = Callable[[], Awaitable[Status | None]]
"""Returns the fleet's newest figures, or None before the first."""


@dataclass(frozen=True)
class Progress:
    """A run's figures at one moment; the fleet's are in :class:`brimful.state.status.Status`."""

    seconds: float
    """Since the command began."""
    requests: int
    """Prompts so far."""
    total: int | None
    """Prompts of the input; None: its end was not seen yet."""
    succeeded: int
    failed: int
    rollouts: int
    new_rollouts: int
    """Those of this execution of the command (*try*)."""
    tokens: int
    budget: int | None = None
    """Tokens."""
    cost: float | None = None
    """In the currency of the prices; None without any."""
    money: float | None = None
    """The budget in that currency."""
    retries: dict[str, int] = field(default_factory=dict)
    """Failed attempts by cause."""
    rate_limited: int = 0
    """Answers of 429 to this try."""
    pending: int = 0
    """Prompts among ``failed`` that this try asks for again, and that have not ended."""
    drive: DriveStatus = field(default_factory=DriveStatus)
    stopping: bool = False
    held_by: str = ""
    """``user@host`` of whoever holds the run (``brimful runs hold``); empty: it is not held."""

    @property
    def done(self) -> int:
        """Prompts that need nothing more in this try."""
        return self.succeeded + self.failed - self.pending


def plain_line(progress: Progress, fleet: Status | None, per_minute: float, seconds_left: float | None) -> str:
    """``310/1,291 prompts, 620 rollouts, 580/min, slots 16/16, window 583/600, …``"""
    pairs = [("", done_text(progress)), *figures(progress, fleet, per_minute)]
    if seconds_left is not None:
        pairs.append(("", to_go(seconds_left)))
    return ", ".join(f"{label} {value}" if label else value for label, value in pairs)


def done_text(progress: Progress) -> str:
    """``310/1,291 prompts``"""
    if progress.total is None:
        return counted(progress.done, "prompt")
    return f"{progress.done:,}/{counted(progress.total, 'prompt')}"


def to_go(seconds_left: float) -> str:
    return f"about {duration(round(seconds_left))} to go"


def figures(progress: Progress, fleet: Status | None, per_minute: float) -> list[tuple[str, str]]:
    """Label and value of each figure; the label is empty where the value says what it is. Most zeros are left out."""
    held = progress.held_by and not progress.stopping
    idle = f"held by {progress.held_by}" if held else waiting_for_window(progress, fleet)
    pairs = [("", counted(progress.rollouts, "rollout")), ("", idle or f"{per_minute:,.0f}/min")]
    pairs += _fleet_figures(progress.drive, fleet)
    pairs.append(("rate-limited", f"{progress.rate_limited:,}"))
    label = "retries"
    for cause, count in sorted(progress.retries.items()):
        if cause not in _OF_429:
            pairs.append((label, f"{cause} {count:,}"))
            label = ""
    if fleet is not None and fleet.pause_s >= 0.5:
        reason = f" ({fleet.pause_reason})" if fleet.pause_reason else ""
        pairs.append(("paused", f"{fleet.pause_s:.0f} s{reason}"))
    if fleet is not None and not fleet.workers:
        pairs.append(("workers", "none yet"))
    if progress.failed:
        pairs.append(("failed", f"{progress.failed:,}"))
    budget = f" of {progress.budget:,}" if progress.budget else ""
    pairs.append(("tokens", f"{progress.tokens:,}{budget}"))
    if (cost := cost_text(progress)) is not None:
        pairs.append(("cost", cost))
    return pairs


def _fleet_figures(drive: DriveStatus, fleet: Status | None) -> list[tuple[str, str]]:
    pairs = []
    if fleet is not None:
        pairs.append(("slots", f"{fleet.slots_used}/{fleet.slots}"))
        if fleet.starts is not None:
            pairs.append(("window", f"{fleet.starts_used}/{fleet.starts}"))
        if waiting := sum(fleet.waiting.values()):
            pairs.append(("waiting", f"{waiting:,}"))
    if drive.queued:
        pairs.append(("queued", f"{drive.queued:,}"))
    if drive.pack > 1:
        pairs.append(("pack", f"{drive.pack:,}"))
    return pairs


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
