"""How many prompts a request should carry. Pure: latencies and times are told, nothing is measured here.

In the long run: the fewest prompts that come within 2 % of the best rate, where the rate is what slots and starts
allow, ``prompts / max(latency / slots, 1 / starts)``. Bounded by the profile, by a fraction of the request's timeout,
and by a multiple of the sizes that have come back so far: a fit is believed only so far beyond what was seen.

At the end: all that is left is dealt into so many requests that the slots, each from when it comes free, end together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from brimful.packing import Shape
from brimful.run.latency import Latency
from brimful.run.pace import Limits

START_TOKENS = 1024
"""Size of the requests sent before anything is known of the latency (a single prompt may be larger)."""
START_PROMPTS = 64
_TIMEOUT_SHARE = 0.4
_WITHIN = 0.98
_STEP = 1.15
_REACH = 16
"""Times the largest size seen that a request may have, once three sizes have been seen; 4 before."""
_MODELS = 64


class Tuner:
    """Learns from every request that ended; asked before every request that is sent."""

    def __init__(self, limits: Limits, timeout_s: float) -> None:
        self.limits = limits
        self._longest_s = _TIMEOUT_SHARE * timeout_s
        self._models: dict[str, Latency] = {}
        self.most: int | None = None
        """Prompts per request from which on requests were refused for lack of budget."""

    def latency(self, model: str) -> Latency:
        found = self._models.get(model)
        if found is None:
            while len(self._models) >= _MODELS:
                del self._models[next(iter(self._models))]
            found = self._models[model] = Latency()
        return found

    def seconds(self, shape: Shape, prompts: int) -> float | None:
        """Predicted on the wire; None where nothing is known."""
        found = self._models.get(shape.model)
        return None if found is None else found.predict(shape.max_tokens, prompts * shape.n)

    def known(self, shape: Shape) -> bool:
        found = self._models.get(shape.model)
        return found is not None and found.known

    def start(self, shape: Shape) -> int:
        """Prompts of a request of which nothing is known."""
        size = shape.n * (shape.max_tokens or 256)
        return max(1, min(shape.limit, START_PROMPTS, START_TOKENS // size, self.most or START_PROMPTS))

    def most_prompts(self, shape: Shape) -> int:
        """What a request of this shape may carry, given what is known so far."""
        if not self.known(shape):
            return self.start(shape)
        latency = self._models[shape.model]
        size = shape.n * (shape.max_tokens or 256)
        reach = (_REACH if latency.sizes >= 3 else 4) * latency.largest
        if latency.ceiling is not None:
            reach = min(reach, latency.ceiling)
        most = max(1, min(shape.limit, reach // size, self.most or shape.limit))
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if (self.seconds(shape, middle) or 0.0) <= self._longest_s:
                low = middle
            else:
                high = middle - 1
        return low

    def best(self, shape: Shape) -> int:
        """For the long run, as long as there is plenty left."""
        most = self.most_prompts(shape)
        if not self.known(shape):
            return most
        sizes = sorted({1, most, *(min(most, int(size)) for size in _geometric(most))})
        rates = [size / max(self._seconds(shape, size) / self.limits.slots, self._start_s) for size in sizes]
        enough = _WITHIN * max(rates)
        return next(size for size, rate in zip(sizes, rates, strict=True) if rate >= enough)

    def _seconds(self, shape: Shape, prompts: int) -> float:
        return self.seconds(shape, prompts) or 0.0

    @property
    def _start_s(self) -> float:
        """Seconds between starts in the long run."""
        return 1e-6 if self.limits.starts is None else self.limits.window_s / self.limits.starts


def _geometric(most: int) -> list[float]:
    sizes, size = [], 1.0
    while size < most:
        sizes.append(size)
        size *= _STEP
    return sizes


# -- the end of a run ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lot:
    """All that is left of one shape."""

    count: int
    most: int
    """Prompts per request."""
    seconds: Callable[[int], float]
    """Predicted for a request of so many prompts; any unit of work will do where nothing is known."""


def deal_out(
    lots: Sequence[Lot], free: Sequence[float], starts_left: int | None, start_s: float, waves: int
) -> list[int]:
    """Prompts per request for each lot, such that everything ends soonest.

    ``free``: seconds until each slot is free. ``waves``: how many times as many requests as slots to consider; 0: just
    one request for each slot, if that is possible. Greedy: the request that takes longest is parted, again and again,
    and the number of requests with the earliest end is kept.
    """
    counts = [-(-lot.count // lot.most) for lot in lots]
    slots = len(free)
    fewest = sum(counts)
    total = sum(lot.count for lot in lots)
    target = min(total, max(fewest, slots) if waves == 0 else max(fewest + slots, waves * slots))
    heap = [
        (-lot.seconds(-(-lot.count // count)), place)
        for place, (lot, count) in enumerate(zip(lots, counts, strict=True))
    ]
    heapq.heapify(heap)
    best, best_end = list(counts), _end(lots, counts, free, starts_left, start_s)
    requests = fewest
    while requests < target:
        _, place = heap[0]
        if counts[place] >= lots[place].count:
            break
        counts[place] += 1
        requests += 1
        heapq.heapreplace(heap, (-lots[place].seconds(-(-lots[place].count // counts[place])), place))
        if waves == 0:
            best = list(counts)
            continue
        end = _end(lots, counts, free, starts_left, start_s)
        if end < 0.995 * best_end:
            best, best_end = list(counts), end
    return [-(-lot.count // count) for lot, count in zip(lots, best, strict=True)]


def _end(
    lots: Sequence[Lot], counts: Sequence[int], free: Sequence[float], starts_left: int | None, start_s: float
) -> float:
    """When the last of the requests ends: longest first, each to the slot that is free first."""
    requests: list[float] = []
    for lot, count in zip(lots, counts, strict=True):
        size, larger = divmod(lot.count, count)
        if larger:
            requests += [lot.seconds(size + 1)] * larger
        requests += [lot.seconds(size)] * (count - larger)
    requests.sort(reverse=True)
    slots = list(free)
    heapq.heapify(slots)
    end = 0.0
    for place, seconds in enumerate(requests):
        begin = slots[0]
        if starts_left is not None and place >= starts_left:
            begin = max(begin, (place - starts_left + 1) * start_s)
        heapq.heapreplace(slots, begin + seconds)
        end = max(end, begin + seconds)
    return end
