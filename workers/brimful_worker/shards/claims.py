"""Claims on shards: of the deliveries of one message, only the claim's holder runs the shard.

A claim is a key with a TTL that contains its delivery's token, and is renewed while the work goes on. When it expires,
because its worker died or was cut off from Redis, another delivery takes it; the earlier holder notices at its next
renewal and ends the work. So a shard may run twice for a moment, but never stays without a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from celery.exceptions import Reject
from redis import RedisError
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from brimful.dispatch.ledger import TTL_S, Keys
from brimful.runtime.aio import until_tick
from brimful_worker.admission.wire.connection import Connection, ConnectionDown
from brimful_worker.lua_script import load_script

log = logging.getLogger(__name__)

_RENEW, _GIVE_UP = (load_script("brimful_worker.shards", f"{name}.lua") for name in ("claims", "give_up"))
_WAIT_S = 0.5
_AWAY = (RedisError, OSError)


@dataclass(eq=False)
class Claim:
    """One delivery's claim on its shard."""

    run: str
    shard: str
    keys: Keys
    token: str
    """Unique to this delivery."""
    draining: bool = False
    """The run wants nothing new on the wire."""


_Claim = TypeVar("_Claim", bound=Claim)


class Claims:
    """All claims of one worker process. What fails without Redis is retried, or left to the claim's TTL."""

    def __init__(self, client: Redis, renewing: Connection, stopping: asyncio.Event, ttl_s: float) -> None:
        """``renewing``: to the same Redis, for renewals alone: each second they cost less than through ``client``.

        Nothing is claimed once ``stopping`` is set.
        """
        self._redis = client
        self._give_up = client.register_script(_GIVE_UP.text)
        self._renewing = renewing
        self._stopping = stopping
        self._ttl_ms = int(ttl_s * 1000)

    async def take(self, claim: Claim) -> bool:
        """Waits while another delivery holds the shard. False if the shard is gone.

        Raises celery's Reject when the worker stops.
        """
        while True:
            if self._stopping.is_set():
                raise Reject("the worker stops", requeue=True)
            with contextlib.suppress(*_AWAY):
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.set(claim.keys.claim(claim.shard), claim.token, nx=True, px=self._ttl_ms)
                    pipe.exists(claim.keys.shard(claim.shard))
                    pipe.get(claim.keys.claim(claim.shard))
                    # The submitter sets the flag before it looks for claims, so whoever claims later must see it.
                    pipe.exists(claim.keys.drain)
                    _, recorded, holder, draining = await pipe.execute()
                if holder == claim.token:
                    if recorded:
                        claim.draining = bool(draining)
                        return True
                    await self.end_empty(claim)
                if not recorded:
                    return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _WAIT_S)

    async def begin(self, claim: Claim) -> set[str]:
        """The ids of the requests still wanted."""
        while True:
            try:
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.hkeys(claim.keys.shard(claim.shard))
                    pipe.incr(claim.keys.tries(claim.shard))
                    pipe.expire(claim.keys.tries(claim.shard), TTL_S)
                    wanted, _, _ = await pipe.execute()
                return set(wanted)
            except _AWAY:
                await asyncio.sleep(_WAIT_S)

    async def wanted(self, claim: Claim) -> set[str]:
        """The ids of the requests still wanted. Raises redis.RedisError or OSError."""
        ids: Any = await self._redis.hkeys(claim.keys.shard(claim.shard))
        return set(ids)

    async def end_empty(self, claim: Claim) -> None:
        """Remove a shard of which nothing is wanted any more. If this fails, its keys stay until their TTLs end."""
        with contextlib.suppress(*_AWAY):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.zrem(claim.keys.shards, claim.shard)
                pipe.delete(claim.keys.claim(claim.shard), claim.keys.tries(claim.shard))
                await pipe.execute()

    async def give_up(self, claim: Claim, *, given_back: bool) -> None:
        """Let the next delivery claim the shard at once, unless it did. A shard given back does not count as a try."""
        keys = [claim.keys.claim(claim.shard), claim.keys.tries(claim.shard)]
        with contextlib.suppress(*_AWAY):
            async with asyncio.timeout(1.0):
                await self._give_up(keys=keys, args=[claim.token, int(given_back)])

    async def keep(
        self, held: Callable[[], Sequence[_Claim]], on_state: Callable[[_Claim, str, int], None], every_s: float
    ) -> None:
        """Renew the claims of ``held()`` every ``every_s`` seconds, forever.

        ``on_state(claim, state, wanted)`` is called for each that was renewed; claims.lua names the states. ``wanted``:
        how many of its requests have no outcome in Redis and were not withdrawn.
        """
        while True:
            await asyncio.sleep(until_tick(every_s))
            claims = held()
            for run in {claim.run for claim in claims}:  # only one run's keys are in one slot of a Redis Cluster
                try:
                    await self._renew([claim for claim in claims if claim.run == run], on_state)
                except (ConnectionDown, *_AWAY) as error:
                    log.debug("claims not renewed: %s", error)

    async def _renew(self, claims: Sequence[_Claim], on_state: Callable[[_Claim, str, int], None]) -> None:
        keys = claims[0].keys
        names = [keys.drain]
        for claim in claims:
            names += (keys.claim(claim.shard), keys.shard(claim.shard))
        arguments = [len(names), *names, self._ttl_ms, *(claim.token for claim in claims)]
        if not self._renewing.connected:
            await self._renewing.connect()
        try:
            states = await self._renewing.call("EVALSHA", _RENEW.sha, *arguments)
        except NoScriptError:
            states = await self._renewing.call("EVAL", _RENEW.text, *arguments)
        for claim, (state, wanted) in zip(claims, states, strict=True):
            on_state(claim, state.decode(), wanted)
