"""Lets the keys of a key tag expire that nobody uses any more.

Every process that is no worker sets their time to live when it starts, every ten minutes and when it leaves. A fleet's
worker takes it away: what a fleet has spent, and its limits, wait for it for as long as it takes. The operator's limits
(``brimful limits set``) never expire.

Failure mode: keys that were made after the last of those times, by a process that was killed, stay until the next
process with this tag sets it. Where a worker of an earlier version uses keys that expire, it is as if Redis had lost
them: what workers hold and started is reported again, and the limits are kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from brimful.state.keys import TAGS, admission_keys
from brimful.state.redis_retry import reraise_cancellation

log = logging.getLogger(__name__)

IDLE_S = 7 * 86400
"""The keys live this much longer than the longest use of them."""
_REFRESH_S = 600.0
_LOOKED_AT = 20
"""Old tags that one start looks at."""


async def keep_keys(client: Redis, tag: str) -> None:
    """Let none of the tag's keys expire. Raises RedisError or OSError."""
    pipe: Any = client.pipeline(transaction=False)
    for key in admission_keys(tag).values():
        pipe.persist(key)
    await pipe.execute()


async def expire_keys(client: Redis, tag: str, window_s: float) -> None:
    """Let the tag's keys expire unless this is called again, or a worker uses them. Raises RedisError or OSError."""
    names = admission_keys(tag)
    described: Any = await client.hvals(names["workers"])
    if any(json.loads(text).get("fleet", "") is not None for text in described):
        return
    pipe: Any = client.pipeline(transaction=False)
    for name, key in names.items():
        if name != "limits":
            pipe.expire(key, IDLE_S + round(2 * window_s))
    await pipe.execute()


async def forget_tags(client: Redis) -> None:
    """Remove from the list of tags those whose keys have expired. Raises RedisError or OSError."""
    old: Any = await client.zrangebyscore(TAGS, "-inf", time.time() - IDLE_S, start=0, num=_LOOKED_AT)
    for tag in old:
        if not await client.exists(admission_keys(tag)["state"]):
            await client.zrem(TAGS, tag)


async def keep_expiring(client: Redis, tag: str, window_s: float) -> None:
    """Call :func:`expire_keys` every ten minutes, until cancelled."""
    while True:
        await asyncio.sleep(_REFRESH_S)
        try:
            await reraise_cancellation(lambda: expire_keys(client, tag, window_s))
        except (OSError, RedisError, ValueError) as error:
            log.debug("admission: the keys' time to live was not set: %s", error)
