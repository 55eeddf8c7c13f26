"""Acquires a slot and a start in every window of a limiter, in a fixed order.

One admission grants a slot and a start of the longest window together. Every shorter window is an admission of its
own. A grant may be used for a short time only (its window's guard), so one that waits too long for the others is given
back and asked for again, at its old place in the queue.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

from brimful.names import Workload
from brimful_worker.admission import Admission, Lease, LeaseLost, Slot
from brimful_worker.admission.lease import current_lease
from brimful_worker.limiter.windows import Window
from brimful_worker.liveness.boot_time import boot_time

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Coroutines of one process and workload that acquire several windows at the same time; the others wait for them."""
_AHEAD_S = 30.0
"""In windows whose starts have one queue, interactive blocks take places as if they had waited this much longer."""
Gate: TypeAlias = AbstractAsyncContextManager[None]
NO_GATE: Gate = nullcontext()


@dataclass(frozen=True, slots=True)
class Request:
    """What a coroutine asks for."""

    workload: Workload
    tokens: int
    since: float
    """On ``boot_time()``: its place in the queues."""
    check: Callable[[], None]
    """Raises LimiterClosed once nothing may be asked for any more."""


class LeaseGroup:
    """A slot and its starts: leases, and the entered contexts that end them."""

    def __init__(self) -> None:
        self._entered: dict[int, tuple[Slot, Lease]] = {}
        self._outer = current_lease.get()

    @property
    def lease(self) -> Lease:
        """The one that has the slot; the others are its companions."""
        return self._entered[0][1]

    def missing(self, count: int) -> int | None:
        """The first admission without a lease; None if all have one."""
        return next((place for place in range(count) if place not in self._entered), None)

    def usable_s(self) -> float:
        """Seconds for which all leases so far may still be used."""
        deadlines = [lease.wire_deadline for _, lease in self._entered.values()]
        return min(deadlines, default=math.inf) - boot_time()

    def add(self, place: int, slot: Slot, lease: Lease) -> None:
        self._entered[place] = slot, lease

    async def give_back_stale(self) -> None:
        now = boot_time()
        for place, (slot, lease) in list(self._entered.items()):
            if lease.wire_deadline <= now and not lease.lost:  # of a lost one, the cancellation is on its way
                lease.give_back()
                del self._entered[place]
                await slot.__aexit__(None, None, None)

    def complete(self) -> None:
        """All leases are there: they are used together from now on."""
        self.lease.companions = tuple(lease for place, (_, lease) in self._entered.items() if place)
        current_lease.set(self.lease)

    def detach(self) -> None:
        """The running task has acquired it for a permit: its requests are not made under it."""
        current_lease.set(self._outer)

    def move(self) -> None:
        """The running task uses it from now on: its requests are made under it, and its loss cancels that task."""
        self._outer = current_lease.get()
        for slot, _ in self._entered.values():
            slot.move()
        current_lease.set(self.lease)

    async def abandon(self, error: BaseException) -> None:
        """Give back all, as ``error`` ended the waiting. Raises LeaseLost if that is a lost lease's cancellation."""
        for _, lease in self._entered.values():
            if not lease.lost:
                lease.give_back()
        try:
            await self.leave(type(error), error, error.__traceback__)
        finally:
            current_lease.set(self._outer)

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the leases; never waits. Raises LeaseLost if one was lost while the body ran into ``error``."""
        entered, self._entered = self._entered, {}
        inside = current_lease.get() in [lease for _, lease in entered.values()]  # not if another task ends it
        raised = error
        for _, (slot, _) in sorted(entered.items(), reverse=True):
            try:
                await slot.__aexit__(type(raised) if raised else None, raised, raised.__traceback__ if raised else None)
            except BaseException as other:
                raised = other
        if inside:
            current_lease.set(self._outer)
        if raised is not error and raised is not None:
            raise raised


async def acquire(
    admissions: Sequence[tuple[Admission, Window | None]], request: Request, gate: Gate = NO_GATE
) -> LeaseGroup:
    """Wait for a lease of every admission. Raises what entering :meth:`Admission.slot` raises."""
    while True:
        try:
            return await _acquire(admissions, request, gate)
        except LeaseLost as error:
            log.debug("limiter: asks again: %s", error)


async def _acquire(admissions: Sequence[tuple[Admission, Window | None]], request: Request, gate: Gate) -> LeaseGroup:
    held = LeaseGroup()
    try:
        async with gate:
            while (place := held.missing(len(admissions))) is not None:
                request.check()
                admission, window = admissions[place]
                slot = _slot(admission, window, request, first=place == 0)
                usable_s = held.usable_s()
                try:
                    async with asyncio.timeout(None if usable_s == math.inf else usable_s) as scope:
                        held.add(place, slot, await slot.__aenter__())
                except TimeoutError:
                    if not scope.expired():
                        raise
                await held.give_back_stale()
    except BaseException as error:
        await held.abandon(error)
        raise
    held.complete()
    return held


def _slot(admission: Admission, window: Window | None, request: Request, *, first: bool) -> Slot:
    limited = window is not None and window.tokens is not None
    if first or limited:
        tokens = request.tokens if limited else 0
        return admission.slot(request.workload, tokens=tokens, since=request.since)
    first_in = _AHEAD_S if request.workload is Workload.INTERACTIVE else 0.0
    return admission.start_only(request.since - first_in)
