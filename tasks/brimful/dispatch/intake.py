"""Reads units into the batcher, and plans requests from it while there is room in flight.

Reading pauses while the batcher has enough to choose from, planning while enough is in flight. An input that stalls, or
ends, holds nothing back: what was read is sent.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from brimful.dispatch.deliveries import Deliveries
from brimful.dispatch.inflight import InFlight, Shard
from brimful.errors import RequestTooLarge
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest, split_evenly
from brimful.packing.units import Failed, Unit
from brimful.runtime.threads import read_in_thread

Units = AsyncIterator[Unit | Failed] | Iterator[Unit | Failed]
_IN_FLIGHT_BYTES = 96 * 1024 * 1024
_STALLED_S = 0.05
"""After this long without a unit the input has stalled, and what was read is sent."""
_IDLE_S = 1.0
"""It is sent too if slots have been idle this long, while the input trickles."""


class Intake:
    """``feed`` as a task; ``plan`` whenever something may have made room."""

    def __init__(
        self,
        batcher: Batcher,
        sizer: PackSizer,
        in_flight: InFlight,
        deliveries: Deliveries,
        *,
        auto: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``auto``: pack sizes are learnt during the run."""
        self._batcher = batcher
        self._sizer = sizer
        self._in_flight = in_flight
        self._deliveries = deliveries
        self._auto = auto
        self._clock = clock
        self._status = in_flight.status
        self._room = asyncio.Event()
        self._reading_since: float | None = None
        self._planned_at = self._clock()
        self._ids = random.Random()  # secrets.token_hex would make a system call for each request
        self._left: int | None = None
        self._fed = False
        """The input has ended, or a stop has begun."""

    @property
    def done(self) -> bool:
        """All that was read is in flight, and nothing more comes."""
        return self._fed and not self._batcher.held

    @property
    def starved(self) -> bool:
        """There is room in flight that only further input can fill."""
        return not self._fed and not self._status.held and self._free() > 0

    async def feed(self, units: Units, total: int | None) -> None:
        """Read all units, or until a stop. ``total``: how many there are; None = unknown. A unit that fits no request,
        and a Failed among the units, goes straight to the deliveries. Raises what ``units`` raises."""
        self._left = total
        self._planned_at = self._clock()
        source = units if isinstance(units, AsyncIterator) else read_in_thread(units)
        while self._status.stopping is None:
            self._reading_since = self._clock()
            unit = await anext(source, None)
            self._reading_since = None
            if unit is None or self._status.stopping is not None:
                break
            self._status.lines_taken += 1
            if self._left is not None:
                self._left = max(0, self._left - 1)
            if (failed := self._hold(unit)) is not None:
                self._status.failures += 1
                self._deliveries.put([failed])
                await self._deliveries.room()
            while self._batcher.full and self._status.stopping is None:
                self.plan()
                if self._batcher.full:
                    self._room.clear()
                    await self._room.wait()
            if self._status.lines_taken % 64 == 0:
                await asyncio.sleep(0)  # a file never blocks: let the other tasks run
        self._fed = True
        self._left = 0
        self.plan()

    def plan(self) -> None:
        """Make as many requests as there is room for; none while the run is held, and once a stop has begun."""
        if self._status.stopping is not None:
            self._room.set()  # let a waiting feed see it
            return
        if self._status.held:
            return
        now = self._clock()
        slot_model = self._in_flight.slot_model
        flush = self._fed or (self._reading_since is not None and now - self._reading_since > _STALLED_S)
        flush |= len(slot_model) < slot_model.limits.slots and now - self._planned_at > _IDLE_S
        made: list[PackedRequest] = []
        free, size = self._free(), self._in_flight.bytes
        while len(made) < free and size < _IN_FLIGHT_BYTES:
            chosen = self._batcher.next(now, self._left, flush)
            if chosen is None:
                break
            packed = PackedRequest(f"{self._ids.getrandbits(64):016x}", *chosen)
            made.append(packed)
            size += packed.held_bytes
            self._in_flight.reserve(packed)  # the end of a run is planned by what is in flight
        if made:
            self._planned_at = now
            self._in_flight.add(made)
        if not self._batcher.full:
            self._room.set()

    def slow_shards(self) -> list[Shard]:
        """Shards with a pack that was sent before latencies were known, and is now predicted to time out."""
        return [
            shard
            for shard in self._in_flight.shards.values()
            if self._auto
            and any(self._sizer.exceeds_timeout(each.pack_key, len(each.slices)) for each in shard.requests.values())
        ]

    def plan_again(self, shards: Iterable[Shard]) -> None:
        """Divide what withdrawn shards carried into requests of a size that can be answered in time."""
        for shard in shards:
            for packed in list(shard.requests.values()):
                if self._in_flight.end(packed.id) is not None:
                    most = self._sizer.most_prompts(packed.pack_key)
                    self._batcher.put_back(packed.pack_key, split_evenly(packed.slices, most))
        self.plan()

    def _hold(self, unit: Unit | Failed) -> Failed | None:
        if isinstance(unit, Failed):
            return unit
        try:
            self._batcher.add(unit)
        except RequestTooLarge as error:
            failure = Failure(Cause.BAD_REQUEST, str(error), permanent=True)
            prompts, n = unit.request.prompt_count, unit.request.n
            wanted = unit.wanted or tuple((prompt, choice) for prompt in range(prompts) for choice in range(n))
            return Failed(unit.line, unit.id, unit.request, wanted, failure, Outcome(unit.id, failure=failure))
        return None

    def _free(self) -> int:
        """How many more requests may be in flight."""
        newest = self._in_flight.newest
        seconds = None
        if newest is not None and not (self._auto and not self._sizer.known(newest.pack_key)):
            seconds = self._sizer.seconds(newest.pack_key, len(newest.slices))
        return self._in_flight.slot_model.room(seconds, self._clock())
