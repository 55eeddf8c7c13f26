"""What of a run is in Redis, key by key, and what is left after its purge: beside another run's, and a fleet's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from brimful.dispatch.purge import StoredRun, has_submitter, purge_run, stored_runs
from brimful.state.broker_queues import UNACKED, list_names
from brimful.state.keys import RUNS, entry_key, weights_key
from brimful_worker.local.server.valkey import Valkey
from support.dispatch_parts import Parts, open_parts, singles
from support.packed import packed

INDEX = "unacked_index"
PAGE = 50


@pytest.fixture
async def parts(server: Valkey) -> AsyncIterator[Parts]:
    async with open_parts(server.url) as parts:
        yield parts


@pytest.fixture
async def other(parts: Parts, server: Valkey) -> AsyncIterator[Parts]:
    other = Parts(parts.client, server.url, run="other")
    yield other
    await other.enqueuer.aclose()


@pytest.fixture
def blocking(server: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


async def take(parts: Parts, tag: str) -> None:
    """A worker has taken the latest message of the queue, and not acknowledged it."""
    raw = await parts.client.lpop("batch")
    await parts.client.hset(UNACKED, tag, json.dumps([json.loads(str(raw)), "", "batch"]))
    await parts.client.zadd(INDEX, {tag: 1})


async def snapshot(parts: Parts) -> dict[str, bytes]:
    """Every key but the names of queues."""
    keys = sorted(key for key in await parts.client.keys("*") if not key.startswith("_kombu."))
    return {key: await parts.client.dump(key) for key in keys}


async def test_a_purge_leaves_nothing_of_the_run_and_all_of_the_others(
    parts: Parts, other: Parts, blocking: redis.Redis
) -> None:
    for number in range(PAGE + 10):
        await other.enqueued(*singles(number))
    await take(other, "theirs")
    await other.end(packed("q0", 0))
    await other.ledger.weigh(0.5)
    await parts.client.zadd(RUNS, {"other": 1})
    before = await snapshot(parts)

    for line in range(PAGE + 4):
        await parts.enqueued(*singles(line))
    await parts.enqueued(packed("now", 99, workload="interactive"))
    for step in list_names("batch")[1:]:
        await parts.client.lmove("batch", step, "LEFT", "LEFT")
    await take(parts, "mine")
    dead = next(iter(parts.in_flight.shards.values()))
    await parts.claim(dead)
    await parts.client.pexpire(parts.ledger.keys.claim(dead.id), 50)
    for each in singles(0, 1):
        await parts.end(each)
    await parts.ledger.drain(True)
    await parts.ledger.weigh(1.0)
    await parts.client.zadd(RUNS, {"r": 1})
    await parts.client.hset(entry_key("r"), "state", "running")

    assert stored_runs(blocking) == [StoredRun("other", PAGE + 10, 1), StoredRun("r", PAGE + 5, 2)]
    expired = (await parts.client.info("stats"))["expired_keys"]
    assert await asyncio.to_thread(purge_run, blocking, "r") == PAGE + 5
    assert (await parts.client.info("stats"))["expired_keys"] == expired + 1, "it has waited for the worker's claim"
    assert stored_runs(blocking) == [StoredRun("other", PAGE + 10, 1)]
    assert await snapshot(parts) == before


async def test_a_purge_is_the_named_fleet_s(parts: Parts, blocking: redis.Redis) -> None:
    await parts.client.zadd(weights_key("f"), {"1 f.r": 1, "1 f.other": 1})
    await parts.client.zadd(weights_key(""), {"1 f.r": 1})
    await parts.client.hset(entry_key("f.r"), "state", "running")
    assert stored_runs(blocking) == [StoredRun("f.r", 0, 0)]
    assert await asyncio.to_thread(purge_run, blocking, "f.r") == 0
    assert await parts.client.zrange(weights_key("f"), 0, -1) == ["1 f.other"]
    assert await parts.client.zrange(weights_key(""), 0, -1) == ["1 f.r"]
    assert stored_runs(blocking) == []


async def test_a_run_of_which_only_its_end_is_remembered_has_nothing_stored(
    parts: Parts, blocking: redis.Redis
) -> None:
    await parts.ledger.clear(keep=False)
    assert await parts.client.exists(parts.ledger.keys.closed)
    assert stored_runs(blocking) == []


async def test_a_run_whose_weight_was_stated_lately_has_a_submitter(parts: Parts, blocking: redis.Redis) -> None:
    assert not has_submitter(blocking, "r")
    await parts.ledger.weigh(1.0)
    assert has_submitter(blocking, "r")
    assert not has_submitter(blocking, "other")
    assert not has_submitter(blocking, "f.r")
    [now, _] = await parts.client.time()
    await parts.client.zadd(weights_key(""), {"1 r": now - 100})
    assert not has_submitter(blocking, "r")
