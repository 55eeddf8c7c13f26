"""Limits of one API key, and the timing rules that follow from them. Pure functions and values: no storage, no clock.

Durations are in seconds, except in fields whose name ends in ``_ms``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brimful.limits import SETTABLE, default_guard_s, limits_from_redis, limits_to_redis

if TYPE_CHECKING:
    from brimful.config import Settings

GATHER_PER_LEASE_S, GATHER_LEAST_S, GATHER_MOST_S = 1e-5, 0.001, 0.02
GATHER_FROM, GATHER_SHARE, GATHER_LONG_S = 200, 0.005, 0.1
_MANY = 32
"""Leases that cost more to renew than a command to send."""
_BY_WINDOW = -1.0
PACE_S, PACE_BURST = 0.004, 10
PACE_FROM = 8
"""Requests that wait or run from which a process keeps the pace: of fewer, there is nothing to send together."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one API key allows. ``None`` means no such limit, and costs nothing."""

    slots: int = 16
    """Requests active at the same time."""
    slots_auto: bool = False
    """The fleet learns the slots. Processes of versions that cannot use ``slots``."""
    starts: int | None = 600
    """Starts in any window."""
    window_s: float = 60.0
    guard_s: float = _BY_WINDOW
    """The window is widened by this much; see :func:`wire_lag`. By default 0.2 s + 1 % of the window."""
    tokens: int | None = None
    """Tokens in any window: a request's estimate from its grant on, its usage once that is reported."""
    budget: int | None = None
    """Tokens in total: held while a request runs, spent when it ends."""
    lease_s: float = 8.0
    """A process that sends nothing for this long loses its slots."""
    cooldown_s: float = 1.0
    """How long a slot stays taken after its request was aborted. Used by this process only, not fleet-wide."""
    reserve_slots: int = 0
    """Slots that batch leaves to interactive."""
    reserve_starts: int = 0
    """Starts of a window that batch leaves to interactive."""
    starvation_s: float = 30.0
    """A batch request that has waited this long takes every fourth turn while interactive ones wait."""
    circuit_breaker: int = 20
    """Consecutive failures, fleet-wide, that open the circuit breaker; 0 = never."""
    slow_start_s: float = 2.0
    """After a pause the slots are filled over this time rather than at once."""

    def __post_init__(self) -> None:
        if self.guard_s == _BY_WINDOW:
            object.__setattr__(self, "guard_s", default_guard_s(self.window_s))

    @classmethod
    def from_settings(cls, settings: Settings) -> Limits:
        profile = settings.profile
        return cls(
            slots=profile.slots,
            slots_auto=settings.slots_auto,
            starts=profile.starts,
            window_s=profile.window_s,
            guard_s=settings.guard,
            tokens=profile.tokens,
            lease_s=settings.lease_s,
            cooldown_s=settings.cooldown_s,
            reserve_slots=settings.reserve_slots,
            reserve_starts=settings.reserve_starts,
            starvation_s=settings.starvation_s,
            circuit_breaker=settings.circuit_breaker,
        )

    def fields(self) -> dict[str, int]:
        """As stored in Redis. Raises UsageError naming a limit that is out of range."""
        return limits_to_redis({name: getattr(self, name) or 0 for name in SETTABLE})


@dataclass(frozen=True, slots=True)
class Rules(Limits):
    """The limits in force, and the timing that a process derives from them. 0 may stand for None."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], cooldown_s: float) -> Rules:
        """From the fields stored in Redis; the cooldown is the process's own."""
        limits: dict[str, Any] = limits_from_redis(fields)
        return cls(cooldown_s=cooldown_s, **limits)

    @property
    def registered(self) -> int:
        """Waiters of each queue that one process registers in Redis: enough to fill all slots twice, within bounds."""
        return max(32, min(2 * self.slots, 4096))

    @property
    def heartbeat_s(self) -> float:
        """The longest time between commands of a process that holds or waits: losing two in a row ends no lease."""
        return self.lease_s / 3

    @property
    def idle_s(self) -> float:
        """The same for a process that does neither, so that it stays in ``status``."""
        return 0.75 * self.lease_s

    @property
    def reply_timeout_s(self) -> float:
        """How long a reply is waited for: one lost reply leaves time for another try."""
        return self.lease_s / 4

    def renew_after_s(self, held: int) -> float:
        """Age of the oldest of ``held`` leases from which a command that is sent anyway renews leases too.

        Renewing few of them early saves a command that does nothing else; renewing many more often costs more than one.
        """
        return (0.75 if held < _MANY else 0.98) * self.heartbeat_s

    @property
    def renew_least_s(self) -> float:
        """Age below which a lease is not renewed then: most requests of a busy process end before they need it."""
        return 0.25 * self.heartbeat_s

    @property
    def local_lease_s(self) -> float:
        """How long a lease lasts on the worker's clock. In Redis it lasts longer: by 0.25 s, to shut the connection of
        a request that is aborted then, and by its cooldown."""
        return self.lease_s - min(self.lease_s / 2, self.cooldown_s + 0.25)


@dataclass(frozen=True, slots=True)
class WindowUse:
    """The fleet's window, as one process read it last. A limit of 0 is no such limit."""

    starts: int
    starts_used: int
    tokens: int
    tokens_used: int
    length_s: float
    """With its guard: a start counts for so long."""


def wire_lag(guard_s: float) -> float:
    """Seconds a process may take from the grant to the wire.

    A grant counts for window + guard. A request written within ``wire_lag``, and on its way for no longer than the rest
    of the guard, arrives at least a window before the start that takes its place. That rest is 0.4 s or half of the
    guard, whichever is more; of a guard below 0.6 s it is two thirds.
    """
    return min(guard_s / 2, max(guard_s - 0.4, guard_s / 3))


def release_delay(most_s: float, request_s: float) -> float:
    """Seconds for which the slot of a request that took ``request_s`` stays taken after its answer has arrived.

    The provider may stop counting the request a moment later: 1 % of its time, at least 5 ms, at most ``most_s``.
    """
    return min(most_s, max(0.005, 0.01 * request_s))


def gather_s(held: int, lasting_s: float = 0.0) -> float:
    """Seconds between two commands of a process that holds ``held`` leases, so that what happens meanwhile goes along.

    A command costs as much as a dozen leases in it. A process ends about 2,000 requests a second at most, so one that
    holds a thousand holds each for half a second: a delay of 10 ms leaves its slots idle for about one percent.
    ``lasting_s``: how long requests hold their leases, as of late. Where that is known, the delay may be half a percent
    of it.
    """
    seconds = held * GATHER_PER_LEASE_S
    if seconds < GATHER_LEAST_S:
        return 0.0
    known = min(GATHER_SHARE * lasting_s, GATHER_LONG_S) if held >= GATHER_FROM else 0.0
    return max(min(seconds, GATHER_MOST_S), known)


class Pace:
    """Limits how often commands are sent: a few at once, then one every four milliseconds with all that came in since.

    A command costs a worker as much CPU as half a task, so a busy worker gathers what it sends. One that holds many
    leases waits as :func:`gather_s` says.
    """

    def __init__(self) -> None:
        self._sent = self._next = -math.inf

    def wait_s(self, now: float, held: int = 0, waiting: int = PACE_FROM, lasting_s: float = 0.0) -> float:
        """Seconds from now until the next command may go. ``now``: any steady clock.

        ``held``, ``waiting``: how many requests hold a lease, or wait for what the command brings. ``lasting_s``: as of
        :func:`gather_s`.
        """
        paced = self._next - PACE_BURST * PACE_S if held + waiting >= PACE_FROM else now
        return max(0.0, paced - now, self._sent + gather_s(held, lasting_s) - now)

    def sent(self, now: float) -> None:
        self._sent = now
        self._next = max(self._next, now) + PACE_S
