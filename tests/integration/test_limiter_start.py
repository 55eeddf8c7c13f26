"""The start of a limiter, when those that wait for it give up."""

from __future__ import annotations

import asyncio

import pytest
import redis

from brimful.state.keys import TAGS
from brimful_worker.admission import Admission, EvictingRedis, Limits
from brimful_worker.limiter import SlotTimeout
from brimful_worker.local.server.valkey import Valkey
from support.limiters import NAME, limiters
from support.proxy import Proxy
from support.waiting import wait_until_async

HEARD = f"brimful:{{{NAME}}}:heard"
"""The processes that have joined."""


async def test_it_starts_though_timeouts_are_shorter_than_the_start(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=1) as (limiter,):
        with redis.Redis.from_url(valkey.url) as client:
            for _ in range(3):
                with pytest.raises(SlotTimeout):
                    async with limiter.slot(timeout_s=0):
                        pytest.fail("Redis has not answered yet")
            await wait_until_async(lambda: client.zcard(HEARD) == 1, "it has joined once")
            async with limiter.slot(timeout_s=60):
                assert client.zcard(HEARD) == 1
            await limiter.aclose()
            assert client.zcard(HEARD) == 0


async def test_one_start_fails_for_all_that_wait_and_is_made_again(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=1) as (limiter,):
        with redis.Redis.from_url(valkey.url) as client:
            client.config_set("maxmemory", "1gb")
            client.config_set("maxmemory-policy", "allkeys-lru")
            found = await asyncio.gather(limiter.start(), limiter.start(), return_exceptions=True)
            assert [type(error) for error in found] == [EvictingRedis] * 2
            client.config_set("maxmemory-policy", "noeviction")
            await limiter.start()
            assert client.zcard(HEARD) == 1


async def test_a_start_that_is_cancelled_after_the_join_leaves_again(valkey: Valkey) -> None:
    async with Proxy(valkey.port) as proxy:
        proxy.before = (TAGS.encode(), proxy.freeze)  # what comes after the join
        admission = Admission(proxy.url, NAME, Limits(slots=1, starts=None, circuit_breaker=0))
        starting = asyncio.create_task(admission.start())
        await wait_until_async(lambda: not proxy.frozen.is_set(), "the join")
        starting.cancel()
        proxy.thaw()
        with pytest.raises(asyncio.CancelledError):
            await starting
    with redis.Redis.from_url(valkey.url) as client:
        assert client.zcard(HEARD) == 0
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert "brimful-coordinator" not in names
