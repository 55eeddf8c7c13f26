"""The order in which the waiters of several front doors should get the next grants, from what each has reported. Pure.

It is start-time fair queueing over all of them: each grant goes to the flow with the least virtual time, which it
raises by the reciprocal of the flow's weight. The place of a waiter in the fleet's queue, which is a time, follows from
the number of waiters before it. The places of all waiters together are as old as their arrivals, so that callers as a
whole neither gain nor lose places against workers and runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice

_LEAST_SPREAD_S = 0.2
"""Between the first and the last place: what came at one moment is put into an order, too."""
_MOST_PLACES = 64
"""Places that are computed; those between them are alike."""

Waiting = Mapping[str, tuple[float, int, float]]
"""What waits at one front door: flow → weight, number, mean age in milliseconds."""


class Order:
    """The order of the waiters of all front doors."""

    def __init__(self, waiting: Mapping[str, Waiting], served: Mapping[str, float]) -> None:
        """``waiting``: by front door. ``served``: the virtual times of the flows."""
        self._waiting = waiting
        self._served = served
        self._numbers: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        age_ms = 0.0
        for here in waiting.values():
            for flow, (weight, number, mean_ms) in here.items():
                self._numbers[flow] = self._numbers.get(flow, 0) + number
                self._weights[flow] = weight
                age_ms += number * mean_ms
        self._number = max(1, sum(self._numbers.values()))
        self._oldest_s = 2 * age_ms / self._number / 1000
        self._spread_s = max(self._oldest_s, _LEAST_SPREAD_S)

    def concerns(self, door: str) -> bool:
        """Whether it decides about the waiters of this front door: there are others, and several callers. The requests
        of a single one keep the order in which they came."""
        return door in self._waiting and len(self._waiting) > 1 and len(self._numbers) > 1

    @property
    def tolerance_s(self) -> float:
        """Seconds by which a registered waiter's place may be wrong before it is registered again."""
        return self._spread_s / 8

    def ages(self, door: str, most: int) -> tuple[list[float], int]:
        """The places of a front door's waiters, as seconds of waiting: of the first, and of each ``step``-th up to
        ``most``. Returns them and the step.

        Front doors at which one flow waits take turns, in proportion to their numbers of its waiters.
        """
        step = max(1, most // _MOST_PLACES)
        tags = heapq.merge(*(self._tags(door, flow) for flow in self._waiting[door]))
        found = [
            self._oldest_s - self._spread_s * self._before(tag) / self._number for tag in islice(tags, 0, most, step)
        ]
        return found or [0.0], step

    def _tags(self, door: str, flow: str) -> Iterator[float]:
        """The virtual times at which the flow's waiters at this front door are served."""
        weight, number, _ = self._waiting[door][flow]
        each = self._numbers[flow] / number / weight
        for index in range(number):
            yield self._served.get(flow, 0.0) + index * each

    def _before(self, tag: float) -> float:
        """Number of waiters, of all front doors, that are served before this virtual time."""
        return sum(
            min(number, max(0.0, (tag - self._served.get(flow, 0.0)) * self._weights[flow]))
            for flow, number in self._numbers.items()
        )
