"""Celery's queues in Redis, as kombu lays them out: how many messages wait, how long, and where a run's shards are.
Where RabbitMQ is the broker, only the number that waits is known (:mod:`brimful.state.rabbitmq.queues`).

A queue is one list per priority step; messages delivered to workers and not yet acknowledged are in one hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from brimful.addresses import FleetAddress
from brimful.names import QUEUES, SENT_AT, TASK_SHARD, of_fleet
from brimful.state.rabbitmq.queues import read_states
from brimful.state.redis_url import PRIORITY_STEPS

log = logging.getLogger(__name__)

UNACKED = "unacked"
"""HASH, of the unnamed fleet: delivery tag → JSON of ``[message, exchange, routing key]``."""
_PAGE = 50
"""Messages read at once: each may hold a megabyte of prompts."""
_AS_BYTES: dict[str, Any] = {NEVER_DECODE: []}
"""Option of redis-py: anybody may have put an item there that is no text."""


@dataclass(frozen=True, slots=True)
class Queues:
    """Numbers of messages."""

    lengths: dict[str, int]
    """Waiting, by the queue's plain name; all priorities together."""
    unacked: int | None
    """Delivered to workers: running, or prefetched. None: RabbitMQ is the broker, which does not say."""

    def delivered(self, to: str = " ") -> str:
        """``; delivered to workers 3``, to end a line of queue lengths; empty where the number is not known."""
        return "" if self.unacked is None else f"; delivered to workers{to}{self.unacked}"

    @property
    def total(self) -> int:
        return sum(self.lengths.values()) + (self.unacked or 0)


def read_queues(client: redis.Redis, address: FleetAddress) -> Queues:
    """Count the fleet's messages, in one round trip to Redis. Raises redis.RedisError; BrokerUnreachable where RabbitMQ
    is the broker."""
    fleet = address.fleet
    if address.rabbitmq_url is not None:
        return Queues({queue: state.waiting for queue, state in read_states(address.rabbitmq_url, fleet).items()}, None)
    with client.pipeline(transaction=False) as pipe:
        for queue in QUEUES:
            for name in list_names(of_fleet(fleet, queue)):
                pipe.llen(name)
        pipe.hlen(of_fleet(fleet, UNACKED))
        *counts, unacked = pipe.execute()
    lengths = iter(counts)
    return Queues({queue: sum(next(lengths) for _ in PRIORITY_STEPS) for queue in QUEUES}, unacked)


class Oldest(NamedTuple):
    """The message of a queue's list that has waited longest."""

    queue: str
    """Its plain name."""
    list: str
    """The list that holds it: one of the queue's priority steps."""
    digest: bytes
    """Of the whole message. Equal for as long as the same message is the oldest."""
    age_s: float | None
    """Since it was enqueued, by the sender's clock and Redis's. None if its sender did not note when."""


def read_oldest(client: redis.Redis, fleet: str = "") -> list[Oldest]:
    """The oldest message of each of the fleet's lists that holds any, in one round trip. Raises redis.RedisError.

    A message may be as large as a shard: a megabyte.
    """
    lists = [(queue, name) for queue in QUEUES for name in list_names(of_fleet(fleet, queue))]
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        command: Any = pipe.execute_command
        for _, name in lists:
            command("LINDEX", name, -1, **_AS_BYTES)
        (seconds, micros), *items = pipe.execute()
    found = []
    for (queue, name), raw in zip(lists, items, strict=True):
        if raw is not None:
            sent = _sent_at(raw)
            age_s = None if sent is None else max(0.0, seconds + micros / 1e6 - sent)
            found.append(Oldest(queue, name, hashlib.sha256(raw).digest(), age_s))
    return found


def _sent_at(raw: bytes) -> float | None:
    try:
        sent = json.loads(raw)["headers"][SENT_AT]
        return float(sent) if type(sent) in (int, float) and math.isfinite(sent) else None
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


async def find_shards(client: Redis, shards: Collection[str], fleet: str = "") -> dict[str, list[dict[str, Any]]]:
    """Those of ``shards`` that have a message, with the requests it carries. Raises redis.RedisError.

    Reads the unacknowledged messages last: a message that is delivered during the search moves there from its queue.
    """
    wanted = set(shards)
    found: dict[str, list[dict[str, Any]]] = {}
    async for raw in _messages(client, fleet):
        if len(found) == len(wanted):
            break
        message = parse_message(raw)
        if message is not None and message.shard in wanted:
            found[message.shard] = message.requests
    return found


async def _messages(client: Redis, fleet: str) -> AsyncIterator[Any]:
    command: Any = client.execute_command
    for queue in QUEUES:
        for name in list_names(of_fleet(fleet, queue)):
            start = 0
            while page := await command("LRANGE", name, start, start + _PAGE - 1, **_AS_BYTES):
                for raw in page:
                    yield raw
                start += len(page)
    cursor = 0
    while True:
        cursor, entries = await command("HSCAN", of_fleet(fleet, UNACKED), cursor, "COUNT", _PAGE, **_AS_BYTES)
        for raw in entries.values():
            yield raw
        if not cursor:
            return


class ShardMessage(NamedTuple):
    """The arguments of :data:`brimful.shard`."""

    run: str
    shard: str
    requests: list[dict[str, Any]]


def parse_message(raw: Any) -> ShardMessage | None:
    """A ``brimful.shard`` message from a queue or from UNACKED; None for any other message."""
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
        return ShardMessage(str(given["run"]), str(given["shard"]), list(given["requests"]))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        log.debug("skipped a message that is not a shard's: %s", type(error).__name__)
        return None


def list_names(queue: str) -> list[str]:
    """kombu's ``_q_for_pri`` with its default separator: the most urgent step has the queue's own name."""
    return [f"{queue}\x06\x16{step}" if step else queue for step in PRIORITY_STEPS]
