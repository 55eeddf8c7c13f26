"""How many prompts a request should carry. Pure: latencies and times are passed in, nothing is measured here.

In the long run: the fewest prompts that come within 2 % of the best rate, where the rate is what slots and starts
allow, ``prompts / max(seconds / slots, seconds between starts)``. Bounded by the profile, by a fraction of the
request's timeout, and by a multiple of the largest size that succeeded: no fit is trusted far beyond what was seen.

At the end: all that is left is divided so that the slots, each from when it comes free, end together
(:func:`fill_slots`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from brimful.packing.latency import UNKNOWN_TOKENS, Latency, RequestTime
from brimful.packing.packing import PackKey
from brimful.packing.slot_model import Limits
from brimful.packing.throughput import Throughput

START_TOKENS = 4096
"""Tokens of a request sent before the latency is known; a single prompt may have more."""
START_PROMPTS = 128
"""Prompts of a request sent before the latency is known."""
_SLOWEST = 40.0
"""Tokens a second, over all requests, that any provider is assumed to reach: a server on a machine without GPU."""
_TIMEOUT_SHARE = 0.4
_WITHIN = 0.98
_OWN_S = 0.005
"""Seconds of the fleet's own work per request: even without a limit of starts, fewer requests are better."""
_REACH = 16
"""How many times the largest size that succeeded a request may have."""
_MODELS = 64


class PackSizer:
    """Learns from every request that ended; asked before every request that is sent."""

    def __init__(self, limits: Limits, timeout_s: float) -> None:
        self.limits = limits
        self.timeout_s = timeout_s
        self._models: dict[str, Latency] = {}
        self._throughput: dict[str, Throughput] = {}
        self.max_prompts: int | None = None
        """Prompts per request from which on requests were refused for lack of budget."""

    def latency(self, model: str) -> Latency:
        found = self._models.get(model)
        if found is None:
            while len(self._models) >= _MODELS:
                oldest = next(iter(self._models))
                del self._models[oldest]
                self._throughput.pop(oldest, None)
            found = self._models[model] = Latency()
        return found

    def learn(self, pack_key: PackKey, choices: int, began: float, ended: float) -> None:
        """A request succeeded at its first attempt. Seconds on any clock, the same for all requests."""
        self.latency(pack_key.model).add(pack_key.max_tokens, choices, ended - began)
        tokens = (pack_key.max_tokens or UNKNOWN_TOKENS) * choices
        throughput = self._throughput.get(pack_key.model)
        if throughput is None:
            throughput = self._throughput[pack_key.model] = Throughput()
        throughput.add(tokens, began, ended)

    @property
    def _longest_s(self) -> float:
        return _TIMEOUT_SHARE * self.timeout_s

    def _in_time(self, pack_key: PackKey) -> int:
        """Tokens of each request if all slots have as many, and the provider were no faster than it has been so far."""
        throughput = self._throughput.get(pack_key.model)
        reached = (throughput.most if throughput is not None else None) or _SLOWEST
        return int(reached * self._longest_s / self.limits.slots)

    def known(self, pack_key: PackKey) -> bool:
        """Whether the latency of requests of any size can be predicted."""
        return self.latency(pack_key.model).known

    def seen(self, pack_key: PackKey) -> bool:
        """Whether any request of its model has succeeded."""
        return self.latency(pack_key.model).seen

    def request_time(self, pack_key: PackKey) -> RequestTime:
        return self.latency(pack_key.model).request_time(pack_key.max_tokens, pack_key.n)

    def predicted_s(self, pack_key: PackKey, prompts: int) -> float:
        """Seconds of a request with so many prompts; the worst case while the latency is unknown."""
        return self.request_time(pack_key).seconds(prompts)

    def seconds(self, pack_key: PackKey, prompts: int) -> float | None:
        """As :meth:`predicted_s`; None before any request of the model has succeeded."""
        return self.predicted_s(pack_key, prompts) if self.latency(pack_key.model).seen else None

    @property
    def between_starts_s(self) -> float:
        """Seconds between starts in the long run, by the limit or by what a small fleet manages; never 0."""
        return _OWN_S if self.limits.starts is None else max(_OWN_S, self.limits.window_s / self.limits.starts)

    def most_prompts(self, pack_key: PackKey) -> int:
        """The most prompts that a request may carry, given what is known so far."""
        if pack_key.limit == 1:
            return 1
        latency = self.latency(pack_key.model)
        most = min(pack_key.limit, self.max_prompts or pack_key.limit)
        most = min(most, self._in_time(pack_key) // pack_key.tokens_per_prompt)
        if latency.known:
            size = min(_REACH * latency.largest, latency.ceiling or math.inf)
            most = min(most, int(size / pack_key.tokens_per_prompt))
            most = self.request_time(pack_key).prompts_within(self._longest_s, most)
        else:
            most = min(most, START_PROMPTS, START_TOKENS // pack_key.tokens_per_prompt)
        return max(1, most)

    def best(self, pack_key: PackKey) -> int:
        """Prompts per request in the long run, as long as there is plenty left."""
        most = self.most_prompts(pack_key)
        if not self.known(pack_key):
            return most
        fixed_s, prompt_s = time = self.request_time(pack_key)
        # The rate grows with the prompts. The fewest are those with which slots and starts just allow enough of it.
        enough = _WITHIN * most / max(time.seconds(most) / self.limits.slots, self.between_starts_s)
        by_slots = enough * fixed_s / (self.limits.slots - enough * prompt_s)
        return min(most, max(1, math.ceil(by_slots), math.ceil(enough * self.between_starts_s)))

    def exceeds_timeout(self, pack_key: PackKey, prompts: int) -> bool:
        """Whether a request of several prompts is predicted to run into its timeout."""
        return prompts > 1 and self.known(pack_key) and self.predicted_s(pack_key, prompts) > self.timeout_s


class Chunk(NamedTuple):
    """All that is left of one pack key."""

    prompts: int
    most: int
    """Prompts per request."""
    time: RequestTime


class Planned(NamedTuple):
    """A request to come."""

    begins_s: float
    chunk: int
    """Index of its chunk."""
    prompts: int


def fill_slots(
    chunks: Sequence[Chunk], free: Sequence[float], starts_left: int | None, between_starts_s: float
) -> list[Planned]:
    """The requests for all that is left, in the order in which to send them, such that everything ends soonest.

    ``free``: seconds until each slot is free. Finds, by bisection, the earliest time by which the slots can do
    everything if each of them works until then.
    """
    begins = sorted(free)
    low, high = begins[0], begins[-1] + sum(chunk.prompts * chunk.time.seconds(1) for chunk in chunks)
    best = _fill(chunks, begins, math.inf)
    while high - low > 1e-3 * high:  # a finer end moves hardly a prompt, and costs three times as much
        end = (low + high) / 2
        planned = _fill(chunks, begins, end)
        if planned is None or (starts_left is not None and len(planned) > starts_left + end / between_starts_s):
            low = end
        else:
            high, best = end, planned
    return sorted(best or [], key=lambda planned: planned.begins_s)


def _fill(chunks: Sequence[Chunk], begins: Sequence[float], end: float) -> list[Planned] | None:
    """One slot after the other, the chunks with the longest prompts first; None where the slots are not enough."""
    planned: list[Planned] = []
    slots = list(begins)
    for index, chunk in sorted(enumerate(chunks), key=lambda row: -row[1].time.seconds(1)):
        left = chunk.prompts
        for place, begin in enumerate(slots):
            while left and (prompts := chunk.time.prompts_within(end - begin, min(left, chunk.most))):
                planned.append(Planned(begin, index, prompts))
                begin += chunk.time.seconds(prompts)
                left -= prompts
            slots[place] = begin
            if not left:
                break
        if left:
            return None
    return planned
