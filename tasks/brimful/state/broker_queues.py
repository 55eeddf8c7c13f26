"""Shards' messages where Celery keeps them: in a queue's list, or unacknowledged in a worker's hands."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Collection
from typing import Any

from redis.asyncio import Redis

from brimful.names import QUEUES, TASK_SHARD

log = logging.getLogger(__name__)

_SEPARATOR = "\x06\x16"
_STEPS = (0, 3, 6, 9)
_UNACKED = "unacked"
_PAGE = 50
"""Messages read at once: each may hold a megabyte of prompts."""


async def find(client: Redis, shards: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Those of the shards that have a message, with the requests that it carries. Raises redis.RedisError.

    Looks into the unacknowledged ones last: a message goes there from its queue, and is looked for meanwhile.
    """
    wanted = set(shards)
    found: dict[str, list[dict[str, Any]]] = {}
    async for raw in _messages(client):
        if len(found) == len(wanted):
            break
        message = parse_message(raw)
        if message is None:
            continue
        shard, requests = message
        if shard in wanted:
            found[shard] = requests
    return found


async def _messages(client: Redis) -> AsyncIterator[Any]:
    for queue in QUEUES:
        for step in _STEPS:
            name = f"{queue}{_SEPARATOR}{step}" if step else queue
            place = 0
            while page := await client.lrange(name, place, place + _PAGE - 1):
                for raw in page:
                    yield raw
                place += len(page)
    async for _, raw in client.hscan_iter(_UNACKED, count=_PAGE):
        yield raw


def parse_message(raw: Any) -> tuple[str, list[dict[str, Any]]] | None:
    """(shard, requests) of a shard's message; None for any other."""
    try:
        message = json.loads(raw)
        if isinstance(message, list):  # [message, exchange, routing key]
            message = message[0]
        if isinstance(message, str):
            message = json.loads(message)
        if message["headers"]["task"] != TASK_SHARD:
            return None
        body = message["body"]
        if message["properties"].get("body_encoding") == "base64":
            body = base64.b64decode(body)
        args, kwargs, _ = json.loads(body)
        given = dict(zip(("run", "shard", "requests"), args, strict=False)) | kwargs
        return str(given["shard"]), list(given["requests"])
    except (ValueError, TypeError, KeyError, IndexError) as error:
        log.debug("a message that is no shard's: %s", type(error).__name__)
        return None
