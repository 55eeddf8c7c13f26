"""What the page shows of the fleet: the figures of ``brimful status``, and the runs under way."""

from __future__ import annotations

from typing import Any

import redis

from brimful.addresses import FleetAddress
from brimful.names import fleet_in
from brimful.state.broker_queues import read_queues
from brimful.state.keys import run_key, weights_key
from brimful.state.runs.entry import RunEntry
from brimful.state.runs.registry import read_entries
from brimful.state.status import Status, read_status

_RUN_S = 10.0
"""A run that has not stated its weight for this long shares nothing any more."""
_MOST_RUNS = 20
_OF_STATUS = (
    *("tag", "epoch", "rebuilding", "slots", "slots_used", "cooling", "starts", "starts_used", "window_s"),
    *("tokens", "tokens_used", "budget", "budget_spent", "waiting", "pause_s", "pause_reason", "circuit_breaker"),
    *("failures", "next_start_s", "limits"),
)
_OF_ENTRY = ("total", "done", "failed", "rate")
_OF_WORKER = ("name", "held", "interactive", "batch", "heard_s", "version", "rtt_ms")


def read_figures(client: redis.Redis, tag: str, address: FleetAddress) -> dict[str, Any]:
    """JSON-ready, under the names that ``brimful status --json`` has. ``client`` answers with str.

    Blocks. Raises redis.RedisError or OSError; BrokerUnreachable where RabbitMQ is away.
    """
    status = read_status(client, tag)
    queues = read_queues(client, address)
    runs = _runs(client, address.fleet)
    return {**of_status(status), "queues": queues.lengths, "unacked": queues.unacked, "runs": runs}


def of_status(status: Status) -> dict[str, Any]:
    """Without the provider's words, which may repeat a prompt, and without addresses and process ids."""
    found: dict[str, Any] = {name: getattr(status, name) for name in _OF_STATUS}
    found["workers"] = [{name: getattr(worker, name) for name in _OF_WORKER} for worker in status.workers]
    health = status.provider
    found["provider"] = health and {"state": health.state, "since": health.since, "status": health.status}
    return found


def _runs(client: redis.Redis, fleet: str) -> list[dict[str, Any]]:
    """Runs and batches under way, those that are held too, and maps: the newest first, maps last.

    ``shards`` are not finished. A map has no entry in Redis: ``state`` and the figures in prompts are None.
    """
    weights = _weights(client, fleet)
    entries = {entry.run: entry for entry in read_entries(client, live=True) if fleet_in(entry.run) == fleet}
    runs = list(dict.fromkeys([*entries, *weights]))[:_MOST_RUNS]
    with client.pipeline(transaction=False) as pipe:
        for run in runs:
            pipe.zcard(run_key(run, "shards"))
        shards = dict(zip(runs, pipe.execute(), strict=True))
    return [_run(run, entries.get(run), weights.get(run), shards[run]) for run in runs]


def _run(run: str, entry: RunEntry | None, weight: float | None, shards: int) -> dict[str, Any]:
    said = {name: None if entry is None else getattr(entry, name) for name in _OF_ENTRY}
    weight = weight if weight is not None or entry is None else entry.weight
    return {"run": run, "weight": weight, "shards": shards, "state": entry and entry.state_now, **said}


def _weights(client: redis.Redis, fleet: str) -> dict[str, float]:
    """Run or map → its weight, of those that share the fleet's slots now: a held one does not."""
    seconds, micros = _pair(client.time())
    stated: Any = client.zrangebyscore(weights_key(fleet), seconds + micros / 1e6 - _RUN_S, "+inf")
    return {run: float(weight) for weight, _, run in (each.partition(" ") for each in stated)}


def _pair(value: Any) -> tuple[int, int]:
    return int(value[0]), int(value[1])
