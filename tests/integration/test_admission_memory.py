"""Leases, starts and limits after lost replies, lost memory and steps of the clock."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import redis

from brimful.state.keys import everyone_channel
from brimful.state.status import read_status, set_limits
from brimful_worker.admission import Admission, LeaseLost, assume_full
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, TAG, Holding, admissions, follow, hold, marked_clean
from support.proxy import Proxy
from support.waiting import wait_until_async

pytestmark = pytest.mark.chaos


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


def left_in_redis(client: redis.Redis, ticket: str) -> float:
    """Seconds until Redis ends the lease."""
    pipe = client.pipeline()
    pipe.time()
    pipe.hget(KEYS["state"], "skew")
    pipe.zscore(KEYS["slots"], ticket)
    answers: list[Any] = pipe.execute()
    (seconds, micros), skew, until = answers
    return float(until or 0.0) / 1000 - (seconds + micros / 1e6 + int(skew or 0) / 1000)


async def test_a_renewal_whose_reply_was_lost_is_dated_by_the_one_answered(valkey: Valkey, client: redis.Redis) -> None:
    async with Proxy(valkey.port) as proxy, admissions(proxy.url, 1, lease_s=3, cooldown_s=0.2) as (one,):
        held = await hold(one)
        proxy.drop_reply_to = b'"renew"'
        await wait_until_async(lambda: proxy.dropped == 1 or proxy.drop_reply_to is None, "the renewal is on its way")
        proxy.refuse = True
        renewed = left_in_redis(client, held.lease.id)
        await wait_until_async(
            lambda: left_in_redis(client, held.lease.id) < renewed - 0.8, "it is carried out, and some time ago"
        )
        proxy.refuse = False
        known = held.lease.deadline
        await wait_until_async(lambda: held.lease.deadline > known, "the command was sent again and answered")
        assert held.lease.deadline - boot_time() < left_in_redis(client, held.lease.id)
        await held.end()


@pytest.mark.parametrize("restarts", [1, 2])
async def test_the_first_process_after_a_restart_waits_for_the_others(
    valkey: Valkey, client: redis.Redis, restarts: int
) -> None:
    """It does not know of the other, which joined after its last command."""
    async with (
        Proxy(valkey.port) as proxy,
        admissions(valkey.url, 1, slots=2, lease_s=4, cooldown_s=0.2, starts=None) as (one,),
        admissions(proxy.url, 1, slots=2, lease_s=4, cooldown_s=0.2, starts=None) as (other,),
    ):
        held = [await hold(other), await hold(other)]
        proxy.refuse = True
        for _ in range(restarts):
            valkey.kill()
            valkey.start()
            await wait_until_async(lambda: client.zcard(KEYS["heard"]) == 1, "the first is back")
        waiting = await hold(one)
        assert all(holding.lease.lost or holding.lease.deadline < boot_time() for holding in held)
        await waiting.end()
        results = await asyncio.gather(*[holding.task for holding in held], return_exceptions=True)
        assert [type(result) for result in results] == [LeaseLost, LeaseLost]


async def test_what_a_missing_process_may_have_started_counts(valkey: Valkey, client: redis.Redis) -> None:
    """The idle process has not read the window since the other filled it, and the other never comes back."""
    async with (
        Proxy(valkey.port) as proxy,
        admissions(valkey.url, 1, starts=10, window_s=6, lease_s=2) as (idle,),
        admissions(proxy.url, 1, starts=10, window_s=6, lease_s=2) as (busy,),
    ):
        for _ in range(9):
            await (await hold(busy)).end()
        last = boot_time()
        proxy.refuse = True
        proxy.cut()
        for _ in range(2):
            client.flushall()
            await wait_until_async(lambda: client.zcard(KEYS["heard"]) == 1, "the idle process is back")
        for _ in range(10):
            await (await hold(idle)).end()
        assert boot_time() - last > 6


@pytest.mark.parametrize("loss", ["restart", "flush"])
async def test_a_newcomer_does_not_stand_in_for_a_holder(valkey: Valkey, client: redis.Redis, loss: str) -> None:
    """Two processes were alive and two have joined, but one of them is new, and the holder is still away."""
    async with (
        Proxy(valkey.port) as proxy,
        admissions(valkey.url, 1, slots=2, lease_s=4, cooldown_s=0.2, starts=None) as (idle,),
        admissions(proxy.url, 1, slots=2, lease_s=4, cooldown_s=0.2, starts=None) as (holder,),
    ):
        held = [await hold(holder), await hold(holder)]
        proxy.refuse = True
        proxy.cut()
        if loss == "restart":
            valkey.kill()
            valkey.start()
        else:
            client.flushall()
        async with admissions(valkey.url, 1, slots=2, lease_s=4, cooldown_s=0.2, starts=None) as (new,):
            asking = [Holding(new), Holding(idle)]
            for holding in asking:
                await holding.granted.wait()
            assert all(each.lease.lost or each.lease.deadline < boot_time() for each in held)
            for holding in asking:
                await holding.end()
        await asyncio.gather(*[each.task for each in held], return_exceptions=True)


async def test_a_newcomer_alone_waits_for_holders_that_nobody_knows(valkey: Valkey, client: redis.Redis) -> None:
    """To the first process on an empty Redis it looks the same whether it is new or was flushed."""
    async with Proxy(valkey.port) as proxy, admissions(proxy.url, 1, slots=1, lease_s=2, cooldown_s=0.2) as (holder,):
        await wait_until_async(lambda: client.info("server")["uptime_in_seconds"] > 2, "it is older than a lease")
        held = await hold(holder)
        proxy.refuse = True
        proxy.cut()
        client.flushall()
        async with admissions(valkey.url, 1, slots=1, lease_s=2) as (new,):
            holding = await hold(new)
            assert held.lease.lost or held.lease.deadline < boot_time()
            await holding.end()
        await asyncio.gather(held.task, return_exceptions=True)


async def test_a_newcomer_is_granted_nothing_until_all_others_know_it(valkey: Valkey, client: redis.Redis) -> None:
    """Else it could hold slots that nobody misses after a loss of memory."""
    async with (
        Proxy(valkey.port) as proxy,
        admissions(proxy.url, 1, slots=2, lease_s=4, starts=None) as (cut_off,),
    ):
        await (await hold(cut_off)).end()
        proxy.refuse = True
        proxy.cut()
        seen = client.zscore(KEYS["heard"], client.zrange(KEYS["heard"], 0, -1)[0])
        async with admissions(valkey.url, 1, slots=2, lease_s=4, starts=None) as (new,):
            holding = await hold(new)
            seconds, micros = client.time()
            assert seconds * 1000 + micros / 1000 - float(seen) >= 3900
            await holding.end()


async def test_a_shorter_lease_never_shortens_one_that_is_held(valkey: Valkey, client: redis.Redis) -> None:
    """Its holder may be cut off before it learns of it."""
    async with admissions(valkey.url, 2, slots=2, lease_s=20, starts=None) as (one, two):
        held = await hold(one)
        await (await hold(two)).end()
        before = left_in_redis(client, held.lease.id)
        client.hset(KEYS["limits"], mapping={"lease_ms": 1000, "rev": 1})
        client.publish(everyone_channel(TAG), '{"limits": true}')
        await wait_until_async(lambda: held.lease.deadline - boot_time() < 2, "the holder has learnt of it")
        await wait_until_async(lambda: held.lease.renewed > boot_time() - 0.5, "it has renewed since")
        assert left_in_redis(client, held.lease.id) > before - 15
        await held.end()


async def test_a_server_that_took_the_data_of_a_replica_begins_an_epoch(
    valkey: Valkey, client: redis.Redis, tmp_path: Path
) -> None:
    """The replica was behind, and the server is the one that the processes know: a failover and one back."""
    with Valkey(tmp_path / "replica", options=("repl-diskless-sync-delay 0",)) as other:
        behind = redis.Redis.from_url(other.url, decode_responses=True)

        async with admissions(valkey.url, 2, slots=4, lease_s=8, starts=None) as (one, two):
            set_limits(client, TAG, slots=3)
            for each in (one, two):
                await (await hold(each)).end()
            await follow(behind, valkey.port)
            client.hdel(KEYS["state"], "sums")  # the second epoch: the replica has the first
            for each in (one, two):
                await (await hold(each)).end()
            set_limits(client, TAG, slots=2)
            held = [await hold(one), await hold(two)]
            await follow(client, other.port)
            waiting = Holding(two)
            await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "the third waits")
            assert client.zcard(KEYS["slots"]) == 2
            assert read_status(client, TAG).limits["slots"] == 2
            for holding in held:
                await holding.end()
            await waiting.granted.wait()
            await waiting.end()


async def test_limits_set_just_before_a_failover_count(valkey: Valkey, client: redis.Redis) -> None:
    """The replica has not seen them: its limits are the ones before."""
    async with admissions(valkey.url, 1, slots=4, lease_s=2) as (one,):
        set_limits(client, TAG, slots=3)
        await (await hold(one)).end()
        replica: dict[str, Any] = {name: client.hgetall(KEYS[name]) for name in ("state", "limits")}
        set_limits(client, TAG, slots=1)
        await (await hold(one)).end()
        pipe = client.pipeline(transaction=True)
        for name, fields in replica.items():
            pipe.delete(KEYS[name])
            pipe.hset(KEYS[name], mapping=fields)
        pipe.hset(KEYS["state"], "server", "before the failover")
        pipe.execute()
        held = await hold(one)
        waiting = Holding(one)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "the second waits")
        assert read_status(client, TAG).limits["slots"] == 1
        await held.end()
        await waiting.granted.wait()
        await waiting.end()


async def test_limits_set_after_a_loss_outlast_processes_that_bring_those_before(
    valkey: Valkey, client: redis.Redis
) -> None:
    """The first to join was cut off earlier, and brings back limits of a lower revision than the others know."""
    async with (
        Proxy(valkey.port) as near,
        Proxy(valkey.port) as far,
        admissions(near.url, 1, slots=8, lease_s=2) as (one,),
        admissions(far.url, 1, slots=8, lease_s=2) as (behind,),
    ):
        set_limits(client, TAG, slots=5)
        for each in (behind, one):
            await (await hold(each)).end()
        far.refuse = True
        far.cut()
        for slots in (4, 3, 2):
            set_limits(client, TAG, slots=slots)
        await (await hold(one)).end()
        near.refuse = True
        near.cut()
        client.flushall()
        far.refuse = False
        await wait_until_async(lambda: client.hget(KEYS["limits"], "slots") == "5", "the first has joined")
        set_limits(client, TAG, slots=1)
        near.refuse = False
        for each in (one, behind):
            await (await hold(each)).end()
        assert read_status(client, TAG).limits["slots"] == 1


async def test_a_step_of_the_clock_seen_first_by_a_joining_process(valkey: Valkey, client: redis.Redis) -> None:
    """A step of Redis's clock is imitated by a step of what the admission adds to it."""
    async with admissions(valkey.url, 1, slots=1, starts=10, lease_s=4) as (one,):
        held = await hold(one)
        client.hincrby(KEYS["state"], "skew", 3_600_000)
        async with admissions(valkey.url, 1, slots=1, starts=10, lease_s=4) as (new,):
            waiting = Holding(new)
            await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "the new process waits")
            assert client.zscore(KEYS["slots"], held.lease.id) is not None
            await held.end()
            await waiting.granted.wait()
            assert read_status(client, TAG).starts_used == 2
            await waiting.end()


async def test_a_request_that_is_still_being_ended_keeps_its_slot_through_a_loss(
    valkey: Valkey, client: redis.Redis
) -> None:
    async with admissions(valkey.url, 1, slots=1, lease_s=1.5, cooldown_s=0) as (one,):
        lost, ended, tickets = asyncio.Event(), asyncio.Event(), []

        async def slow_to_end() -> None:
            async with one.slot() as lease:
                tickets.append(lease.id)
                try:
                    client.zadd(KEYS["slots"], {lease.id: 1})
                    await asyncio.Event().wait()
                finally:
                    lost.set()
                    await ended.wait()

        task = asyncio.create_task(slow_to_end())
        await asyncio.wait_for(lost.wait(), 60)
        client.flushall()
        await wait_until_async(lambda: client.zcard(KEYS["heard"]) == 1, "it is back")
        assert client.zrange(KEYS["slots"], 0, -1) == tickets
        ended.set()
        with contextlib.suppress(LeaseLost):
            await task
        await wait_until_async(lambda: client.zcard(KEYS["slots"]) == 0, "and then it is free")


async def test_the_spent_budget_survives_lost_memory(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, budget=1000) as (one,):
        await (await hold(one, tokens=100)).end(tokens_used=70)
        await wait_until_async(lambda: read_status(client, TAG).budget_spent == 70, "it is spent")
        await (await hold(one, tokens=100)).end(tokens_used=0)
        client.flushall()
        held = await hold(one, tokens=1)
        assert read_status(client, TAG).budget_spent == 70
        await held.end()


async def test_assume_full_lets_nothing_start_for_a_window(valkey: Valkey, client: redis.Redis) -> None:
    """Whatever limit is in force: here the operator has raised it."""
    set_limits(client, TAG, starts=8)
    assume_full(client, TAG)
    since = boot_time()
    limits = {"starts": 5, "tokens": 80, "window_s": 4.0, "guard_s": 0.2, "lease_s": 3.0, "cooldown_s": 0.2}
    async with admissions(valkey.url, 1, **limits) as (one,):
        held = [await hold(one, tokens=10) for _ in range(8)]
        assert boot_time() - since > 4.0
        status = read_status(client, TAG)
        assert (status.starts_used, status.tokens_used) == (8, 80)
        for holding in held:
            await holding.end(tokens_used=10)


async def test_a_pause_survives_lost_memory(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2) as (one, two):
        await one.pause(300, "Retry-After")
        waiting = Holding(two)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "one waits for its end")
        client.flushall()
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "it waits again")
        status = read_status(client, TAG)
        assert 200 < status.pause_s <= 300.1
        assert status.pause_reason == "Retry-After"
        assert not waiting.granted.is_set()
        await waiting.cancel()


@pytest.mark.parametrize("then", ["goes on", "leaves", "is forgotten"])
async def test_a_starts_limit_that_is_switched_on_counts_the_starts_just_made(
    valkey: Valkey, client: redis.Redis, then: str
) -> None:
    limits: dict[str, Any] = {"slots": 100, "starts": None, "window_s": 6.0, "guard_s": 0.4, "lease_s": 2}
    async with admissions(valkey.url, 2, **limits) as (one, other):
        at: list[float] = []

        async def start(admission: Admission) -> None:
            async with admission.slot() as lease:
                lease.sent()
                at.append(boot_time())
                lease.report(ok=True)

        await asyncio.gather(*[start(other) for _ in range(40)])
        if then == "leaves":
            await other.aclose()
        elif then == "is forgotten":
            client.flushall()
            await wait_until_async(
                lambda: read_status(client, TAG).slots and not read_status(client, TAG).rebuilding, "it is open"
            )
        set_limits(client, TAG, starts=60)
        known = 60 if then == "is forgotten" else 40
        await wait_until_async(lambda: read_status(client, TAG).starts_used == known, "the window knows them")
        await asyncio.gather(*[start(one) for _ in range(70)])
    assert all(later - earlier >= 6 for earlier, later in zip(at, at[60:], strict=False))


async def test_a_starts_limit_that_is_switched_on_low_and_raised_counts_all(
    valkey: Valkey, client: redis.Redis
) -> None:
    async with admissions(valkey.url, 1, slots=100, starts=None, window_s=20.0) as (one,):
        for holding in [await hold(one) for _ in range(40)]:
            await holding.end()
        set_limits(client, TAG, starts=10)
        await wait_until_async(lambda: read_status(client, TAG).starts_used > 0, "the window knows them")
        assert read_status(client, TAG).starts_used == 40


async def test_a_token_limit_that_is_switched_on_counts_the_tokens_just_used(
    valkey: Valkey, client: redis.Redis
) -> None:
    async with admissions(valkey.url, 1, slots=10) as (one,):
        for _ in range(8):
            await (await hold(one, tokens=10)).end()
        set_limits(client, TAG, tokens=100)
        await wait_until_async(lambda: read_status(client, TAG).tokens_used == 80, "they count")
        set_limits(client, TAG, tokens=0)
        await (await hold(one, tokens=5)).end()
        set_limits(client, TAG, tokens=100)
        await wait_until_async(lambda: read_status(client, TAG).tokens_used == 85, "none counts twice")
