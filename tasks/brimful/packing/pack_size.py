"""How many prompts a request should carry. Pure: latencies and times are told, nothing is measured here.

In the long run: the fewest prompts that come within 2 % of the best rate, where the rate is what slots and starts
allow, ``prompts / max(latency / slots, 1 / starts)``. Bounded by the profile, by a fraction of the request's timeout,
and by a multiple of the sizes that have come back so far: a fit is believed only so far beyond what was seen.

At the end: all that is left is dealt into so many requests that the slots, each from when it comes free, end together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from brimful.packing.latency import Latency
from brimful.packing.packing import PackKey
from brimful.packing.slot_model import Limits

START_TOKENS = 4096
"""Size of the requests sent before anything is known of the latency (a single prompt may be larger), and of prompts."""
START_PROMPTS = 128
_SLOWEST = 100.0
"""Tokens a second, all choices together, that any provider is taken to generate for a request of unknown latency."""
_TIMEOUT_SHARE = 0.4
_WITHIN = 0.98
_STEP = 1.15
_OWN_S = 0.005
"""What a request costs the fleet itself: with none to the limits, fewer and larger ones are better all the same."""
_REACH = 16
"""Times the largest size seen that a request may have, once three sizes have been seen; 4 before."""
BLIND_WAVES = 6
_LATER = [(later, gaps) for gaps in (False, True) for later in (1.0, 1.01, 1.02)] + [(1.04, True), (1.1, True)]
"""Times as long as single prompts, should packing not pay, and whether to fill gaps: the first of these that does."""
_MODELS = 64
_SHAPES = 4096


class PackSizer:
    """Learns from every request that ended; asked before every request that is sent."""

    def __init__(self, limits: Limits, timeout_s: float) -> None:
        self.limits = limits
        self._timeout_s = timeout_s
        self._longest_s = _TIMEOUT_SHARE * timeout_s
        self._models: dict[str, Latency] = {}
        self._best: dict[tuple[str, int, int | None, int], tuple[int, int | None, int]] = {}
        self.max_prompts: int | None = None
        """Prompts per request from which on requests were refused for lack of budget."""

    def latency(self, model: str) -> Latency:
        found = self._models.get(model)
        if found is None:
            while len(self._models) >= _MODELS:
                del self._models[next(iter(self._models))]
            found = self._models[model] = Latency()
        return found

    def seconds(self, pack_key: PackKey, prompts: int) -> float | None:
        """Predicted on the wire, for a request of so many prompts; None where nothing is known."""
        found = self._models.get(pack_key.model)
        return None if found is None else found.predict(pack_key.max_tokens, prompts * pack_key.n)

    def predicted_s(self, pack_key: PackKey, prompts: int) -> float:
        """Seconds on the wire, to reckon with: 0.0 where nothing is known, so ask :meth:`known` first."""
        return self.seconds(pack_key, prompts) or 0.0

    @property
    def between_starts_s(self) -> float:
        """Seconds between starts in the long run, by the limit or by what a small fleet manages; never 0."""
        return _OWN_S if self.limits.starts is None else max(_OWN_S, self.limits.window_s / self.limits.starts)

    def known(self, pack_key: PackKey) -> bool:
        found = self._models.get(pack_key.model)
        return found is not None and found.known

    @property
    def start_tokens(self) -> int:
        return min(START_TOKENS, int(_SLOWEST * self._longest_s))

    def start(self, pack_key: PackKey) -> int:
        """Prompts of a request of which nothing is known."""
        size = pack_key.n * (pack_key.max_tokens or 256)
        return max(1, min(pack_key.limit, START_PROMPTS, self.start_tokens // size, self.max_prompts or START_PROMPTS))

    def most_prompts(self, pack_key: PackKey) -> int:
        """What a request of this pack_key may carry, given what is known so far."""
        if not self.known(pack_key):
            return self.start(pack_key)
        latency = self._models[pack_key.model]
        size = pack_key.n * (pack_key.max_tokens or 256)
        reach = (_REACH if latency.sizes >= 3 else 4) * latency.largest
        if latency.ceiling is not None:
            reach = min(reach, latency.ceiling)
        most = max(1, min(pack_key.limit, reach // size, self.max_prompts or pack_key.limit))
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.predicted_s(pack_key, middle) <= self._longest_s:
                low = middle
            else:
                high = middle - 1
        return low

    def exceeds_timeout(self, pack_key: PackKey, prompts: int) -> bool:
        """Whether such a request, of several prompts, is sure to run into its timeout."""
        return prompts > 1 and self.known(pack_key) and self.predicted_s(pack_key, prompts) > self._timeout_s

    def best(self, pack_key: PackKey) -> int:
        """For the long run, as long as there is plenty left."""
        found = self._models.get(pack_key.model)
        learnt = found.learnt if found is not None else 0
        about = (pack_key.model, pack_key.n, pack_key.max_tokens, pack_key.limit)
        known = self._best.get(about)
        if known is None or known[:2] != (learnt, self.max_prompts):
            if len(self._best) >= _SHAPES:
                self._best.clear()
            known = self._best[about] = (learnt, self.max_prompts, self._find_best(pack_key))
        return known[2]

    def _find_best(self, pack_key: PackKey) -> int:
        most = self.most_prompts(pack_key)
        if not self.known(pack_key):
            return most
        sizes = sorted({1, most, *(min(most, int(size)) for size in _geometric(most))})
        rates = [
            size / max(self.predicted_s(pack_key, size) / self.limits.slots, self.between_starts_s) for size in sizes
        ]
        enough = _WITHIN * max(rates)
        return next(size for size, rate in zip(sizes, rates, strict=True) if rate >= enough)


def _geometric(most: int) -> list[float]:
    sizes, size = [], 1.0
    while size < most:
        sizes.append(size)
        size *= _STEP
    return sizes


# -- the end of a run ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lot:
    """All that is left of one pack_key."""

    count: int
    most: int
    """Prompts per request."""
    seconds: Callable[[int], float]
    """Predicted for a request of so many prompts; any unit of work will do where nothing is known."""


def fill_up(lot: Lot, free: Sequence[float]) -> int:
    """Prompts for the next request, which goes to the slot that is free first, where all that is left is of one lot.

    Finds the time at which the lot is done if every slot works until then, in as few requests as its size allows; the
    next request is the first of its slot's.
    """
    one, full = lot.seconds(1), lot.seconds(lot.most)
    each = max((full - one) / (lot.most - 1), 1e-9) if lot.most > 1 else 1e-9

    def share(seconds: float) -> tuple[int, int]:
        """Requests that a slot makes in so many seconds, and prompts of each."""
        if seconds < one:
            return 0, 0
        requests = max(1, math.ceil(seconds / full - 1e-9))
        prompts = int(1 + (seconds / requests - one) / each + 1e-9)
        return (requests, min(prompts, lot.most)) if prompts >= 1 else (int(seconds / one), 1)

    low, high = min(free), max(free) + full * (1 + lot.count / (lot.most * len(free))) + one
    for _ in range(40):
        middle = (low + high) / 2
        if sum(math.prod(share(middle - begin)) for begin in free) >= lot.count:
            high = middle
        else:
            low = middle
    return max(1, share(high - min(free))[1])


def deal_out(
    lots: Sequence[Lot], free: Sequence[float], starts_left: int | None, start_s: float, waves: int
) -> list[int]:
    """Prompts per request for each lot, such that everything ends soonest.

    ``free``: seconds until each slot is free. ``waves``: how many times as many requests as slots to consider at most.
    """
    best: list[int] = []
    best_end = math.inf
    for counts in _parted(lots, waves * len(free)):
        end = _end(lots, counts, free, starts_left, start_s)
        if end < 0.995 * best_end:
            best, best_end = list(counts), end
    return _sizes(lots, best)


def deal_blind(lots: Sequence[Lot], slots: int) -> list[tuple[int, int]]:
    """As :func:`deal_out` while nothing is known of the latency; ``seconds`` are units of work.

    Returns the lot's place and the prompts of each request, in the order in which to send them. Should the latency
    grow with the prompts as fast as it can, in proportion, they end no later than single prompts would (or hardly so),
    and are few: each slot in turn is filled up to that time, and a lot that does not fit goes on in the next slot.
    """
    alone = _end(lots, [lot.count for lot in lots], [0.0] * slots, None, 0.0)
    planned: list[tuple[float, int, int]] = []
    for later, gaps in _LATER:
        planned, used = _filled_up(lots, later * alone, gaps)
        if used <= slots:
            break
    return [(n, size) for _, n, size in sorted(planned, key=lambda row: row[0])]


def _filled_up(lots: Sequence[Lot], end: float, gaps: bool) -> tuple[list[tuple[float, int, int]], int]:
    """When each request begins, its lot and its prompts; and how many slots it takes for all to be over at ``end``.

    ``gaps``: what a slot has left that is too short for one lot's prompts is filled with those of the next lots.
    """
    planned: list[tuple[float, int, int]] = []
    slots = [0.0]
    for n, lot in sorted(enumerate(lots), key=lambda row: -row[1].seconds(1)):
        one, left = lot.seconds(1), lot.count
        place = 0 if gaps else len(slots) - 1
        while left:
            if place == len(slots):
                slots.append(0.0)
            size = min(left, int((end - slots[place]) / one + 1e-9), lot.most)
            if size < 1:
                place += 1
                continue
            planned.append((slots[place], n, size))
            slots[place] += lot.seconds(size)
            left -= size
    return planned, len(slots)


def _parted(lots: Sequence[Lot], most: int) -> Iterator[list[int]]:
    """Requests per lot: the fewest, then one more at a time, the longest request's lot being parted further.
    The same list, changed in place; at least one is given, ``most`` requests in all or the fewest."""
    counts = [-(-lot.count // lot.most) for lot in lots]
    heap = [(-lot.seconds(-(-lot.count // count)), n) for n, (lot, count) in enumerate(zip(lots, counts, strict=True))]
    heapq.heapify(heap)
    yield counts
    for _ in range(most - sum(counts)):
        _, n = heap[0]
        if counts[n] >= lots[n].count:
            return
        counts[n] += 1
        heapq.heapreplace(heap, (-lots[n].seconds(-(-lots[n].count // counts[n])), n))
        yield counts


def _sizes(lots: Sequence[Lot], counts: Sequence[int]) -> list[int]:
    return [-(-lot.count // count) for lot, count in zip(lots, counts, strict=True)]


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
