"""A simulation of a driver and a gateway in virtual time: how long a run with ``--pack`` takes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackKey
from brimful.packing.request_size import line_profile
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import PackOption, Unit
from brimful.profile import get_profile
from brimful.request import Request

ACS = get_profile("acs")


@dataclass
class Simulated:
    """A run that has ended."""

    seconds: float
    sizes: list[int] = field(default_factory=list)
    """Prompts of each request, in the order in which they were enqueued."""
    longest: float = 0.0
    """Seconds of the longest request."""


def lines(count: int, **fields: Any) -> list[Unit]:
    return units([{"prompt": f"p{place}", "max_tokens": 32, **fields} for place in range(count)])


def units(asked: Iterable[dict[str, Any]]) -> list[Unit]:
    """These lines as a run's reader gives them."""
    profile = line_profile(ACS)
    return [Unit(number, str(number), Request.parse(raw, profile)) for number, raw in enumerate(asked, 1)]


class _Server:
    """Requests of known latency, and of the tokens that they share a server's throughput for."""

    def __init__(self, shared: float | None) -> None:
        self._shared = shared
        self._running: list[tuple[float, float, str, PackKey, int]] = []
        self._progress, self._read_at = 0.0, 0.0
        """Tokens of a request that has run from the start, with ``shared``."""

    def __len__(self) -> int:
        return len(self._running)

    def start(self, now: float, seconds: float, id: str, pack_key: PackKey, size: int) -> None:
        self._advance(now)
        tokens = (pack_key.max_tokens or 16) * size * pack_key.n
        end = now + seconds if self._shared is None else self._progress + tokens
        heapq.heappush(self._running, (end, now, id, pack_key, size))

    def next_end(self) -> float:
        end = self._running[0][0]
        if self._shared is None:
            return end
        return self._read_at + (end - self._progress) * len(self._running) / self._shared

    def pop(self, now: float) -> tuple[float, str, PackKey, int] | None:
        """When the next request that has ended by now began, its id, key and size."""
        self._advance(now)
        reached = now if self._shared is None else self._progress + 1e-6
        if not self._running or self._running[0][0] > reached:
            return None
        return heapq.heappop(self._running)[1:]

    @property
    def newest(self) -> PackKey | None:
        return self._running[-1][3] if self._running else None

    def _advance(self, now: float) -> None:
        if self._shared is not None and self._running:
            self._progress += (now - self._read_at) * self._shared / len(self._running)
        self._read_at = now


def simulate(
    asked: Sequence[Unit],
    pack: PackOption,
    latency: Callable[[int, int], float],
    *,
    slots: int = 16,
    starts: int | None = 600,
    window_s: float = 60.0,
    timeout_s: float = 120.0,
    total_known: bool = True,
    shared: float | None = None,
) -> Simulated:
    """``latency(max_tokens, choices)``: a request's seconds. Starts are an exact sliding window, slots are FIFO.

    ``shared``: tokens a second that the running requests share; they take that time after their latency.
    """
    limits = Limits(slots, starts, window_s)
    sizer, slot_model = PackSizer(limits, timeout_s), SlotModel(limits, adapting=pack == "auto")
    batcher = Batcher(ACS, pack, sizer, slot_model)
    source = iter(asked)
    left = len(asked)
    now, sent = 0.0, 0
    queue: deque[tuple[str, PackKey, int]] = deque()
    running = _Server(shared)
    log: deque[float] = deque()
    result = Simulated(0.0)
    while True:
        while left and not batcher.full:
            batcher.add(next(source))
            left -= 1
        size = batcher.pack
        pack_key = queue[-1][1] if queue else running.newest
        for _ in range(
            slot_model.room(sizer.seconds(pack_key, size) if pack_key and sizer.known(pack_key) else None, now)
        ):
            request = batcher.next(now, left if total_known or not left else None, False)
            if request is None:
                break
            pack_key, slices = request
            sent += 1
            slot_model.enqueued(str(sent), partial(sizer.predicted_s, pack_key, len(slices)), now)
            queue.append((str(sent), pack_key, len(slices)))
            result.sizes.append(len(slices))
            while left and not batcher.full:
                batcher.add(next(source))
                left -= 1
        while log and log[0] + window_s <= now:
            log.popleft()
        while queue and len(running) < slots and (starts is None or len(log) < starts):
            id, pack_key, size = queue.popleft()
            running.start(now, latency(pack_key.max_tokens or 16, size * pack_key.n), id, pack_key, size)
            log.append(now)
        if not running and not queue:
            assert not batcher.held
            assert not left
            return result
        waits = [running.next_end()] if running else []
        if queue and len(running) < slots:
            waits.append(log[0] + window_s)
        now = max(now, min(waits))
        while (ended := running.pop(now)) is not None:
            began, id, pack_key, size = ended
            result.longest = max(result.longest, now - began)
            sizer.learn(pack_key, size * pack_key.n, began, now)
            slot_model.ended(id, now)
            result.seconds = now
