"""Units in: read into the planner, and planned into requests, as many as there is room for.

Reading stops while the planner has enough to choose among, and planning while enough is outstanding. An input that
gives nothing, or ends in the middle, holds nothing back: what is there is sent. A fault of the input is raised by
:meth:`Intake.feed`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator

from brimful.dispatch.inflight import Outstanding
from brimful.dispatch.sender import Sender
from brimful.errors import RequestTooLarge
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest
from brimful.packing.slot_model import SlotModel
from brimful.packing.units import DriveStatus, Unit
from brimful.runtime.threads import read_in_thread

_BYTES_OUTSTANDING = 96 * 1024 * 1024
_STALLED_S = 0.05
"""An input that gives nothing for so long is not waited for: what is there is sent."""
_IDLE_S = 1.0
"""Nor one that trickles while slots are idle."""


class Intake:
    """``begin``, then ``feed`` as a task; ``plan`` whenever something may have made room."""

    def __init__(
        self,
        planner: Batcher,
        tuner: PackSizer,
        pace: SlotModel,
        out: Outstanding,
        sender: Sender,
        status: DriveStatus,
        *,
        auto: bool,
        clock: Callable[[], float],
    ) -> None:
        """``auto``: how large packs are to be is learnt on the way."""
        self._planner = planner
        self._tuner = tuner
        self._pace = pace
        self._out = out
        self._sender = sender
        self._status = status
        self._auto = auto
        self._clock = clock
        self._roomy = asyncio.Event()
        self._reading_since: float | None = None
        self._planned_at = clock()
        self._left: int | None = None
        self.fed = False
        """The input has come to its end, or a stop has."""

    @property
    def done(self) -> bool:
        """All that was read is enqueued, and nothing more comes."""
        return self.fed and not self._planner.held

    def begin(self, total: int | None) -> None:
        """``total``: how many units there will be, None = nobody knows."""
        self._left = total
        self._planned_at = self._clock()

    async def feed(
        self, units: AsyncIterator[Unit] | Iterator[Unit], refuse: Callable[[Unit, RequestTooLarge], None]
    ) -> None:
        """All of them, unless a stop comes. ``refuse`` is told those of which no request can be made."""
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
            try:
                self._planner.add(unit)
            except RequestTooLarge as error:
                refuse(unit, error)
            while self._planner.full and self._status.stopping is None:
                self.plan()
                if self._planner.full:
                    self._roomy.clear()
                    await self._roomy.wait()
            if self._status.lines_taken % 64 == 0:
                await asyncio.sleep(0)  # a file is always ready: let outcomes in between
        self.fed = True
        self._left = 0
        self.plan()

    def plan(self) -> None:
        """As many requests as there is room for."""
        if self._status.stopping is not None:
            return
        now = self._clock()
        stalled = self._reading_since is not None and now - self._reading_since > _STALLED_S
        if len(self._pace) < self._pace.limits.slots and now - self._planned_at > _IDLE_S:
            stalled = True
        made: list[PackedRequest] = []
        room, size = self.room(), self._out.bytes
        while len(made) < room and size < _BYTES_OUTSTANDING:
            chosen = self._planner.next(now, self._left, self.fed or stalled)
            if chosen is None:
                break
            packed = PackedRequest(uuid.uuid4().hex[:16], *chosen)
            made.append(packed)
            size += packed.size
            # At once, since the end of a run is planned by what is under way.
            self._out.announce(packed)
        if made:
            self._planned_at = now
            self._out.add(made)
            self._sender.wake()
        if not self._planner.full:
            self._roomy.set()

    def room(self) -> int:
        """For so many requests more."""
        last = self._out.last
        seconds = None
        if last is not None and not (self._auto and not self._tuner.known(last.pack_key)):
            seconds = self._tuner.seconds(last.pack_key, len(last.slices))
        return self._pace.room(seconds, self._clock())

    def wake(self) -> None:
        """A feeder that waits for room looks again whether to go on: a stop has come."""
        self._roomy.set()
