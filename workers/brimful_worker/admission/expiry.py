"""Sets when the Redis keys of an API key's admission expire, so that those of unused API keys do not stay for ever.

Every process that is no worker sets their time to live when it starts, every ten minutes and when it leaves. A fleet's
worker takes it away when it starts and every ten minutes: what a fleet has spent, and its limits, wait for it for as
long as it takes. The operator's limits (``brimful limits set``) never expire.

Failure mode: keys that were made after the last of those times, by a process that was killed, stay until the next
process with this tag sets it. Where a worker of an earlier version uses keys that expire, it is as if Redis had lost
them: what workers hold and started is reported again, and the limits are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from json import loads
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, WatchError

from brimful.state.keys import TAGS, admission_keys
from brimful.state.redis_retry import reraise_cancellation

log = logging.getLogger(__name__)

IDLE_S = 7 * 86400
"""The keys live this much longer than the longest use of them."""
_REFRESH_S = 600.0
_LOOKED_AT = 20
"""Old tags that one start looks at."""
_TRIES = 5


async def keep_keys(client: Redis, tag: str) -> None:
    """Let none of the tag's keys expire. Raises RedisError or OSError."""
    pipe: Any = client.pipeline(transaction=False)
    for key in admission_keys(tag).values():
        pipe.persist(key)
    await pipe.execute()


async def expire_keys(client: Redis, tag: str, window_s: float) -> None:
    """Let the tag's keys expire unless this is called again, or a worker uses them. Raises RedisError or OSError."""
    names = admission_keys(tag)
    async with client.pipeline(transaction=True) as pipe:
        for _ in range(_TRIES):
            await pipe.watch(names["workers"])  # a worker that joins meanwhile keeps the keys
            described: Any = await pipe.hvals(names["workers"])
            if any(loads(text).get("fleet", "") is not None for text in described):
                return
            pipe.multi()  # type: ignore[no-untyped-call]
            for name, key in names.items():
                if name != "limits":
                    pipe.expire(key, IDLE_S + round(2 * window_s))
            with contextlib.suppress(WatchError):
                await pipe.execute()
                return


async def forget_tags(client: Redis) -> None:
    """Remove tags whose keys have expired from the list of tags. Looks at some of the old ones, at others each time.

    Raises RedisError or OSError.
    """
    before = time.time() - IDLE_S
    count: int = await client.zcount(TAGS, "-inf", before)
    first = random.randint(0, max(0, count - _LOOKED_AT))
    old: Any = await client.zrangebyscore(TAGS, "-inf", before, start=first, num=_LOOKED_AT)
    for tag in old:
        if not await client.exists(admission_keys(tag)["state"]):
            await client.zrem(TAGS, tag)


async def keep_refreshing(
    refresh: Callable[[], Awaitable[None]], closing: asyncio.Event, every_s: float = _REFRESH_S
) -> None:
    """Call ``refresh`` (:func:`keep_keys` or :func:`expire_keys`) every ten minutes until ``closing`` is set.

    Set ``closing`` to end it. If it were cancelled, redis-py could leave a half-open connection behind.
    """
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), every_s)
            return
        try:
            await reraise_cancellation(refresh)
        except (OSError, RedisError, ValueError) as error:
            log.debug("admission: the keys' time to live was not set: %s", error)
