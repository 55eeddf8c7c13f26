"""Starts without a slot, as polls of Jobs need them."""

from __future__ import annotations

import asyncio

import pytest
import redis

from brimful.state.status import read_status
from brimful_worker.admission import Admission, StaleGrant
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, TAG, Holding, admissions, hold, marked_clean
from support.waiting import wait_until_async


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


async def start(admission: Admission) -> None:
    async with admission.start_only() as lease:
        lease.sent()


async def test_it_takes_a_start_and_no_slot(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=1, starts=10) as (one, two):
        held, waiting = await hold(one), Holding(two)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "a request waits for the slot")
        for admission in (one, two):
            await start(admission)
        status = read_status(client, TAG)
        assert (status.slots_used, status.starts_used) == (1, 3)
        assert not waiting.granted.is_set()
        await held.end()
        await asyncio.wait_for(waiting.granted.wait(), 60)
        await waiting.end()
        assert (one.held, one.waiting) == (0, 0)


async def test_it_waits_for_the_window_and_goes_first(valkey: Valkey, client: redis.Redis) -> None:
    order: list[str] = []

    async def note(admission: Admission, what: str) -> None:
        async with admission.start_only() if what == "start" else admission.slot("interactive"):
            order.append(what)

    async with admissions(valkey.url, 2, slots=4, starts=2, window_s=3.0, guard_s=0.5) as (one, two):
        held = [await hold(one)]
        first = boot_time()
        await wait_until_async(lambda: boot_time() - first > 0.2, "the second start is later than the first")
        held.append(await hold(one))
        request = asyncio.create_task(note(one, "request"))
        await wait_until_async(lambda: client.zcard(KEYS["interactive"]) == 1, "a request waits for the window")
        poll = asyncio.create_task(note(two, "start"))
        await wait_until_async(lambda: client.zcard(KEYS["start_only"]) == 1, "a start waits for the window")
        await asyncio.gather(request, poll)
        assert order[0] == "start"
        assert boot_time() - first > 3.0
        for holding in held:
            await holding.end()


async def test_it_waits_for_a_pause_but_not_for_the_circuit_breaker(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=2, circuit_breaker=1) as (one,):
        await (await hold(one)).end(ok=False)
        await wait_until_async(lambda: read_status(client, TAG).circuit_breaker == "open", "the breaker is open")
        await start(one)
        paused = boot_time()
        await one.pause(2.0, "Retry-After")
        await wait_until_async(lambda: read_status(client, TAG).pause_reason is not None, "the pause is in force")
        await start(one)
        assert boot_time() - paused > 1.95


async def test_a_stale_one_is_given_back(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, guard_s=0.3) as (one,):
        with pytest.raises(StaleGrant):  # noqa: PT012
            async with one.start_only() as lease:
                assert client.zcard(KEYS["starts"]) == 1
                await wait_until_async(lambda: boot_time() > lease.wire_deadline, "the guard's local part is over")
                lease.sent()
        await wait_until_async(lambda: client.zcard(KEYS["starts"]) == 0, "the start is back")


async def test_a_cancelled_one_leaves_the_queue(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, starts=1) as (one,):
        await start(one)
        poll = asyncio.create_task(start(one))
        await wait_until_async(lambda: client.zcard(KEYS["start_only"]) == 1, "it waits")
        poll.cancel()
        await wait_until_async(lambda: client.zcard(KEYS["start_only"]) == 0, "it is gone")
        assert one.waiting == 0


async def test_it_is_remembered_through_lost_memory(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, starts=10) as (one,):
        await start(one)
        client.flushall()
        await start(one)
        assert read_status(client, TAG).starts_used == 2
