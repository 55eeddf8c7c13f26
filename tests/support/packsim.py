"""A gateway and a driver in virtual time: how long a plan takes, without waiting for it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from brimful.packing.batcher import Planner
from brimful.packing.pack_size import Tuner
from brimful.packing.packing import Shape
from brimful.packing.request_size import line_profile
from brimful.packing.slot_model import Limits, Pace
from brimful.packing.units import PackOption, Unit
from brimful.profile import get_profile
from brimful.request import Request

ACS = get_profile("acs")


@dataclass
class Simulated:
    seconds: float
    sizes: list[int] = field(default_factory=list)
    """Prompts of each request, in the order in which they were enqueued."""
    longest: float = 0.0


def lines(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"p{place}", "max_tokens": 32, **fields} for place in range(count)]


def simulate(
    asked: Sequence[dict[str, Any]],
    pack: PackOption,
    latency: Callable[[int, int], float],
    *,
    slots: int = 16,
    starts: int | None = 600,
    window_s: float = 60.0,
    timeout_s: float = 120.0,
    total_known: bool = True,
) -> Simulated:
    """``latency(max_tokens, choices)`` in seconds. Starts are an exact sliding window, slots are FIFO."""
    limits = Limits(slots, starts, window_s)
    tuner, pace = Tuner(limits, timeout_s), Pace(limits, adapting=pack == "auto")
    planner = Planner(ACS, pack, tuner, pace)
    profile = line_profile(ACS)
    source = iter([Unit(n, str(n), Request.parse(raw, profile)) for n, raw in enumerate(asked, 1)])
    left = len(asked)
    now, sent = 0.0, 0
    queue: deque[tuple[str, Shape, int]] = deque()
    wire: list[tuple[float, float, str, Shape, int]] = []
    log: deque[float] = deque()
    result = Simulated(0.0)
    while True:
        while left and not planner.full:
            planner.add(next(source))
            left -= 1
        size = planner.pack
        shape = queue[-1][1] if queue else wire[-1][3] if wire else None
        for _ in range(pace.room(tuner.seconds(shape, size) if shape and tuner.known(shape) else None, now)):
            request = planner.next(now, left if total_known or not left else None, False)
            if request is None:
                break
            shape, parts = request
            sent += 1
            pace.enqueued(str(sent), partial(tuner.predicted_s, shape, len(parts)), now)
            queue.append((str(sent), shape, len(parts)))
            result.sizes.append(len(parts))
            while left and not planner.full:
                planner.add(next(source))
                left -= 1
        while log and log[0] + window_s <= now:
            log.popleft()
        while queue and len(wire) < slots and (starts is None or len(log) < starts):
            id, shape, size = queue.popleft()
            seconds = latency(shape.max_tokens or 16, size * shape.n)
            result.longest = max(result.longest, seconds)
            heapq.heappush(wire, (now + seconds, seconds, id, shape, size))
            log.append(now)
        if not wire and not queue:
            assert not planner.held
            assert not left
            return result
        waits = [wire[0][0]] if wire else []
        if queue and len(wire) < slots:
            waits.append(log[0] + window_s)
        now = max(now, min(waits))
        while wire and wire[0][0] <= now:
            _, seconds, id, shape, size = heapq.heappop(wire)
            tuner.latency(shape.model).add(shape.max_tokens, size * shape.n, seconds)
            pace.ended(id, now)
            result.seconds = now
