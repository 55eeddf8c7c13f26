"""What the page shows of the fleet: the figures of ``brimful status``, and the runs under way."""

from __future__ import annotations

from typing import Any

import redis

from brimful.state.broker_queues import read_queues
from brimful.state.keys import run_key, weights_key
from brimful.state.status import Status, read_status

_RUN_S = 10.0
"""A run that has not stated its weight for this long is over."""
_MOST_RUNS = 20
_OF_STATUS = (
    *("tag", "epoch", "rebuilding", "slots", "slots_used", "cooling", "starts", "starts_used", "window_s"),
    *("tokens", "tokens_used", "budget", "budget_spent", "waiting", "pause_s", "pause_reason", "circuit_breaker"),
    *("failures", "next_start_s"),
)
_OF_WORKER = ("name", "held", "interactive", "batch", "heard_s", "version", "rtt_ms")


def read_figures(client: redis.Redis, tag: str, fleet: str, rabbitmq_url: str | None = None) -> dict[str, Any]:
    """JSON-ready, under the names that ``brimful status --json`` has. ``client`` answers with str.

    ``rabbitmq_url``: the broker, where it is not Redis. Blocks. Raises redis.RedisError or OSError; BrokerUnreachable
    where RabbitMQ is away.
    """
    status = read_status(client, tag)
    queues = read_queues(client, fleet, rabbitmq_url)
    return {**of_status(status), "queues": queues.lengths, "unacked": queues.unacked, "runs": _runs(client, fleet)}


def of_status(status: Status) -> dict[str, Any]:
    """Without the provider's words, which may repeat a prompt, and without addresses and process ids."""
    found: dict[str, Any] = {name: getattr(status, name) for name in _OF_STATUS}
    found["workers"] = [{name: getattr(worker, name) for name in _OF_WORKER} for worker in status.workers]
    health = status.provider
    found["provider"] = health and {"state": health.state, "since": health.since, "status": health.status}
    return found


def _runs(client: redis.Redis, fleet: str) -> list[dict[str, Any]]:
    """Runs and batches under way: shares of the fleet and shards that are not finished, the largest first."""
    seconds, micros = _pair(client.time())
    stated: Any = client.zrangebyscore(weights_key(fleet), seconds + micros / 1e6 - _RUN_S, "+inf")
    runs = [(run, weight) for weight, _, run in (each.partition(" ") for each in stated)][:_MOST_RUNS]
    with client.pipeline(transaction=False) as pipe:
        for run, _ in runs:
            pipe.zcard(run_key(run, "shards"))
        open_shards = pipe.execute()
    found = [
        {"run": run, "weight": float(weight), "shards": shards}
        for (run, weight), shards in zip(runs, open_shards, strict=True)
    ]
    return sorted(found, key=lambda each: -each["shards"])


def _pair(value: Any) -> tuple[int, int]:
    return int(value[0]), int(value[1])
