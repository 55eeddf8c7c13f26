"""The limits in force: the profile's, until an operator has changed them for the whole fleet."""

from __future__ import annotations

from redis.asyncio import Redis

from brimful.run.pace import Limits
from brimful.status import known_tags_async, read_status_async


async def live_limits(client: Redis) -> Limits | None:
    """None where they cannot be told: no worker has been here yet, or several keys share this Redis."""
    tags = await known_tags_async(client)
    if len(tags) != 1:
        return None
    status = await read_status_async(client, tags[0])
    if not status.slots or not status.window_s:
        return None
    return Limits(status.slots, status.starts, status.window_s)
