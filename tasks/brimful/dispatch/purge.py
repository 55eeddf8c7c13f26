"""Removes what a run left in Redis: queued prompts, uncollected completions, its ledger."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from brimful.dispatch.ledger import CLAIM_TTL_S, STATED_S, Keys
from brimful.names import QUEUES, fleet_in, of_fleet
from brimful.state.broker_queues import UNACKED, list_names, parse_message
from brimful.state.keys import RUNS, run_key, weights_key

_PAGE = 50
_END_S = CLAIM_TTL_S + 5.0
"""A worker stops a withdrawn shard within about a second; a dead one's claim has expired by then."""
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class StoredRun:
    run: str
    """With its fleet's name before it, if that has one."""
    shards: int
    """That have requests without an outcome."""
    outcomes: int
    """That no submitter has collected."""


def stored_runs(client: redis.Redis) -> list[StoredRun]:
    """The runs and maps of all fleets in this database: all that have a key. Raises redis.RedisError."""
    pattern = re.compile(re.escape(run_key("*", "")).replace(r"\*", "(.*?)").encode())
    stored = (key for key in client.scan_iter(run_key("*", "*"), 1000) if not key.endswith(b":closed"))
    names = {match[1].decode() for key in stored if (match := pattern.match(key))}
    return [stored_run(client, run) for run in sorted(names)]


def stored_run(client: redis.Redis, run: str) -> StoredRun:
    """What the run has in Redis, nothing of it included. Raises redis.RedisError."""
    keys = Keys(run)
    return StoredRun(run, int(client.zcard(keys.shards)), int(client.xlen(keys.results)))


def has_submitter(client: redis.Redis, run: str) -> bool:
    """Whether a submitter is at work on the run, also of a release that writes no entry. Raises redis.RedisError."""
    now: Any = client.time()
    since = now[0] - STATED_S
    stated: Any = client.zrangebyscore(weights_key(fleet_in(run)), since, "+inf")
    return any(_run_of(each) == run for each in stated)


def purge_run(client: redis.Redis, run: str) -> int:
    """Delete everything of a run; workers stop what they have of it. Returns the number of deleted messages.

    ``client`` answers with bytes. ``run``: as in :class:`StoredRun`. Raises redis.RedisError.
    """
    keys, fleet = Keys(run), fleet_in(run)
    recorded: Any = client.zrange(keys.shards, 0, -1)
    shards = [shard.decode() for shard in recorded]
    with client.pipeline(transaction=True) as pipe:
        for shard in shards:
            pipe.delete(keys.shard(shard), keys.tries(shard))
        pipe.delete(keys.shards)
        pipe.execute()
    deleted = _delete_queued(client, run, fleet)
    end = time.monotonic() + _END_S
    while any(client.scan_iter(f"{run_key(run, 'claim')}:*", 1000)) and time.monotonic() < end:
        time.sleep(_LOOK_S)
    deleted += _delete_delivered(client, run, fleet)
    stated: Any = client.zrange(weights_key(fleet), 0, -1)
    if weights := [each for each in stated if _run_of(each) == run]:
        client.zrem(weights_key(fleet), *weights)
    client.zrem(RUNS, run)
    if left := list(client.scan_iter(run_key(run, "*"), 1000)):
        client.delete(*left)
    return deleted


def _run_of(stated: bytes) -> str:
    return stated.partition(b" ")[2].decode()


def _delete_queued(client: redis.Redis, run: str, fleet: str) -> int:
    deleted = 0
    for queue in QUEUES:
        for name in list_names(of_fleet(fleet, queue)):
            for raw in [raw for raw in _items(client, name) if _belongs(raw, run)]:
                deleted += int(client.lrem(name, 1, raw))
    return deleted


def _delete_delivered(client: redis.Redis, run: str, fleet: str) -> int:
    """Messages of dead workers: live ones have acknowledged theirs."""
    unacked, index = of_fleet(fleet, UNACKED), of_fleet(fleet, "unacked_index")
    tags = [tag for tag, raw in client.hscan_iter(unacked, count=_PAGE) if _belongs(raw, run)]
    if tags:
        client.zrem(index, *tags)
        client.hdel(unacked, *tags)
    return len(tags)


def _items(client: redis.Redis, name: str) -> Iterator[Any]:
    start = 0
    while page := client.lrange(name, start, start + _PAGE - 1):
        yield from page
        start += len(page)


def _belongs(raw: Any, run: str) -> bool:
    message = parse_message(raw)
    return message is not None and message.run == run
