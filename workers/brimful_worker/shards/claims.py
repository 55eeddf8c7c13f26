"""Claims on shards: of the deliveries of one message, one runs its shard, for as long as its worker shows life.

A *claim* is a key with a TTL that holds its delivery's token and is renewed while the work goes on. One that ran out,
as when its worker died or was cut off from Redis, is another delivery's to take, and whoever finds that it was taken
ends the work. So a shard may be run twice for a moment, but is never left to nobody. With the claim goes the count of
tries: each time that a shard is begun is one, unless it is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TypeVar

from celery.exceptions import Reject
from redis import RedisError
from redis.asyncio import Redis

from brimful.dispatch.ledger import TTL_S, Keys

log = logging.getLogger(__name__)

_RENEW = resources.files("brimful_worker.shards").joinpath("claims.lua").read_text("utf-8")
_WAIT_S = 0.5
_AWAY = (RedisError, OSError)


@dataclass(eq=False)
class Claim:
    """One delivery's, on its shard."""

    run: str
    shard: str
    keys: Keys
    token: str
    """No other delivery's, of this shard or any."""
    drained: bool = False
    """Its run wants nothing new on the wire."""


_Claim = TypeVar("_Claim", bound=Claim)


class Claims:
    """All of one worker process. What fails for want of Redis is tried again, or left for the TTL to end."""

    def __init__(self, client: Redis, stopping: asyncio.Event, ttl_s: float) -> None:
        """``stopping``: nothing more is claimed."""
        self._redis = client
        self._stopping = stopping
        self._ttl_ms = int(ttl_s * 1000)
        self._script = client.register_script(_RENEW)

    async def take(self, claim: Claim) -> bool:
        """False: the shard is gone. Waits while another delivery of it lives. Raises Reject when the worker stops."""
        while True:
            if self._stopping.is_set():
                raise Reject("the worker stops", requeue=True)
            with contextlib.suppress(*_AWAY):
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.set(claim.keys.claim(claim.shard), claim.token, nx=True, px=self._ttl_ms)
                    pipe.exists(claim.keys.shard(claim.shard))
                    pipe.get(claim.keys.claim(claim.shard))
                    # The submitter says that it drains before it looks for claims: who claims later must not begin.
                    pipe.exists(claim.keys.drain)
                    _, recorded, holder, drain = await pipe.execute()
                if holder == claim.token:
                    if recorded:
                        claim.drained = bool(drain)
                        return True
                    await self.end_empty(claim)
                if not recorded:
                    return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _WAIT_S)

    async def begin(self, claim: Claim) -> tuple[set[str], int]:
        """The ids of the requests still wanted, and how often the shard has been tried, this time included."""
        while True:
            try:
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.hkeys(claim.keys.shard(claim.shard))
                    pipe.incr(claim.keys.tries(claim.shard))
                    pipe.expire(claim.keys.tries(claim.shard), TTL_S)
                    wanted, tries, _ = await pipe.execute()
                return set(wanted), int(tries)
            except _AWAY:
                await asyncio.sleep(_WAIT_S)

    async def end_empty(self, claim: Claim) -> None:
        """Nothing of the shard is wanted any more. Should this fail, its names are left over until their TTLs end."""
        with contextlib.suppress(*_AWAY):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.zrem(claim.keys.shards, claim.shard)
                pipe.delete(claim.keys.claim(claim.shard), claim.keys.tries(claim.shard))
                await pipe.execute()

    async def give_up(self, claim: Claim, *, given_back: bool) -> None:
        """So that the next one need not wait for it to run out; a shard given back is no try."""
        with contextlib.suppress(*_AWAY):
            async with asyncio.timeout(1.0):
                if await self._redis.get(claim.keys.claim(claim.shard)) != claim.token:
                    return
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.delete(claim.keys.claim(claim.shard))
                    if given_back:
                        pipe.decr(claim.keys.tries(claim.shard))
                    await pipe.execute()

    async def keep(
        self, held: Callable[[], Sequence[_Claim]], heard: Callable[[_Claim, str], None], every_s: float
    ) -> None:
        """Renews what ``held()`` names every ``every_s`` seconds, for ever.

        ``heard(claim, told)`` is called for each that was renewed, with what claims.lua tells of it.
        """
        while True:
            await asyncio.sleep(every_s)
            claims = held()
            for run in {claim.run for claim in claims}:
                try:
                    await self._renew([claim for claim in claims if claim.run == run], heard)
                except _AWAY as error:
                    log.debug("claims not renewed: %s", error)

    async def _renew(self, claims: Sequence[_Claim], heard: Callable[[_Claim, str], None]) -> None:
        """One run's: only a run's own keys are sure to be in one slot of a Redis Cluster."""
        keys = claims[0].keys
        names = [keys.drain]
        for claim in claims:
            names += (keys.claim(claim.shard), keys.shard(claim.shard))
        answers = await self._script(keys=names, args=[self._ttl_ms, *(claim.token for claim in claims)])
        for claim, told in zip(claims, answers, strict=True):
            heard(claim, told)
