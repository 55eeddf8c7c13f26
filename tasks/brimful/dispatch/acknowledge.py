"""Trims from Redis the outcomes that the driver's consumer has written down, and never before they are durable.

With a ``sync``, trimming follows it at most once a second: after a power loss the outcomes of the last second are still
in Redis, so nothing is sampled or paid for twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from brimful.dispatch.deliveries import Deliveries
from brimful.dispatch.ledger import RunLedger
from brimful.state.redis_retry import REDIS_ERRORS, reraise_cancellation

SYNC_EVERY_S = 1.0

Sync = Callable[[], Awaitable[bool | None]]
"""Makes all that the consumer has taken survive a power loss. False: some of it is not written down yet, and nothing is
trimmed. Raises FleetError."""


@dataclass(eq=False)
class Acknowledger:
    """``written`` after each batch; ``run`` as a task; ``now`` at the end."""

    ledger: RunLedger
    deliveries: Deliveries
    sync: Sync | None
    """None: what is written counts as durable."""
    _durable: str = field(default="0", init=False)
    _more: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _one: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def run(self) -> None:
        """Never returns. Raises FleetError when a sync fails."""
        while True:
            await self._more.wait()
            self._more.clear()
            await self.now()
            await asyncio.sleep(SYNC_EVERY_S)

    async def written(self, entry: str) -> None:
        """The consumer has written down everything up to ``entry`` of the results stream."""
        self.deliveries.written = entry
        if self.sync is None:
            await self.now()
        else:
            self._more.set()

    async def now(self) -> None:
        """Sync and trim. Raises FleetError when the sync fails; nothing is trimmed then."""
        async with self._one:
            entry = self.deliveries.written
            if self.sync is None or entry == self._durable or await self.sync() is not False:
                self._durable = entry
            await self.trim()

    async def trim(self) -> None:
        """Trim what is durable. If Redis is unreachable, the next call does it."""
        if self._durable != "0":
            with contextlib.suppress(*REDIS_ERRORS):
                await reraise_cancellation(lambda: self.ledger.forget(self._durable))
