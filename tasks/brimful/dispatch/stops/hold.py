"""Holds a run: nothing new is sent until it is resumed. What has reached the provider ends, and is delivered.

What waits is taken back to be planned again: shards that no worker has begun are withdrawn; of those that were begun,
the workers give back the requests that are not on the wire. So a held run takes neither slots nor workers' places from
other runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from brimful.dispatch.inflight import InFlight
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import RunLedger
from brimful.state.redis_retry import retry_until_available


@dataclass(eq=False)
class Hold:
    """Holds and resumes the run of one driver, which starts :meth:`run` as a task. While ``DriveStatus.held`` is set,
    nothing is planned."""

    ledger: RunLedger
    in_flight: InFlight
    intake: Intake
    _wanted: bool = field(default=False, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def set(self, held: bool) -> None:
        """Hold, or resume. Of several calls, the last one counts."""
        self._wanted = held
        if held:
            self.in_flight.status.held = True  # at once; until workers may send again, it stays so
        self._changed.set()

    async def run(self) -> None:
        """Never returns. Raises FleetError when Redis refuses."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._stopping:
                continue  # the stop withdraws everything, and has set the flag that workers see
            if self._wanted:
                await self._take_back()
            else:
                await self._resume()

    @property
    def _stopping(self) -> bool:
        return self.in_flight.status.stopping is not None

    async def _take_back(self) -> None:
        await retry_until_available(lambda: self.ledger.drain(True))
        states = await retry_until_available(lambda: self.ledger.look(list(self.in_flight.shards)))
        unbegun = [id for id, state in states.items() if not state.claimed]
        if unbegun:
            await retry_until_available(lambda: self.ledger.withdraw(unbegun))
        found = [shard for id in unbegun if (shard := self.in_flight.shards.get(id)) is not None]
        self.intake.plan_again(found)

    async def _resume(self) -> None:
        await retry_until_available(lambda: self.ledger.drain(False))
        if self._stopping:
            await retry_until_available(lambda: self.ledger.drain(True))
        elif not self._wanted:
            self.in_flight.status.held = False
            self.intake.plan()
