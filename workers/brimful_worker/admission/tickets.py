"""Tickets: who waits, and those of them that Redis knows of."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from enum import Enum

from brimful.names import Workload
from brimful_worker.admission.lease import Lease

WORKLOADS = (Workload.INTERACTIVE, Workload.BATCH)
_INITIAL = {Workload.INTERACTIVE: "i", Workload.BATCH: "b"}


class Place(Enum):
    """Where a ticket is."""

    BEHIND = 1
    REGISTERED = 2
    CANCELLED = 3
    """Still in the queue of those behind, to be passed over."""
    OUT = 4


class Ticket:
    """One wish for a slot. Its id is also the grant's and the lease's, and is never used again."""

    __slots__ = ("future", "id", "place", "since", "tokens", "workload")

    def __init__(self, ticket: str, workload: Workload, tokens: int, since: float, future: asyncio.Future[Lease]):
        self.id = ticket
        self.workload = workload
        self.tokens = tokens
        self.since = since
        """time.monotonic()"""
        self.future = future
        self.place = Place.BEHIND

    @property
    def waited_ms(self) -> int:
        return max(0, round((time.monotonic() - self.since) * 1000))


class Waiting:
    """All tickets of one process, oldest first; the first few are registered in Redis, the others cost it nothing."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._number = 0
        self._behind: dict[Workload, deque[Ticket]] = {workload: deque() for workload in WORKLOADS}
        self._gone: dict[Workload, int] = dict.fromkeys(WORKLOADS, 0)  # cancelled ones still in the deque
        self._registered: dict[Workload, dict[str, Ticket]] = {workload: {} for workload in WORKLOADS}

    def add(self, workload: Workload, tokens: int, since: float, future: asyncio.Future[Lease]) -> Ticket:
        """A new ticket at the end, or at the front when its wait began long ago (a stale grant asked anew)."""
        self._number += 1
        ticket = Ticket(
            f"{self._process}.{_INITIAL[workload]}.{self._number:09d}.{tokens}", workload, tokens, since, future
        )
        behind = self._behind[workload]
        if behind and since < behind[0].since:
            behind.appendleft(ticket)
        else:
            behind.append(ticket)
        return ticket

    def register(self, most: int) -> list[Ticket]:
        """Moves tickets forward until ``most`` of each workload are registered. Returns those moved."""
        moved = []
        for workload in WORKLOADS:
            behind, registered = self._behind[workload], self._registered[workload]
            while behind and len(registered) < most:
                ticket = behind.popleft()
                if ticket.place is Place.CANCELLED:
                    self._gone[workload] -= 1
                    continue
                if ticket.future.done():
                    ticket.place = Place.OUT
                    continue
                ticket.place = Place.REGISTERED
                registered[ticket.id] = ticket
                moved.append(ticket)
        return moved

    def wants_registering(self, most: int) -> bool:
        """Whether it is worth a turn of its own to register more: the first ones, then only when half have gone."""
        return any(
            len(self._behind[workload]) > self._gone[workload] and len(self._registered[workload]) <= most // 2
            for workload in WORKLOADS
        )

    def cancel(self, ticket: Ticket) -> bool:
        """Takes out a ticket whose future is done. True when Redis knows of it."""
        if ticket.place is Place.REGISTERED:
            del self._registered[ticket.workload][ticket.id]
            ticket.place = Place.OUT
            return True
        if ticket.place is Place.BEHIND:
            ticket.place = Place.CANCELLED
            self._gone[ticket.workload] += 1
        return False

    def pop(self, ticket: str) -> Ticket | None:
        """The registered ticket of a grant, taken out."""
        for registered in self._registered.values():
            if (found := registered.pop(ticket, None)) is not None:
                found.place = Place.OUT
                return found
        return None

    def registered(self) -> Iterator[Ticket]:
        for registered in self._registered.values():
            yield from registered.values()

    def behind(self, workload: Workload) -> int:
        """How many wait that Redis does not know of."""
        return len(self._behind[workload]) - self._gone[workload]

    def count(self, workload: Workload) -> int:
        return len(self._registered[workload]) + self.behind(workload)

    def __bool__(self) -> bool:
        return any(self.count(workload) for workload in WORKLOADS)

    def drain(self) -> list[Ticket]:
        """Everything that waits, taken out."""
        tickets = [*self.registered()]
        for workload in WORKLOADS:
            tickets += [ticket for ticket in self._behind[workload] if not ticket.future.done()]
            self._behind[workload].clear()
            self._registered[workload].clear()
            self._gone[workload] = 0
        for ticket in tickets:
            ticket.place = Place.OUT
        return tickets
