"""Coroutines that wait for a grant, and those of them that are registered in Redis."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum

from brimful.names import Workload
from brimful_worker.admission.lease import Lease
from brimful_worker.admission.places import Places
from brimful_worker.admission.turns import Flow, Turns
from brimful_worker.liveness.boot_time import boot_time


class Queue(StrEnum):
    """The queue of a waiter in Redis; the value is part of its ticket."""

    START_ONLY = "s"
    """For a start without a slot. Served first: who waits here holds a slot already."""
    INTERACTIVE = "i"
    BATCH = "b"


WORKLOADS = {Workload.INTERACTIVE: Queue.INTERACTIVE, Workload.BATCH: Queue.BATCH}


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def name_of(ticket: str) -> str:
    """The name in the ticket; empty if there is none."""
    return ticket.split(".", 3)[2].partition("-")[2]


def is_start_only(ticket: str) -> bool:
    return ticket.split(".", 2)[1] == Queue.START_ONLY


class Waiter:
    """One coroutine's request for a grant. Its ticket, ``id``, is also the grant's and the lease's; none is reused."""

    __slots__ = ("flow", "future", "id", "name", "place", "queue", "since", "tokens")

    def __init__(
        self,
        ticket: str,
        digest: str,
        queue: Queue,
        flow: Flow,
        tokens: int,
        since: float,
        future: asyncio.Future[Lease],
    ) -> None:
        self.id = ticket
        """Changes when another waiter of this process has its turn first: they exchange tickets."""
        self.name = digest
        """Digest of its request's name, as in the ticket; empty without one."""
        self.flow = flow
        self.queue = queue
        self.tokens = tokens
        self.since = since
        """On ``boot_time()``."""
        self.place = since
        """Since when it waits as far as Redis knows, which grants in this order; the ticket's rather than its own."""
        self.future = future

    @property
    def age_ms(self) -> int:
        """Of its place; negative if that is behind those that come now."""
        return round((boot_time() - self.place) * 1000)


class Waiters:
    """All waiters of one process, oldest first. Redis knows the first few of each queue; the others cost it nothing."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._number = 0
        self._behind: dict[Queue, OrderedDict[str, Waiter]] = {queue: OrderedDict() for queue in Queue}
        self._registered: dict[Queue, dict[str, Waiter]] = {queue: {} for queue in Queue}
        self.turns: dict[Queue, Turns[Waiter]] = {queue: Turns() for queue in WORKLOADS.values()}
        self.places: dict[Queue, Places] = {}
        """Of the queues in which this process's waiters are not registered with their own times."""

    def add(
        self,
        queue: Queue,
        flow: Flow,
        tokens: int,
        since: float,
        future: asyncio.Future[Lease],
        name: str = "",
    ) -> Waiter:
        """A new waiter at the end, or at the front if it has waited since long ago (its last grant was given back).

        ``name``: its request's, for which Redis counts the processes that die while they hold it.
        """
        digest = _digest(name) if name else ""
        waiter = Waiter(self._ticket(queue, digest, tokens), digest, queue, flow, tokens, since, future)
        behind = self._behind[queue]
        in_front = bool(behind) and since < next(iter(behind.values())).since
        behind[waiter.id] = waiter
        if in_front:
            behind.move_to_end(waiter.id, last=False)
        if (turns := self.turns.get(queue)) is not None:
            turns.add(waiter, in_front=in_front)
        return waiter

    def register(self, most: int) -> list[Waiter]:
        """Move waiters forward until ``most`` of each queue are registered. Returns those moved."""
        moved = []
        for queue in Queue:
            behind, registered = self._behind[queue], self._registered[queue]
            places = self.places.get(queue)
            while behind and len(registered) < most:
                _, waiter = behind.popitem(last=False)
                if not waiter.future.done():
                    waiter.place = waiter.since if places is None else places.since(len(registered))
                    registered[waiter.id] = waiter
                    moved.append(waiter)
        return moved

    def wants_registering(self, queue: Queue, most: int) -> bool:
        """Whether registering more is worth a command: at first, then whenever half of the registered have gone."""
        return len(self._registered[queue]) <= most // 2 and bool(self._behind[queue])

    def withdraw(self, queue: Queue, tolerance_s: float) -> list[str]:
        """Put registered waiters back whose place is not what :attr:`places` says, to be registered under new tickets.

        Returns the tickets that Redis must forget. If one of them is granted meanwhile, nobody waits for the grant.
        """
        registered, behind, places = self._registered[queue], self._behind[queue], self.places[queue]
        there = sorted(registered.values(), key=lambda waiter: waiter.place)
        wrong = [
            waiter
            for position, waiter in enumerate(there)
            if not waiter.future.done() and abs(waiter.place - places.since(position)) > tolerance_s
        ]
        tickets = [waiter.id for waiter in wrong]
        for waiter in reversed(wrong):
            del registered[waiter.id]
            waiter.id = self._ticket(queue, waiter.name, waiter.tokens)
            behind[waiter.id] = waiter
            behind.move_to_end(waiter.id, last=False)
        return tickets

    def _ticket(self, queue: Queue, digest: str, tokens: int) -> str:
        self._number += 1
        return f"{self._process}.{queue}.{self._number:09d}{'-' if digest else ''}{digest}.{tokens}"

    def cancel(self, waiter: Waiter) -> bool:
        """Remove a waiter whose future is done. True if Redis knows it."""
        if (turns := self.turns.get(waiter.queue)) is not None:
            turns.remove(waiter)
        self._behind[waiter.queue].pop(waiter.id, None)
        return self._registered[waiter.queue].pop(waiter.id, None) is not None

    def pop(self, ticket: str) -> Waiter | None:
        """Remove the registered waiter that has this ticket."""
        for queue, registered in self._registered.items():
            if (found := registered.pop(ticket, None)) is not None:
                if (turns := self.turns.get(queue)) is not None:
                    turns.remove(found)
                return found
        return None

    def take(self, ticket: str, *, same_tokens: bool) -> Waiter | None:
        """Remove and return the waiter that gets this ticket's grant; None if the ticket's own waiter is gone.

        It is the one whose turn it is in this process (:mod:`.turns`). If that is another than the ticket's own, the
        two exchange tickets and places.

        ``same_tokens``: tokens are limited and counted by the ticket, so that only waiters for as many may exchange.
        """
        for queue, registered in self._registered.items():
            if (own := registered.pop(ticket, None)) is None:
                continue
            if (turns := self.turns.get(queue)) is None:
                return own
            chosen = own if own.future.done() else turns.next(own)
            if chosen is not own and same_tokens and chosen.tokens != own.tokens:
                chosen = own
            if chosen is not own:
                there = registered if chosen.id in registered else self._behind[queue]
                there[chosen.id] = own
                own.id, chosen.id = chosen.id, ticket
                own.place, chosen.place = chosen.place, own.place
            turns.serve(chosen)
            if (places := self.places.get(queue)) is not None:
                places.granted += 1
            return chosen
        return None

    def registered(self) -> Iterator[Waiter]:
        for registered in self._registered.values():
            yield from registered.values()

    def behind(self, queue: Queue) -> int:
        """Number of waiters that Redis does not know."""
        return len(self._behind[queue])

    def count(self, queue: Queue) -> int:
        return len(self._registered[queue]) + len(self._behind[queue])

    def __len__(self) -> int:
        return sum(self.count(queue) for queue in Queue)

    def drain(self) -> list[Waiter]:
        """Remove all; returns those whose future is not done."""
        waiters = list(self.registered())
        for queue in Queue:
            waiters += self._behind[queue].values()
            self._behind[queue].clear()
            self._registered[queue].clear()
        for turns in self.turns.values():
            turns.clear()
        return [waiter for waiter in waiters if not waiter.future.done()]
