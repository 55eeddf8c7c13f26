"""The end of a run's driver: by itself when nothing is left, or by a stop, which withdraws what no worker has begun.

A stop waits for Redis for seconds only. What could not be withdrawn in that time stays queued, and the run's next
submitter finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

from brimful.dispatch.deliveries import Deliveries
from brimful.dispatch.inflight import InFlight
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import RunLedger
from brimful.errors import FleetError
from brimful.state.redis_retry import REDIS_ERRORS, recent_refusal, retry_until_available

log = logging.getLogger(__name__)

_DRAIN_S = 15.0
"""How long Redis may take to record that the run stops. Requests on the wire may then take as long as they need."""
_NOW_S = 1.0


@dataclass(eq=False)
class Stop:
    ledger: RunLedger
    in_flight: InFlight
    intake: Intake
    deliveries: Deliveries
    at_once: bool = field(default=False, init=False)
    """All that is recorded is to be withdrawn."""
    _refused: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Once an outcome has stopped the run, withdraw what no worker has begun. Raises FleetError."""
        await self._refused.wait()
        await self._withdraw_unbegun()

    def end_if_done(self) -> None:
        if not len(self.in_flight) and (self.in_flight.status.stopping is not None or self.intake.done):
            self.deliveries.end()

    def begin_by(self, cause: str) -> None:
        """The outcomes say that the provider takes no more requests."""
        if self.in_flight.status.stopping is None:
            self._begin(cause)
            self._refused.set()

    async def drain(self) -> None:
        """Send nothing more; end when the requests on the wire have ended."""
        self._begin("drain")
        if not len(self.in_flight):
            return
        try:
            async with asyncio.timeout(_DRAIN_S):
                await self._withdraw_unbegun()
        except (TimeoutError, FleetError) as error:
            why = str(recent_refusal() or error) or "Redis does not answer"
            log.warning("brimful: stopped without waiting for what is on the wire: %s", why)
            self.deliveries.end()

    async def now(self) -> None:
        """Withdraw everything, and end at once."""
        self.at_once = True
        self._begin("stop")
        self.deliveries.end()
        with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
            async with asyncio.timeout(_NOW_S):
                await self.ledger.withdraw(list(self.in_flight.shards))

    async def withdraw(self, shards: list[str]) -> None:
        """Raises FleetError when Redis refuses."""
        if shards:
            await retry_until_available(lambda: self.ledger.withdraw(shards))
            for id in shards:
                if (shard := self.in_flight.shards.get(id)) is not None:
                    self.in_flight.drop(shard)
        self.end_if_done()

    def _begin(self, why: str) -> None:
        """Plan nothing from now on, and send nothing that was planned."""
        if self.in_flight.status.stopping in (None, "drain"):
            self.in_flight.status.stopping = why
        self.intake.plan()
        self.in_flight.drop_unsent()
        self.end_if_done()

    async def _withdraw_unbegun(self) -> None:
        """Shards that no worker has begun. Workers hold back what of theirs is not on the wire."""
        await retry_until_available(lambda: self.ledger.drain(True))
        states = await retry_until_available(lambda: self.ledger.look(list(self.in_flight.shards)))
        await self.withdraw([id for id, state in states.items() if not state.claimed])
