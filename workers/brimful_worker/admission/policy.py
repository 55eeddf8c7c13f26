"""The numbers of the admission, and what follows from them. Pure: no storage, no clock.

All durations are seconds unless a name ends in ``_ms``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brimful.config import Settings

RENEWALS_PER_LEASE = 3
"""A process that holds or waits speaks at least so often in a lease: two lost turns end nothing."""
IDLE_SHARE = 0.75
"""A process that neither holds nor waits speaks after this share of a lease, so that ``status`` knows it."""
ABORT_MARGIN_S = 0.25
"""Between the end of a lease on the worker's clock and its end in Redis, for the connection to be shut."""
NETWORK_S = 0.4
"""Of the guard, what is left to the network between the wire and the provider's clock, where the guard allows."""
GATHER_PER_LEASE_S, GATHER_LEAST_S, GATHER_MOST_S = 1e-5, 0.001, 0.02
"""See :func:`gather_s`; less than the least is not worth a timer."""
REGISTERED_LEAST, REGISTERED_MOST = 32, 4096
"""Waiting tickets of one process that Redis knows of."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key allows. ``None`` = no such limit, and no cost."""

    slots: int = 16
    """Requests active at once."""
    starts: int | None = 600
    """Starts in any window."""
    window_s: float = 60.0
    guard_s: float = 0.8
    """The window is widened by this much; see :func:`wire_lag`."""
    tokens: int | None = None
    """Tokens in any window: a request's estimate when it is granted, its usage once that is known."""
    budget: int | None = None
    """Tokens in all: held by running requests, spent when they end."""
    lease_s: float = 8.0
    """A process that says nothing for so long has lost its slots."""
    cooloff_s: float = 1.0
    """A slot rests so long after its request was aborted. The process's own, not fleet-wide."""
    reserve_slots: int = 0
    """Slots that batch leaves to interactive."""
    reserve_starts: int = 0
    age_s: float = 30.0
    """A batch request that waited so long takes every fourth turn even while interactive ones wait."""
    breaker: int = 20
    """Failures in a row, fleet-wide, that trip the breaker; 0 = none."""
    ramp_s: float = 2.0
    """After a pause the slots are filled over this time, not at once."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Limits:
        profile = settings.profile
        return cls(
            slots=profile.slots,
            starts=profile.starts,
            window_s=profile.window_s,
            guard_s=settings.guard,
            tokens=profile.tokens,
            lease_s=settings.lease_s,
            cooloff_s=settings.cooldown_s,
            reserve_slots=settings.reserve_slots,
            reserve_starts=settings.reserve_starts,
            age_s=settings.starvation_s,
            breaker=settings.circuit_breaker,
        )

    def fields(self) -> dict[str, int]:
        """As Redis keeps them: whole numbers, milliseconds, 0 = no such limit."""
        return {
            "slots": self.slots,
            "starts": self.starts or 0,
            "window_ms": round(self.window_s * 1000),
            "guard_ms": round(self.guard_s * 1000),
            "tokens": self.tokens or 0,
            "budget": self.budget or 0,
            "lease_ms": round(self.lease_s * 1000),
            "reserve_slots": self.reserve_slots,
            "reserve_starts": self.reserve_starts,
            "age_ms": round(self.age_s * 1000),
            "breaker": self.breaker,
            "ramp_ms": round(self.ramp_s * 1000),
        }


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits in force, as the last reply told them, and what a process derives from them."""

    slots: int
    starts: int
    window_s: float
    guard_s: float
    tokens: int
    lease_s: float

    @classmethod
    def from_fields(cls, fields: dict[str, int]) -> Rules:
        return cls(
            slots=fields["slots"],
            starts=fields["starts"],
            window_s=fields["window_ms"] / 1000,
            guard_s=fields["guard_ms"] / 1000,
            tokens=fields["tokens"],
            lease_s=fields["lease_ms"] / 1000,
        )

    @property
    def registered(self) -> int:
        """Waiting tickets one process registers: enough to fill all slots twice before it is heard again."""
        return max(REGISTERED_LEAST, min(2 * self.slots, REGISTERED_MOST))

    @property
    def heartbeat_s(self) -> float:
        return self.lease_s / RENEWALS_PER_LEASE

    @property
    def idle_s(self) -> float:
        return self.lease_s * IDLE_SHARE

    @property
    def patience_s(self) -> float:
        """How long an answer of Redis is waited for: after one lost answer there is time for another try."""
        return self.lease_s / 4

    @property
    def renew_after_s(self) -> float:
        """A lease younger than this is not renewed with a turn that happens anyway: it is old enough to save a turn of
        its own soon, and no younger, as a busy process holds thousands and has a turn every few milliseconds."""
        return 0.75 * self.heartbeat_s


def wire_lag(guard_s: float) -> float:
    """Seconds a process may take from the grant to the wire.

    A grant counts until window + guard after it was given. A request put on the wire within ``wire_lag`` and under way
    for no more than the rest of the guard arrives so early that the start which takes its place comes a whole window
    later. The network gets :data:`NETWORK_S` where the guard allows, and never less than half of the guard.
    """
    return min(guard_s / 2, max(guard_s - NETWORK_S, guard_s / 3))


def gather_s(held: int) -> float:
    """Seconds between two turns of a process with so many leases, in which what ends and what is asked comes together.

    A turn costs as much as a dozen leases in it. No process ends more than some 2,000 requests a second, so one that
    holds a thousand holds each for half a second at least, and 10 ms more idle its slots by a hundredth at the worst.
    """
    seconds = held * GATHER_PER_LEASE_S
    return 0.0 if seconds < GATHER_LEAST_S else min(seconds, GATHER_MOST_S)


def abort_margin(lease_s: float, cooloff_s: float) -> float:
    """How long before its end in Redis a lease ends on the worker's clock: the cool-off must fit in between."""
    return min(lease_s / 2, cooloff_s + ABORT_MARGIN_S)
