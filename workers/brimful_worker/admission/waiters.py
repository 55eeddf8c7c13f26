"""Waiters: who waits, and those of them that Redis knows of."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from enum import Enum, StrEnum

from brimful.names import Workload
from brimful_worker.admission.lease import Lease
from brimful_worker.liveness.boot_time import boot_time


class Queue(StrEnum):
    """What is waited for, and in which of Redis's queues; the value is part of the ticket's id."""

    START_ONLY = "s"
    """A start without a slot: first of all, since who waits for it holds a slot already."""
    INTERACTIVE = "i"
    BATCH = "b"


def is_start_only(ticket: str) -> bool:
    """Of a ticket's id."""
    return ticket.split(".", 2)[1] == Queue.START_ONLY


WORKLOADS = {Workload.INTERACTIVE: Queue.INTERACTIVE, Workload.BATCH: Queue.BATCH}
_CANCELLED_MOST = 64
"""More cancelled tickets than that, and than live ones, are cleared away."""


class Place(Enum):
    """Where a ticket is."""

    BEHIND = 1
    REGISTERED = 2
    CANCELLED = 3
    """Still in the queue of those behind, to be passed over."""
    OUT = 4


class Waiter:
    """One wish for a slot. Its id is also the grant's and the lease's, and is never used again."""

    __slots__ = ("future", "id", "place", "queue", "since", "tokens")

    def __init__(self, ticket: str, queue: Queue, tokens: int, since: float, future: asyncio.Future[Lease]):
        self.id = ticket
        self.queue = queue
        self.tokens = tokens
        self.since = since
        """On :func:`.boot_time`."""
        self.future = future
        self.place = Place.BEHIND

    @property
    def waited_ms(self) -> int:
        return max(0, round((boot_time() - self.since) * 1000))


class Waiting:
    """All tickets of one process, oldest first; the first few are registered in Redis, the others cost it nothing."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._number = 0
        self._behind: dict[Queue, deque[Waiter]] = {queue: deque() for queue in Queue}
        self._gone: dict[Queue, int] = dict.fromkeys(Queue, 0)  # cancelled ones still in the deque
        self._registered: dict[Queue, dict[str, Waiter]] = {queue: {} for queue in Queue}

    def add(self, queue: Queue, tokens: int, since: float, future: asyncio.Future[Lease]) -> Waiter:
        """A new ticket at the end, or at the front when its wait began long ago (a stale grant asked anew)."""
        self._number += 1
        ticket = Waiter(f"{self._process}.{queue.value}.{self._number:09d}.{tokens}", queue, tokens, since, future)
        behind = self._behind[queue]
        if behind and since < behind[0].since:
            behind.appendleft(ticket)
        else:
            behind.append(ticket)
        return ticket

    def register(self, most: int) -> list[Waiter]:
        """Moves tickets forward until ``most`` of each queue are registered. Returns those moved."""
        moved = []
        for queue in Queue:
            behind, registered = self._behind[queue], self._registered[queue]
            while behind and len(registered) < most:
                ticket = behind.popleft()
                if ticket.place is Place.CANCELLED:
                    self._gone[queue] -= 1
                    continue
                if ticket.future.done():
                    ticket.place = Place.OUT
                    continue
                ticket.place = Place.REGISTERED
                registered[ticket.id] = ticket
                moved.append(ticket)
        return moved

    def wants_registering(self, queue: Queue, most: int) -> bool:
        """Whether it is worth a turn of its own to register more: the first ones, then only when half have gone."""
        return len(self._registered[queue]) <= most // 2 and len(self._behind[queue]) > self._gone[queue]

    def cancel(self, ticket: Waiter) -> bool:
        """Takes out a ticket whose future is done. True when Redis knows of it."""
        if ticket.place is Place.REGISTERED:
            del self._registered[ticket.queue][ticket.id]
            ticket.place = Place.OUT
            return True
        if ticket.place is Place.BEHIND:
            ticket.place = Place.CANCELLED
            self._gone[ticket.queue] += 1
            self._clear(ticket.queue)
        return False

    def _clear(self, queue: Queue) -> None:
        """Where nothing is granted for long, waits that are given up again and again must not pile up."""
        behind = self._behind[queue]
        if self._gone[queue] > max(_CANCELLED_MOST, len(behind) // 2):
            self._behind[queue] = deque(ticket for ticket in behind if ticket.place is not Place.CANCELLED)
            self._gone[queue] = 0

    def pop(self, ticket: str) -> Waiter | None:
        """The registered ticket of a grant, taken out."""
        for registered in self._registered.values():
            if (found := registered.pop(ticket, None)) is not None:
                found.place = Place.OUT
                return found
        return None

    def registered(self) -> Iterator[Waiter]:
        for registered in self._registered.values():
            yield from registered.values()

    def behind(self, queue: Queue) -> int:
        """How many wait that Redis does not know of."""
        return len(self._behind[queue]) - self._gone[queue]

    def count(self, queue: Queue) -> int:
        return len(self._registered[queue]) + self.behind(queue)

    def __bool__(self) -> bool:
        return any(self.count(queue) for queue in Queue)

    def drain(self) -> list[Waiter]:
        """Everything that waits, taken out."""
        tickets = [ticket for ticket in self.registered() if not ticket.future.done()]
        for queue in Queue:
            tickets += [ticket for ticket in self._behind[queue] if not ticket.future.done()]
            self._behind[queue].clear()
            self._registered[queue].clear()
            self._gone[queue] = 0
        for ticket in tickets:
            ticket.place = Place.OUT
        return tickets
