"""Steps of Redis's clock, of any size and either way, seen first by a process that cannot tell them from time.

A step is imitated by a step of what the admission adds to Redis's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from brimful_worker.admission import Admission, LeaseLost, StaleGrant
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, admissions, hold, marked_clean
from support.chaos import LONG
from support.holder import Holder
from support.ledger import Ledger
from support.proxy import Proxy
from support.waiting import wait_until_async

pytestmark = pytest.mark.chaos

SLOTS, STARTS, WINDOW_S = 16, 60, 6.0
LIMITS: dict[str, Any] = {
    "slots": SLOTS,
    "starts": STARTS,
    "window_s": WINDOW_S,
    "guard_s": 0.6,
    "lease_s": 2,
    "cooldown_s": 0.2,
    "circuit_breaker": 0,
}
SIZES_S = (0.1, 0.3, 0.6, 1, 1.5, 1.9, 2.2, 3, 3.9, 4.1, 7, 15, 30)
WAYS = {"slots": (1, -1), "starts": (-1, 1)}
"""In the short form, sizes in turn go one way and the other; the other limit has the other half."""


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    async with Ledger() as ledger:
        yield ledger


@contextlib.contextmanager
def fleet(valkey: Valkey, ledger: Ledger, **options: Any) -> Iterator[list[Holder]]:
    with contextlib.ExitStack() as stack:
        holders = []
        for number in range(2):
            holder = Holder(valkey.url, ledger.port, name=f"h{number}", coroutines=12, spread=0.4, **options)
            stack.callback(holder.close)
            holders.append(holder)
        yield holders


def step(client: redis.Redis, seconds: float) -> None:
    client.hincrby(KEYS["state"], "skew", round(seconds * 1000))


def ahead(client: redis.Redis) -> float:
    """Seconds by which the admission's clock is ahead of this machine's."""
    seconds, micros = client.time()
    return seconds + micros / 1e6 + int(client.hget(KEYS["state"], "skew") or 0) / 1000 - boot_time()


def all_spoke(client: redis.Redis, since: int) -> bool:
    heard: Any = client.zrange(KEYS["heard"], 0, -1, withscores=True)
    return len(heard) == 3 and all(at > since for _, at in heard)


async def visit(admission: Admission, port: int) -> None:
    """A request to the ledger."""
    while True:
        with contextlib.suppress(StaleGrant):
            async with admission.slot() as lease:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                lease.sent()
                lease.watch(writer.transport)
                writer.write(b"new 0.2\n")
                try:
                    await reader.readline()
                finally:
                    writer.close()
                lease.report(ok=True)
                return


@pytest.mark.parametrize("binds", ["slots", "starts"])
async def test_a_step_that_a_newcomer_sees_first(
    valkey: Valkey, client: redis.Redis, ledger: Ledger, binds: str
) -> None:
    limits = LIMITS | ({"starts": None} if binds == "slots" else {})
    signs = [WAYS[binds]] * len(SIZES_S) if LONG else [(WAYS[binds][place % 2],) for place in range(len(SIZES_S))]
    steps = [sign * size for size, some in zip(SIZES_S, signs, strict=True) for sign in some]
    random.Random(4).shuffle(steps)
    async with Proxy(valkey.port) as proxy:
        with fleet(valkey, ledger, limits=limits, hold_s=0.25 if binds == "slots" else 0.03) as holders:
            await asyncio.gather(*[asyncio.to_thread(holder.ready) for holder in holders])
            await wait_until_async(lambda: len(ledger.visits) >= STARTS, "the window is full")
            for seconds in steps:
                if binds == "slots":
                    await wait_until_async(lambda: ledger.active == SLOTS, "all slots are in use")
                proxy.before = b'"join"', functools.partial(step, client, seconds)
                last = int(client.hget(KEYS["state"], "last") or 0)
                async with admissions(proxy.url, 1, **limits) as (new,):
                    assert proxy.before is None
                    visits = [asyncio.create_task(visit(new, ledger.port)) for _ in range(2)]
                    if binds == "slots":
                        await asyncio.gather(*visits)
                    await wait_until_async(functools.partial(all_spoke, client, last), "all have spoken since")
                    for task in visits:
                        task.cancel()
                    await asyncio.gather(*visits, return_exceptions=True)
                assert ledger.most_active <= SLOTS, seconds
                assert binds == "slots" or ledger.most_in_window(WINDOW_S) <= STARTS, seconds
            known = len(ledger.visits)
            await wait_until_async(lambda: len(ledger.visits) >= known + STARTS, "work flows")
            assert [holder.stats()["lost"] for holder in holders] == [0, 0]
    assert ledger.most_active <= SLOTS


@pytest.mark.parametrize("seconds", [-3.0, 0.5, 3.0])
async def test_a_newcomer_to_an_idle_fleet(valkey: Valkey, client: redis.Redis, seconds: float) -> None:
    """The others have been silent for a while, and must speak before it can join."""
    async with Proxy(valkey.port) as proxy, admissions(valkey.url, 2, **LIMITS) as (one, _):
        held = await hold(one)
        before = ahead(client)
        proxy.before = b'"join"', functools.partial(step, client, seconds)
        async with admissions(proxy.url, 1, **LIMITS) as (new,):
            await (await hold(new)).end()
            assert not held.lease.lost
            await (await hold(one)).end()
            # 0.5 s or 3 s if it were taken for time; what a busy machine adds is less.
            assert -max(0, -seconds) - 0.4 < ahead(client) - before < 0.4
        await held.end()


async def test_a_newcomer_while_nobody_else_can_speak(valkey: Valkey, client: redis.Redis) -> None:
    """The holder is cut off with its connections open. The newcomer gets the slot when its lease has ended."""
    async with (
        Proxy(valkey.port) as proxy,
        admissions(proxy.url, 1, slots=1, lease_s=3, cooldown_s=0.2, starts=None) as (holder,),
    ):
        held = await hold(holder)
        proxy.freeze()
        step(client, 2.5)
        async with admissions(valkey.url, 1, slots=1, lease_s=3, starts=None) as (new,):
            holding = await hold(new)
            assert held.lease.lost or held.lease.deadline < boot_time()
            await holding.end()
        proxy.thaw()
        with pytest.raises(LeaseLost):
            await held.task


async def test_a_step_back_that_is_taken_back(valkey: Valkey, client: redis.Redis) -> None:
    """The clock stood still for as long as the fleet had been idle before; it must not catch up."""
    async with admissions(valkey.url, 1, slots=1, lease_s=4, cooldown_s=0.2) as (one,):
        await (await hold(one)).end()
        last = int(client.hget(KEYS["state"], "last") or 0) / 1000
        await wait_until_async(lambda: boot_time() + ahead(client) - last > 2.8, "it is idle")
        step(client, -30)
        held = await hold(one)
        before = ahead(client)
        step(client, 30)
        renewed = held.lease.renewed
        await wait_until_async(lambda: held.lease.renewed > renewed or held.lease.lost, "it is renewed")
        assert not held.lease.lost
        assert abs(ahead(client) - before) < 1.0  # 2.8 s and more if it caught up
        await held.end()


@pytest.mark.parametrize("lost", [["state"], ["state", "heard"], ["state", "heard", "starts", "slots"]])
async def test_a_step_does_not_come_back_when_the_state_is_lost(
    valkey: Valkey, client: redis.Redis, lost: list[str]
) -> None:
    async with admissions(valkey.url, 2, lease_s=2) as (one, two):
        held = await hold(one)
        step(client, 30)
        await (await hold(two)).end()
        before = ahead(client)
        client.delete(*[KEYS[name] for name in lost])
        client.hset(
            KEYS["state"], "skew", int((before - ahead(client) + 30) * 1000)
        )  # Redis's clock is the stepped one
        await (await hold(two)).end()
        assert abs(ahead(client) - before) < 1.0  # 30 s if it came back
        assert not held.lease.lost
        await held.end()


async def test_many_steps_do_not_add_up(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, lease_s=2) as (one,):
        await (await hold(one)).end()
        before = ahead(client)
        for _ in range(10):
            step(client, 5)
            await (await hold(one)).end()
        assert abs(ahead(client) - before) < 2.5  # 50 s if all counted; a lease is the most of one
