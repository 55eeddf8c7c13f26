"""Whose turn it is among the flows of one queue: weighted fair queueing by number of grants. Pure.

A *flow* is what shares evenly with others, such as a run. Of the flows that wait, the one that was served least for its
weight is next (start-time fair queueing); within a flow, who came first. A flow that comes, or comes back, gets its
share from now on and nothing for the past.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Generic, NamedTuple, Protocol, TypeVar


class Flow(NamedTuple):
    """What a waiter belongs to."""

    name: str = ""
    weight: float = 1.0
    """Above 0: twice the weight, twice the grants."""


NO_FLOW = Flow()
_SLACK = 4.0
"""Grants, at weight 1, by which a flow may be ahead. Giving a grant to another than it came for costs a command."""


class InFlow(Protocol):
    """A waiter, as far as its turn depends on it."""

    flow: Flow
    future: asyncio.Future[Any]
    """Done: it does not wait any more."""


W = TypeVar("W", bound=InFlow)


class _Waiting(Generic[W]):
    """The waiters of one flow, oldest first."""

    __slots__ = ("served", "waiters")

    def __init__(self, served: float) -> None:
        self.served = served
        """Virtual time: grants so far divided by the weight, plus what it missed while it did not wait."""
        self.waiters: OrderedDict[W, None] = OrderedDict()


class Turns(Generic[W]):
    """One queue's, of one process."""

    def __init__(self) -> None:
        self._flows: dict[str, _Waiting[W]] = {}
        self._now = 0.0
        """Virtual time: the least of the flows that waited when the last grant came."""

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
        """Without a grant."""
        flow = self._flows.get(waiter.flow.name)
        if flow is not None:
            flow.waiters.pop(waiter, None)

    def next(self, waiter: W) -> W:
        """Who is to have a grant that came for ``waiter``: it itself, unless its flow is ahead by _SLACK."""
        own = self._flows[waiter.flow.name]
        chosen, least = waiter, own.served
        for flow in self._flows.values() if len(self._flows) > 1 else ():
            if flow.served < least and (first := _first(flow)) is not None:
                chosen, least = first, flow.served
        self._now = max(self._now, least)
        return chosen if least < own.served - _SLACK else waiter

    def serve(self, waiter: W) -> None:
        """The waiter gets a grant."""
        flow = self._flows.get(waiter.flow.name)
        if flow is None:
            return
        flow.waiters.pop(waiter, None)
        flow.served += 1 / waiter.flow.weight

    def clear(self) -> None:
        self._flows.clear()

    def _forget(self) -> None:
        """Flows that do not wait, once coming back would be no different from coming first."""
        gone = [name for name, flow in self._flows.items() if not flow.waiters and flow.served <= self._now]
        for name in gone:
            del self._flows[name]


def _first(flow: _Waiting[W]) -> W | None:
    """Those that gave up are dropped; :meth:`Turns.remove` follows."""
    while flow.waiters:
        waiter = next(iter(flow.waiters))
        if not waiter.future.done():
            return waiter
        del flow.waiters[waiter]
    return None
