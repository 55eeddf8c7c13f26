"""How a run's driver comes to its end: by itself when nothing is left, or by a stop, which withdraws what it can.

A stop waits for Redis for seconds only. What could not be withdrawn in that time stays queued, and the run's next
submitter finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from brimful.dispatch.inflight import Outstanding
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import RunLedger
from brimful.errors import FleetError
from brimful.packing.units import DriveStatus
from brimful.state.redis_retry import REDIS_ERRORS, recent_refusal, retry_until_available

log = logging.getLogger(__name__)

_DRAIN_S = 15.0
"""Redis may take so long to hear that the run stops; what is on the wire may then take what it needs."""
_AT_ONCE_S = 1.0


class Ending:
    """``over`` is set when nothing more will come."""

    def __init__(self, ledger: RunLedger, out: Outstanding, intake: Intake, status: DriveStatus) -> None:
        self._ledger = ledger
        self._out = out
        self._intake = intake
        self._status = status
        self.over = asyncio.Event()

    def end_if_done(self) -> None:
        stopping = self._status.stopping is not None
        if not len(self._out) and (stopping or self._intake.done):
            self.over.set()

    def begin_stop(self, why: str) -> None:
        """Nothing new is planned from now on, and what was planned is not sent."""
        if self._status.stopping in (None, "drain"):
            self._status.stopping = why
        self._intake.wake()
        self._out.drop_unsent()
        self.end_if_done()

    async def stop(self, *, drain: bool) -> None:
        """``drain``: over when what is on the wire has ended. Else at once."""
        self.begin_stop("drain" if drain else "stop")
        if drain and self.over.is_set():
            return  # nothing is outstanding
        if drain:
            try:
                async with asyncio.timeout(_DRAIN_S):
                    await self.withdraw_unbegun()
            except (TimeoutError, FleetError) as error:
                why = str(recent_refusal() or error) or "Redis does not answer"
                log.warning("brimful: stopped without waiting for what is on the wire: %s", why)
                self.over.set()
        else:
            self.over.set()
            with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
                async with asyncio.timeout(_AT_ONCE_S):
                    await self._ledger.withdraw(list(self._out.shards))

    async def withdraw_unbegun(self) -> None:
        """Shards that no worker has begun; workers hold back what of theirs is not on the wire."""
        await retry_until_available(lambda: self._ledger.drain(True))
        seen = await retry_until_available(lambda: self._ledger.look(list(self._out.shards)))
        await self.withdraw([id for id, (_, claimed, _) in seen.items() if not claimed])

    async def withdraw(self, shards: list[str]) -> None:
        if shards:
            await retry_until_available(lambda: self._ledger.withdraw(shards))
            for id in shards:
                if (shard := self._out.shards.get(id)) is not None:
                    self._out.drop(shard)
        self.end_if_done()
