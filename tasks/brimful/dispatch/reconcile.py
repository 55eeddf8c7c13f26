"""Looks after what is outstanding: lost shards, packs that cannot come to their end, keys that would run out.

A shard that is found nowhere is enqueued again; if it was not lost after all, whoever comes second finds nothing left
to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from brimful.dispatch.inflight import Outstanding, Shard
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import RunLedger
from brimful.dispatch.results import Inbox
from brimful.dispatch.sender import Sender
from brimful.dispatch.stop import Ending
from brimful.dispatch.sweep import Sweep
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import split_evenly
from brimful.packing.units import DriveStatus
from brimful.state.redis_retry import retry_until_available

log = logging.getLogger(__name__)

_TOUCH_S = 3600.0


class Caretaker:
    """``look_after`` as a task. Raises FleetError when Redis refuses."""

    def __init__(
        self,
        ledger: RunLedger,
        out: Outstanding,
        sweep: Sweep,
        tuner: PackSizer,
        planner: Batcher,
        intake: Intake,
        sender: Sender,
        inbox: Inbox,
        ending: Ending,
        status: DriveStatus,
        *,
        auto: bool,
        sweep_s: float,
        clock: Callable[[], float],
    ) -> None:
        """``auto``: packs may turn out to be too large. ``sweep_s``: five looks take so long."""
        self._ledger = ledger
        self._out = out
        self._sweep = sweep
        self._tuner = tuner
        self._planner = planner
        self._intake = intake
        self._sender = sender
        self._inbox = inbox
        self._ending = ending
        self._status = status
        self._auto = auto
        self._sweep_s = sweep_s
        self._clock = clock

    async def look_after(self) -> None:
        """Never ends by itself."""
        touched = self._clock()
        while True:
            await asyncio.sleep(self._sweep_s / 5)
            if lost := await self._sweep.lost():
                await self._find_or_enqueue(lost)
            if self._auto and self._status.stopping is None:
                await self._withdraw_doomed()
            if self._clock() - touched > _TOUCH_S:
                touched = self._clock()
                await retry_until_available(lambda: self._ledger.touch(list(self._out.shards)))

    async def _find_or_enqueue(self, lost: list[Shard]) -> None:
        """Their outcomes may be in the stream though, if Redis went back in time; if not, they are asked again."""
        entry = "0"
        while results := await retry_until_available(lambda: self._ledger.results(entry, 64, None)):  # noqa: B023
            entry = results[-1].entry
            if missed := [result for result in results if result.id in self._out]:
                self._inbox.take(missed)
        again = [shard for shard in lost if shard.requests and shard.id in self._out.shards]
        if self._status.stopping is not None:
            await self._ending.withdraw([shard.id for shard in again])
        elif again:
            log.info("%d shards were found nowhere; enqueued again", len(again))
            self._status.redelivered += len(again)
            await self._sender.enqueue(again)

    async def _withdraw_doomed(self) -> None:
        """Packs sent before anything was known, and now known to run into their timeout: asked anew, smaller."""
        doomed = [
            shard
            for shard in self._out.shards.values()
            if any(
                self._tuner.exceeds_timeout(packed.pack_key, len(packed.slices)) for packed in shard.requests.values()
            )
        ]
        if not doomed:
            return
        log.info("%d shards would run into their timeout; asked anew in smaller requests", len(doomed))
        await retry_until_available(lambda: self._ledger.withdraw([shard.id for shard in doomed]))
        for shard in doomed:
            for packed in list(shard.requests.values()):
                if self._out.end(packed.id) is not None:
                    most = self._tuner.most_prompts(packed.pack_key)
                    self._planner.put_back(packed.pack_key, split_evenly(packed.slices, most))
        self._intake.plan()
