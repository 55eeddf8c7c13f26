"""How much waits in Celery's queues, read from Redis as kombu lays them out."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from brimful.names import QUEUES
from brimful.state.redis_url import broker_options


@dataclass(frozen=True, slots=True)
class Queues:
    lengths: dict[str, int]
    """Messages by queue, all priorities together."""
    unacked: int
    """Messages in workers' hands: running, or taken and not begun."""


def read_queues(client: redis.Redis) -> Queues:
    """Plain commands in one round trip. Raises redis.RedisError."""
    steps = broker_options(None, 15)["priority_steps"]
    with client.pipeline(transaction=False) as pipe:
        for queue in QUEUES:
            for step in steps:
                pipe.llen(_list_name(queue, step))
        pipe.hlen("unacked")
        *lengths, unacked = pipe.execute()
    per_queue = {
        queue: sum(lengths[place * len(steps) : (place + 1) * len(steps)]) for place, queue in enumerate(QUEUES)
    }
    return Queues(per_queue, unacked)


def _list_name(queue: str, step: int) -> str:
    """kombu's ``_q_for_pri`` with its default separator: the most urgent step has the queue's own name."""
    return f"{queue}\x06\x16{step}" if step else queue
