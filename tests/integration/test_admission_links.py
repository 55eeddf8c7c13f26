"""Broken connections between a process and Redis: nothing is granted twice, nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from brimful.errors import RedisUnreachable
from brimful.state.keys import everyone_channel
from brimful.state.status import read_status
from brimful_worker.admission import Admission, LeaseLost, Limits, StaleGrant
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, TAG, Holding, admissions, hold, marked_clean
from support.chaos import long_only, rounds
from support.proxy import Proxy
from support.sentinel import sentinel
from support.waiting import wait_until_async

pytestmark = pytest.mark.chaos


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


@pytest.fixture
async def proxy(valkey: Valkey) -> AsyncIterator[Proxy]:
    async with Proxy(valkey.port) as proxy:
        yield proxy


async def test_a_lost_reply_costs_no_second_slot_or_start(proxy: Proxy, valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(proxy.url, 1) as (one,):
        proxy.drop_reply_to = b'"ask"'
        held = await hold(one)
        assert proxy.dropped == 1
        assert client.zrange(KEYS["slots"], 0, -1) == [held.lease.id]
        assert client.zcard(KEYS["starts"]) == 1
        proxy.drop_reply_to = b'"release"'
        await held.end()
        await wait_until_async(lambda: proxy.dropped == 2, "the release's reply was swallowed too")
        await (await hold(one)).end()
        assert client.zcard(KEYS["starts"]) == 2


async def test_a_lost_command_is_sent_again(proxy: Proxy, client: redis.Redis) -> None:
    async with admissions(proxy.url, 1) as (one,):
        proxy.drop_request = b'"ask"'
        held = await hold(one)
        assert proxy.dropped == 1
        assert client.zcard(KEYS["starts"]) == 1
        await held.end()


async def test_the_subscriber_is_cut_off_while_a_waiter_is_registered(
    proxy: Proxy, valkey: Valkey, client: redis.Redis
) -> None:
    async with admissions(valkey.url, 1, slots=1) as (direct,), admissions(proxy.url, 1, slots=1) as (one,):
        first = await hold(direct)
        waiting = Holding(one)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "it is in the queue")
        proxy.refuse = True
        proxy.cut(only_subscribed=True)
        await first.end()
        await asyncio.wait_for(waiting.granted.wait(), 60)
        proxy.refuse = False
        await waiting.end()


async def test_the_subscriber_receives_nothing_on_an_open_connection(
    proxy: Proxy, valkey: Valkey, client: redis.Redis
) -> None:
    async with (
        admissions(valkey.url, 1, slots=1, lease_s=3) as (direct,),
        admissions(proxy.url, 1, slots=1, lease_s=3) as (one,),
    ):
        first = await hold(direct)
        waiting = Holding(one)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "it is in the queue")
        proxy.mute_subscribed = True
        await first.end()
        await asyncio.wait_for(waiting.granted.wait(), 60)
        await waiting.end()


async def test_joining_again_in_one_epoch_confirms_all_grants(valkey: Valkey, client: redis.Redis) -> None:
    """A process may join again while the server still knows it."""
    async with admissions(valkey.url, 2, slots=1) as (one, other):
        for _ in range(5):
            await (await hold(one)).end()
        (process,) = client.hkeys(KEYS["pushed"])
        await wait_until_async(lambda: client.hlen(KEYS["inbox"]) == 0, "all is confirmed")
        before = client.hget(KEYS["commands"], process)
        client.hset(KEYS["state"], "epoch", "another")  # what the server knows of its processes stays
        client.publish(everyone_channel(TAG), json.dumps({"epoch": "another"}))
        await wait_until_async(lambda: client.hget(KEYS["commands"], process) != before, "it has joined again")
        assert client.hget(KEYS["pushed"], process) == "5"
        assert client.hget(KEYS["commands"], f"{process} seen") == "5"
        held, waiting = await hold(other), Holding(one)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "it waits")
        await held.end()
        await asyncio.wait_for(waiting.granted.wait(), 60)
        await waiting.end()


async def test_cancelled_at_a_random_moment_under_steady_traffic(
    proxy: Proxy, valkey: Valkey, client: redis.Redis
) -> None:
    limits = {"slots": 16, "starts": None, "cooldown_s": 0}
    randomly = random.Random(7)
    done = 0

    async def one(admission: Admission) -> None:
        nonlocal done
        try:
            async with admission.slot(randomly.choice(["batch", "interactive"])) as lease:
                lease.sent()
                await asyncio.sleep(randomly.random() * 0.01)
                lease.report(ok=True)
            done += 1
        except (StaleGrant, LeaseLost):
            pass

    async with admissions(valkey.url, 2, **limits) as direct, admissions(proxy.url, 1, **limits) as far:
        many = [*direct, *far]
        for number in range(rounds(15, 100)):
            tasks = [asyncio.create_task(one(many[i % 3])) for i in range(60)]
            for task in randomly.sample(tasks, 30):
                asyncio.get_running_loop().call_later(randomly.random() * 0.05, task.cancel)
            if number % 5 == 4:
                proxy.cut()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert [admission.held for admission in many] == [0, 0, 0]
        assert [admission.waiting for admission in many] == [0, 0, 0]
        await wait_until_async(lambda: client.zcard(KEYS["slots"]) == 0, "nothing is held in Redis")
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 0, "nothing waits in Redis")
        held = [await hold(many[i % 3]) for i in range(16)]
        assert read_status(client, TAG).slots_used == 16
        for holding in held:
            await holding.end()
    assert done > 200


async def test_closing_cancels_waiters_and_leaves_the_fleet(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=1) as (one,):
        held = await hold(one)
        waiting = Holding(one)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "one waits")
    results = await asyncio.gather(held.task, waiting.task, return_exceptions=True)
    assert [type(result) for result in results] == [LeaseLost, asyncio.CancelledError]
    with pytest.raises(RuntimeError, match="not started"):
        one.slot()
    assert client.zcard(KEYS["heard"]) == 0
    assert client.zcard(KEYS["batch"]) == 0


async def test_the_script_is_sent_again_after_script_flush(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1) as (one,):
        client.script_flush()
        await (await hold(one)).end()
        assert client.zcard(KEYS["starts"]) == 1


async def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "v.sock"
    with Valkey(tmp_path / "v", options=(f"unixsocket {path}",)) as valkey:
        marked_clean(valkey)
        async with admissions(f"unix://{path}?db=0", 1) as (one,):
            await (await hold(one)).end()


async def test_starting_without_redis_raises() -> None:
    with pytest.raises(RedisUnreachable, match="cannot be reached"):
        await Admission("redis://:secret@127.0.0.1:1/0", TAG, Limits()).start(timeout_s=0.3)


@long_only
async def test_sentinel_promotes_the_replica(tmp_path: Path) -> None:
    quick = ("repl-diskless-sync-delay 0",)
    with Valkey(tmp_path / "first", options=quick) as first, Valkey(tmp_path / "second") as second:
        marked_clean(first)
        replica = redis.Redis.from_url(second.url, decode_responses=True)
        replica.replicaof("127.0.0.1", first.port)
        await wait_until_async(lambda: replica.info("replication")["master_link_status"] == "up", "it replicates")
        with sentinel(tmp_path, first.port) as port, redis.Redis(port=port, decode_responses=True) as watcher:
            await wait_until_async(lambda: watcher.sentinel_slaves("mymaster"), "Sentinel knows the replica")
            async with admissions(f"sentinel://127.0.0.1:{port}/0?master=mymaster", 2, lease_s=3) as (one, two):
                held = [await hold(one), await hold(two)]
                first.kill()
                await wait_until_async(lambda: _is_master(replica), "it is promoted", 60)
                await asyncio.wait_for((await hold(two)).end(), 60)
                await asyncio.gather(*[holding.end() for holding in held], return_exceptions=True)
            await wait_until_async(lambda: read_status(replica, TAG).slots_used == 0, "nothing is held")


def _is_master(client: redis.Redis) -> bool:
    try:
        return bool(client.info("replication")["role"] == "master")
    except redis.RedisError:
        return False  # Sentinel cuts its clients when it promotes it
