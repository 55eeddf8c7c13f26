"""Which of a process's waiters gets the next grant: weighted fair queueing among flows, by number of grants. Pure.

A *flow* is a set of requests that shares grants with others by weight, such as a run. The next grant goes to the
waiting flow that was served least for its weight (start-time fair queueing), and within it to the waiter that came
first. A flow that begins to wait, or waits again, gets its share from then on and nothing for the past.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar


class Flow(NamedTuple):
    """The flow of a waiter."""

    name: str = ""
    weight: float = 1.0
    """Above 0: twice the weight, twice the grants."""


NO_FLOW = Flow()
_SLACK = 4.0
"""Grants, at weight 1, by which a flow may be ahead. Giving a grant to another than it came for costs a command."""


class InFlow(Protocol):
    """A waiter, as far as its turn depends on it."""

    flow: Flow
    since: float
    future: asyncio.Future[Any]
    """Done: it does not wait any more."""


class Demand(NamedTuple):
    """What waits of one flow."""

    weight: float
    number: int
    since: float
    """The mean of its waiters."""


W = TypeVar("W", bound=InFlow)


class _Waiting(Generic[W]):
    """The waiters of one flow, oldest first."""

    __slots__ = ("served", "waiters")

    def __init__(self, served: float) -> None:
        self.served = served
        """Virtual time: grants so far divided by the weight, plus what it missed while it did not wait."""
        self.waiters: OrderedDict[W, None] = OrderedDict()


class Turns(Generic[W]):
    """The flows of one queue in one process."""

    def __init__(self) -> None:
        self._flows: dict[str, _Waiting[W]] = {}
        self._now = 0.0
        """Virtual time: the least of the flows that waited when the last grant came."""
        self.granted: Counter[Flow] | None = None
        """Grants by flow, for whoever shares them with other processes, and empties it; None: they are not counted."""

    def add(self, waiter: W, *, in_front: bool = False) -> None:
        flow = self._flows.get(waiter.flow.name)
        if flow is None:
            self._forget()
            flow = self._flows[waiter.flow.name] = _Waiting(self._now)
        elif not flow.waiters:
            flow.served = max(flow.served, self._now)
        flow.waiters[waiter] = None
        if in_front:
            flow.waiters.move_to_end(waiter, last=False)

    def remove(self, waiter: W) -> None:
        """Remove a waiter that gets no grant."""
        flow = self._flows.get(waiter.flow.name)
        if flow is not None:
            flow.waiters.pop(waiter, None)

    def next(self, waiter: W) -> W:
        """The waiter that gets a grant that came for ``waiter``: that one, unless its flow is ahead by _SLACK."""
        own = self._flows[waiter.flow.name]
        chosen, least = waiter, own.served
        for flow in self._flows.values() if len(self._flows) > 1 else ():
            if flow.served < least and (first := _first(flow)) is not None:
                chosen, least = first, flow.served
        self._now = max(self._now, least)
        return chosen if least < own.served - _SLACK else waiter

    def serve(self, waiter: W) -> None:
        """Count a grant for the waiter's flow, and remove the waiter."""
        flow = self._flows.get(waiter.flow.name)
        if flow is None:
            return
        flow.waiters.pop(waiter, None)
        flow.served += 1 / waiter.flow.weight
        if self.granted is not None:
            self.granted[waiter.flow] += 1

    def demands(self) -> dict[str, Demand]:
        """By flow, of those that have waiters."""
        found = {}
        for name, flow in self._flows.items():
            if flow.waiters:
                last = next(reversed(flow.waiters))
                since = sum(waiter.since for waiter in flow.waiters) / len(flow.waiters)
                found[name] = Demand(last.flow.weight, len(flow.waiters), since)
        return found

    def correct(self, served: Mapping[str, float], now: float) -> None:
        """Take over the virtual times of all processes, which contain all grants that :attr:`granted` does not."""
        self._now = now
        for name, flow in self._flows.items():
            flow.served = served.get(name, now)
        for each, count in (self.granted or {}).items():
            if (found := self._flows.get(each.name)) is not None:
                found.served += count / each.weight

    def clear(self) -> None:
        self._flows.clear()

    def _forget(self) -> None:
        """Remove the flows without waiters that are not ahead: nothing about them needs to be remembered."""
        gone = [name for name, flow in self._flows.items() if not flow.waiters and flow.served <= self._now]
        for name in gone:
            del self._flows[name]


def _first(flow: _Waiting[W]) -> W | None:
    """The oldest that still waits. Drops those that gave up, for which :meth:`Turns.remove` follows."""
    while flow.waiters:
        waiter = next(iter(flow.waiters))
        if not waiter.future.done():
            return waiter
        del flow.waiters[waiter]
    return None
