"""Compares what is in flight with Redis: finds lost and revoked shards, and replans packs that would time out.

A message is lost when a worker dies between taking it and recording that it has it, or when Redis loses its last
second. Celery redelivers a dead worker's shard too, but later. A shard that was enqueued again without need does no
harm: the second delivery finds none of its requests left. RabbitMQ does not show which shards it holds: there, none
counts as lost while any message waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from brimful.addresses import FleetAddress
from brimful.dispatch.enqueue import Enqueuer
from brimful.dispatch.inflight import InFlight, Shard
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import RunLedger
from brimful.dispatch.results import ResultsReader
from brimful.dispatch.stops.stop import Stop
from brimful.errors import BrokerUnreachable
from brimful.runtime.aio import until_tick
from brimful.state.broker_queues import find_shards
from brimful.state.rabbitmq.queues import read_states
from brimful.state.redis_retry import retry_until_available
from brimful.state.revocations import TERMINATE

log = logging.getLogger(__name__)

_LOOKS = 2
"""Consecutive looks that must miss a shard: a message that is being delivered is nowhere for a moment."""


@dataclass(eq=False)
class Reconciler:
    """Compares what one driver has in flight with Redis, again and again: start :meth:`run` as a task."""

    sweep_s = 15.0
    """The age from which a shard that no worker has begun is searched for. A fifth of it is the interval between
    looks."""
    address: FleetAddress
    ledger: RunLedger
    in_flight: InFlight
    intake: Intake
    enqueuer: Enqueuer
    results: ResultsReader
    stop: Stop
    clock: Callable[[], float] = time.monotonic

    async def run(self) -> None:
        """Never returns. Raises FleetError when Redis refuses."""
        while True:
            await asyncio.sleep(until_tick(self.sweep_s / 5))
            await self.look()

    async def look(self) -> None:
        """Compare once. Raises FleetError when Redis refuses."""
        await self._end_revoked()
        if lost := await self._find_lost():
            await self._enqueue_again(lost)
        if self.in_flight.status.stopping is None and (slow := self.intake.slow_shards()):
            log.info("%d shards would time out; sent again in smaller requests", len(slow))
            await retry_until_available(lambda: self.ledger.withdraw([shard.id for shard in slow]))
            self.intake.plan_again(slow)

    async def _end_revoked(self) -> None:
        """Fail the lines of revoked shards. Every worker would discard such a shard if it were enqueued again.

        Revoking without ``terminate`` leaves a shard alone that runs.
        """
        shards = {shard.id: shard for shard in self.in_flight.shards.values() if shard.enqueued_at}
        revoked = await retry_until_available(lambda: self.ledger.revoked(list(shards))) if shards else {}
        if not revoked:
            return
        states = await retry_until_available(lambda: self.ledger.look(list(revoked)))
        ended = [id for id, how in revoked.items() if how == TERMINATE or not states[id].claimed]
        if ended:
            log.warning("%d shards were revoked; their lines are recorded as cancelled", len(ended))
            await retry_until_available(lambda: self.ledger.withdraw(ended))
            await self.results.read_again()  # what ended before
            self.results.end_revoked([shards[id] for id in ended])

    async def _find_lost(self) -> list[Shard]:
        """Shards that two looks in a row found neither queued, nor unacknowledged, nor claimed."""
        now = self.clock()
        shards = self.in_flight.shards.values()
        old = [shard for shard in shards if 0 < shard.enqueued_at < now - self.sweep_s / 5]
        if not old:
            return []
        states = await retry_until_available(lambda: self.ledger.look([shard.id for shard in old]))
        suspects: list[Shard] = []
        unbegun: list[str] = []
        for shard in old:
            state = states[shard.id]
            if state.recorded and state.claimed:
                shard.times_missing = 0
            elif state.begun or not state.recorded:
                suspects.append(shard)  # its worker is dead, or Redis has lost it
            elif now - shard.enqueued_at >= self.sweep_s:
                suspects.append(shard)
                unbegun.append(shard.id)
        queued = await self._queued(unbegun) if unbegun else ()
        lost: list[Shard] = []
        for shard in suspects:
            shard.times_missing = 0 if shard.id in queued else shard.times_missing + 1
            if shard.times_missing >= _LOOKS:
                shard.times_missing = 0
                lost.append(shard)
        return lost

    async def _queued(self, shards: list[str]) -> Collection[str]:
        """Those of ``shards`` that have a message, or may have one."""
        client, fleet, url = self.ledger.client, self.address.fleet, self.address.rabbitmq_url
        if url is None:
            return await retry_until_available(lambda: find_shards(client, shards, fleet))
        try:
            states = await asyncio.to_thread(read_states, url, fleet)
        except BrokerUnreachable:
            return shards
        return shards if any(state.waiting for state in states.values()) else ()

    async def _enqueue_again(self, lost: list[Shard]) -> None:
        await self.results.read_again()  # if Redis went back in time, their outcomes may be in the stream
        again = [shard for shard in lost if shard.requests and shard.id in self.in_flight.shards]
        if self.in_flight.status.stopping is not None:
            await self.stop.withdraw([shard.id for shard in again])
        elif again:
            log.info("%d shards were lost; enqueued again", len(again))
            self.in_flight.status.redelivered += len(again)
            await self.enqueuer.enqueue(again)
