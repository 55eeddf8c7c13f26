"""Shards out: first into the ledger, then into Celery's queues.

What is in a queue is always known to the ledger. A submitter that dies in between leaves a shard that is recorded and
in no queue; the run's next submitter withdraws it and plans its lines anew. While Redis is away, shards wait here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brimful.dispatch.enqueue import Publisher
from brimful.dispatch.inflight import SHARD_BYTES, Outstanding, Shard
from brimful.dispatch.ledger import RunLedger
from brimful.state.redis_retry import retry_until_available

_SHARDS_AT_ONCE = 64


class Sender:
    """``run`` as a task; ``wake`` it when there is something unsent. Raises FleetError when Redis refuses."""

    def __init__(
        self, run: str, ledger: RunLedger, publisher: Publisher, out: Outstanding, clock: Callable[[], float]
    ) -> None:
        self._run = run
        self._ledger = ledger
        self._publisher = publisher
        self._out = out
        self._clock = clock
        self._send = asyncio.Event()

    def wake(self) -> None:
        self._send.set()

    async def run(self) -> None:
        """Never ends by itself."""
        unsent = self._out.unsent
        while True:
            await self._send.wait()
            self._send.clear()
            while unsent:
                shards: list[Shard] = []
                size = 0
                while unsent and len(shards) < _SHARDS_AT_ONCE and size < 4 * SHARD_BYTES:
                    shards.append(unsent.popleft())
                    size += shards[-1].size
                await self.enqueue(shards)

    async def enqueue(self, shards: list[Shard]) -> None:
        """First the ledger, then the queue. Also for shards that were enqueued before."""
        rows = {
            shard.id: {id: packed.manifest for id, packed in shard.requests.items()}
            for shard in shards
            if shard.requests
        }
        if rows:
            await retry_until_available(lambda: self._ledger.record(rows))
        if dropped := [id for id in rows if id not in self._out.shards]:  # a stop came between
            await retry_until_available(lambda: self._ledger.withdraw(dropped))
        await self._publisher.send([self._out.message(self._run, shard) for shard in shards if shard.requests])
        for shard in shards:
            shard.enqueued_at = self._clock()
