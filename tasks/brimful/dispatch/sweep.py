"""Shards that are found nowhere: neither queued, nor in a worker's hands, nor claimed.

A message is lost when a worker dies between taking it and noting that it has it, or when Redis forgets its last second.
A shard whose worker died comes again by itself, though late; enqueued again, it is begun at once, and whoever comes
second finds nothing left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from redis.asyncio import Redis

from brimful.dispatch.inflight import Outstanding, Shard
from brimful.dispatch.ledger import RunLedger
from brimful.state.broker_queues import find_shards
from brimful.state.redis_retry import retry_until_available

_LOOKS = 2
"""Looks in a row that must have missed it: a message on its way is in neither place for a moment."""


class Sweep:
    """Looks, and tells; who enqueues again is another's affair."""

    def __init__(
        self,
        client: Redis,
        ledger: RunLedger,
        outstanding: Outstanding,
        *,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``patience_s``: a shard that is recorded and was never begun is not looked for until so old."""
        self._client = client
        self._ledger = ledger
        self._outstanding = outstanding
        self._patience_s = patience_s
        self._clock = clock

    async def lost(self) -> list[Shard]:
        """One look. Waits while Redis is away."""
        now = self._clock()
        old = [
            shard for shard in self._outstanding.shards.values() if 0 < shard.enqueued_at < now - self._patience_s / 5
        ]
        if not old:
            return []
        seen = await retry_until_available(lambda: self._ledger.look([shard.id for shard in old]))
        suspect: list[Shard] = []
        unbegun: list[str] = []
        for shard in old:
            recorded, claimed, begun = seen[shard.id]
            if recorded and claimed:
                shard.missed = 0
            elif begun or not recorded:
                suspect.append(shard)  # its worker is dead, or Redis has forgotten it
            elif now - shard.enqueued_at >= self._patience_s:
                suspect.append(shard)
                unbegun.append(shard.id)
        messages = await retry_until_available(lambda: find_shards(self._client, unbegun)) if unbegun else {}
        lost: list[Shard] = []
        for shard in suspect:
            shard.missed = 0 if shard.id in messages else shard.missed + 1
            if shard.missed >= _LOOKS:
                shard.missed = 0
                lost.append(shard)
        return lost
