"""The limits in force: the profile's, until an operator has changed them for the whole fleet."""

from __future__ import annotations

from redis.asyncio import Redis

from brimful.packing.slot_model import Limits
from brimful.state.status import known_tags_async, read_limits_async


async def live_limits(client: Redis) -> Limits | None:
    """None where they cannot be told: no worker has been here yet, or several keys share this Redis."""
    tags = await known_tags_async(client)
    if len(tags) != 1:
        return None
    limits = await read_limits_async(client, tags[0])
    slots, window_s = int(limits.get("slots", 0)), limits.get("window_s", 0.0)
    return Limits(slots, int(limits.get("starts", 0)) or None, window_s) if slots and window_s else None
