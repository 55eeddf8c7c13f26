"""The store of outcomes: in how many steps and in which order they go to Redis."""

from __future__ import annotations

import asyncio

import pytest
import redis
from redis.asyncio import Redis

from brimful.dispatch.ledger import Keys, RunLedger
from brimful.dispatch.purge import stored_runs
from brimful.outcome import Outcome
from brimful.state.redis_url import redis_client
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.shards.store import Store
from support.waiting import wait_until_async


async def steps(client: Redis) -> int:
    told = await client.info("commandstats")
    return sum(told.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


async def test_outcomes_of_interleaved_runs_take_a_step_per_run(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        store = Store(client, in_hand=lambda: 2000)
        runs = [Keys("one"), Keys("two"), Keys("three")]
        before = await steps(client)
        put = [
            store.put(keys, "shard", f"{number}", [[number, 0, 1]], Outcome(f"{number}", completion={}), last=bool)
            for number in range(40)
            for keys in runs
        ]
        assert store.waiting == 120
        await asyncio.wait_for(asyncio.gather(*put), 60)
        assert store.waiting == 0
        assert await steps(client) - before <= 2 * len(runs)  # a script that is not known yet is sent again
        for keys in runs:
            rows = await client.xrange(keys.results)
            assert [fields["id"] for _, fields in rows] == [f"{number}" for number in range(40)]
        await store.aclose(5)


async def test_a_step_removes_the_requests_of_each_shard_that_have_ended_and_no_others(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        store, keys = Store(client, in_hand=lambda: 2000), Keys("shards")
        for shard in ("one", "two", "three"):
            await client.hset(keys.shard(shard), mapping={f"{shard}{number}": "[]" for number in range(4)})
        ended = [(shard, f"{shard}{number}") for number in range(3) for shard in ("one", "two")]
        put = [store.put(keys, shard, id, [], Outcome(id, completion={}), last=bool) for shard, id in ended]
        await asyncio.wait_for(asyncio.gather(*put), 60)
        assert [fields["id"] for _, fields in await client.xrange(keys.results)] == [id for _, id in ended]
        left = [await client.hkeys(keys.shard(shard)) for shard in ("one", "two", "three")]
        assert left == [["one3"], ["two3"], [f"three{number}" for number in range(4)]]
        await store.aclose(5)


async def test_outcomes_are_stored_in_the_order_they_were_put(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        store = Store(client)
        keys, done = Keys("run"), list[asyncio.Future[None]]()
        puts = [
            store.put(keys, "shard", f"{number}", [], Outcome(f"{number}", completion={}), last=bool)
            for number in range(500)
        ]
        for put in puts:
            put.add_done_callback(done.append)
        await asyncio.wait_for(puts[-1], 60)
        await asyncio.sleep(0)
        assert done == puts
        assert await client.xlen(keys.results) == 500
        await store.aclose(5)


async def test_of_a_map_that_has_ended_nothing_stays(valkey: Valkey) -> None:
    """Neither what its caller did not read, nor what a worker stores late."""
    async with redis_client(valkey.url) as client:
        store = Store(client)
        for run, keep in (("map", False), ("run", True)):
            keys, ledger = Keys(run), RunLedger(client, run)
            await asyncio.wait_for(
                store.put(keys, "shard", "early", [], Outcome("early", completion={}), last=bool), 20
            )
            await ledger.clear(keep=keep)
            await asyncio.wait_for(store.put(keys, "shard", "late", [], Outcome("late", completion={}), last=bool), 60)
        assert await client.xlen(Keys("map").results) == 0
        assert await client.xlen(Keys("run").results) == 2
        await store.aclose(5)
    with redis.Redis.from_url(valkey.url) as connection:
        assert [stored.run for stored in stored_runs(connection)] == ["run"]


async def test_a_run_that_cannot_be_stored_does_not_delay_others(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        bad, good = Keys("bad"), Keys("good")
        await client.set(bad.results, "no stream")
        store = Store(client)
        waiting = store.put(bad, "shard", "0", [], Outcome("0", completion={}), last=bool)
        for number in range(300):
            put = store.put(good, "shard", f"{number}", [], Outcome(f"{number}", completion={}), last=bool)
        await asyncio.wait_for(put, 60)
        assert not waiting.done()
        assert store.waiting == 1
        await client.delete(bad.results)
        await asyncio.wait_for(waiting, 60)
        assert await client.xlen(bad.results) == 1
        await store.aclose(5)


async def test_an_outcome_that_redis_will_never_take_is_a_failure(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        await client.config_set("proto-max-bulk-len", "2mb")
        store, keys = Store(client), Keys("run")
        for id, size in (("before", 10), ("large", 3_000_000), ("after", 10)):
            outcome = Outcome(id, completion={"text": "x" * size}, attempts=2, worker="w")
            put = store.put(keys, "shard", id, [], outcome, last=bool)
        await asyncio.wait_for(put, 60)
        outcomes = [result.outcome for result in await RunLedger(client, "run").results("0", 10, None)]
        await store.aclose(5)
    assert [(outcome.id, outcome.ok, outcome.attempts) for outcome in outcomes] == [
        ("before", True, 2),
        ("large", False, 2),
        ("after", True, 2),
    ]
    failure = outcomes[1].failure
    assert failure is not None
    assert failure.message.startswith("the answer is too large for Redis: 3,000,")


@pytest.mark.parametrize("name", ["maxmemory", "min-replicas-to-write"])
async def test_an_outcome_waits_while_redis_refuses(valkey: Valkey, name: str) -> None:
    async with redis_client(valkey.url) as client:
        await client.config_set(name, "1")
        store, keys = Store(client), Keys("run")
        outcome = Outcome("1", completion={"text": "x" * 3_000_000})
        put = store.put(keys, "shard", "1", [], outcome, last=bool)
        await wait_until_async(lambda: _failed_calls(client), "some tries")
        assert not put.done()
        await client.config_set(name, "0")
        await asyncio.wait_for(put, 60)
        assert await client.xlen(keys.results) == 1
        await store.aclose(5)


async def _failed_calls(client: Redis) -> bool:
    """Whether more were refused than are taken for a sign of an outcome that is too large."""
    told = await client.info("commandstats")
    return sum(told.get(f"cmdstat_{name}", {}).get("failed_calls", 0) for name in ("evalsha", "eval")) > 5


async def test_outcomes_that_nobody_collects_expire(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        store, keys = Store(client, expires_s=60), Keys("run")
        await asyncio.wait_for(store.put(keys, "shard", "1", [], Outcome("1", completion={}), last=bool), 60)
        await store.aclose(5)
        assert 0 < await client.ttl(keys.results) <= 60
