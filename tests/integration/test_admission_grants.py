"""Slots, starts, the queue, pauses, the circuit breaker and live limits, on a real Valkey in one process."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
import redis

from brimful.errors import BudgetExhausted, UsageError
from brimful.state.status import known_tags, read_status, set_limits
from brimful_worker.admission import Admission, LeaseLost, Limits, StaleGrant
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, TAG, Holding, admissions, hold, marked_clean
from support.waiting import wait_until_async


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


async def test_waiting_uses_no_start(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=16) as (one, two):
        held = [await hold(one) for _ in range(16)]
        assert client.zcard(KEYS["starts"]) == 16
        waiting = [Holding(two) for _ in range(100)]
        await wait_until_async(lambda: read_status(client, TAG).waiting["batch"] == 100, "100 are known to wait")
        for holding in waiting:
            await holding.cancel()
        for holding in held:
            await holding.end()
        await wait_until_async(lambda: client.zcard(KEYS["slots"]) == 0, "all slots are free")
        assert client.zcard(KEYS["starts"]) == 16
        assert client.zcard(KEYS["batch"]) == 0


async def test_the_seventeenth_waits_and_is_pushed_the_released_slot(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=16) as (one,):
        held = [await hold(one) for _ in range(16)]
        async with admissions(valkey.url, 1, slots=16) as (late,):
            seventeenth = Holding(late)
            await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "the 17th is registered")
            assert not seventeenth.granted.is_set()
            before = late.commands
            await held.pop().end()
            await asyncio.wait_for(seventeenth.granted.wait(), 60)
            assert late.commands <= before + 1  # pushed to it, not polled for
            await seventeenth.end()
        for holding in held:
            await holding.end()


async def test_the_window_is_exact_and_counts_simultaneous_grants(valkey: Valkey) -> None:
    starts: list[float] = []
    marked_clean(valkey)
    async with admissions(valkey.url, 2, slots=50, starts=20, window_s=1.0, guard_s=0.2) as both:

        async def one(admission: Admission) -> None:
            async with admission.slot() as lease:
                lease.sent()
                starts.append(time.monotonic())

        async with asyncio.timeout(60):
            await asyncio.gather(*[one(both[i % 2]) for i in range(70)])
    starts.sort()
    assert max(sum(at <= other < at + 1.0 for other in starts) for at in starts) <= 20


async def test_first_come_first_served_across_processes(valkey: Valkey, client: redis.Redis) -> None:
    order: list[int] = []
    async with admissions(valkey.url, 3, slots=1) as many:
        first = await hold(many[0])

        async def wait(number: int) -> None:
            async with many[number % 3].slot() as lease:
                order.append(number)
                lease.report(ok=True)

        tasks = []
        for number in range(12):
            tasks.append(asyncio.create_task(wait(number)))
            await wait_until_async(lambda n=number: client.zcard(KEYS["batch"]) == n + 1, "it is in the queue")
        await first.end()
        await asyncio.gather(*tasks)
    assert order == list(range(12))


async def test_interactive_goes_first_and_batch_does_not_starve(valkey: Valkey, client: redis.Redis) -> None:
    order: list[str] = []

    async def wait(admission: Admission, workload: str) -> None:
        async with admission.slot(workload) as lease:
            order.append(workload)
            lease.report(ok=True)

    async with admissions(valkey.url, 2, slots=1, starvation_s=0.05) as (one, two):
        first = await hold(one)
        batch = [asyncio.create_task(wait(one, "batch")) for _ in range(4)]
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 4, "batch waits")
        client.hincrby(KEYS["state"], "skew", 100)  # they have waited long
        interactive = [asyncio.create_task(wait(two, "interactive")) for _ in range(8)]
        await wait_until_async(lambda: client.zcard(KEYS["interactive"]) == 8, "interactive waits")
        await first.end()
        await asyncio.gather(*batch, *interactive)
    assert order[:8] == ["interactive"] * 3 + ["batch"] + ["interactive"] * 3 + ["batch"]


async def test_batch_leaves_the_reserve_to_interactive(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=4, reserve_slots=2) as (one,):
        batch = [Holding(one) for _ in range(4)]
        await wait_until_async(lambda: sum(holding.granted.is_set() for holding in batch) == 2, "two of batch run")
        interactive = [await hold(one, "interactive") for _ in range(2)]
        assert sum(holding.granted.is_set() for holding in batch) == 2
        for holding in (*batch, *interactive):
            await (holding.end() if holding.granted.is_set() else holding.cancel())


async def test_batch_leaves_the_reserve_of_starts_to_interactive(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, starts=3, reserve_starts=1) as (one,):
        for _ in range(2):
            await (await hold(one)).end()
        third = Holding(one)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "the third of batch waits")
        await (await hold(one, "interactive")).end()
        assert not third.granted.is_set()
        assert read_status(client, TAG).starts_used == 3
        await third.cancel()


async def test_a_stale_grant_returns_its_slot_and_its_start(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, guard_s=0.3) as (one,):
        with pytest.raises(StaleGrant):  # noqa: PT012
            async with one.slot() as lease:
                await wait_until_async(lambda: time.monotonic() > lease.wire_deadline, "the guard's local part is over")
                lease.sent()
        await wait_until_async(lambda: client.zcard(KEYS["slots"]) == 0, "the slot is back")
        assert client.zcard(KEYS["starts"]) == 0


async def test_a_slot_cools_down_after_an_abort(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=1, cooldown_s=2.0) as (one,):
        holding = await hold(one)
        began = time.monotonic()
        await holding.cancel()
        await wait_until_async(lambda: read_status(client, TAG).cooling == 1, "the slot cools down")
        after = await hold(one)
        assert time.monotonic() - began > 1.9
        await after.end()


async def test_a_release_after_expiry_does_not_free_the_next_holders_slot(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=1, cooldown_s=0) as (one, two):
        late = await hold(one)
        client.zadd(KEYS["slots"], {late.lease.id: 1})  # the lease is over in Redis, and its holder has not noticed
        other = await hold(two)
        await late.end()
        await wait_until_async(lambda: one.held == 0, "the late one has ended")
        assert client.zrange(KEYS["slots"], 0, -1) == [other.lease.id]
        assert read_status(client, TAG).slots_used == 1
        await other.end()


async def test_a_lost_lease_ends_its_body(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, lease_s=1.0, cooldown_s=0) as (one,):
        with pytest.raises(LeaseLost):  # noqa: PT012
            async with one.slot() as lease:
                client.zadd(KEYS["slots"], {lease.id: 1})
                await asyncio.wait_for(asyncio.Event().wait(), 60)
        assert lease.lost
        await (await hold(one)).end()


async def test_a_pause_stops_the_fleet_and_ends_with_a_slow_start(valkey: Valkey, client: redis.Redis) -> None:
    starts: list[float] = []

    async def one(admission: Admission) -> None:
        async with admission.slot() as lease:
            starts.append(time.monotonic())
            lease.report(ok=True)

    async with admissions(valkey.url, 2, slots=10, slow_start_s=2.0) as (left, right):
        paused = time.monotonic()
        await left.pause(2.0, "Retry-After")
        await wait_until_async(lambda: read_status(client, TAG).pause_reason == "Retry-After", "the pause is in force")
        await asyncio.gather(*[one((left, right)[i % 2]) for i in range(10)])
        assert min(starts) - paused > 1.95
        assert max(starts) - min(starts) > 0.3, "not all at once"
        assert read_status(client, TAG).pause_s == 0


async def test_the_breaker_probes_one_at_a_time(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=4, circuit_breaker=3, slow_start_s=0) as (one, two):
        for _ in range(3):
            await (await hold(one)).end(ok=False)
        await wait_until_async(lambda: read_status(client, TAG).circuit_breaker == "open", "the breaker is open")
        waiting = [Holding(two) for _ in range(4)]
        await wait_until_async(lambda: any(holding.granted.is_set() for holding in waiting), "a probe goes out")
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 3, "the others wait")
        assert read_status(client, TAG).circuit_breaker == "probing"
        probe = next(holding for holding in waiting if holding.granted.is_set())
        await probe.end(ok=True)
        await wait_until_async(lambda: all(holding.granted.is_set() for holding in waiting), "it is closed again")
        assert read_status(client, TAG).circuit_breaker == "closed"
        for holding in waiting:
            if holding is not probe:
                await holding.end()


async def test_a_probe_whose_process_died_is_followed_by_another(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=4, circuit_breaker=1, slow_start_s=0, lease_s=1.5) as (one, two):
        await (await hold(one)).end(ok=False)
        await wait_until_async(lambda: read_status(client, TAG).circuit_breaker == "open", "the breaker is open")
        waiting = [Holding(two) for _ in range(2)]
        await wait_until_async(lambda: any(holding.granted.is_set() for holding in waiting), "a probe goes out")
        probe = next(holding for holding in waiting if holding.granted.is_set())
        client.zadd(KEYS["slots"], {probe.lease.id: 1})  # its lease ended, and nobody reported anything
        await wait_until_async(lambda: all(holding.granted.is_set() for holding in waiting), "another one goes out")
        (other,) = (holding for holding in waiting if holding is not probe)
        await other.end(ok=True)
        await wait_until_async(lambda: read_status(client, TAG).circuit_breaker == "closed", "it is closed again")
        await asyncio.gather(probe.task, return_exceptions=True)


async def test_limits_change_while_it_runs(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=1) as (one, two):
        held = [await hold(one)]
        waiting = [Holding(two) for _ in range(3)]
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 3, "three wait")
        assert set_limits(client, TAG, slots=3)["slots"] == 3
        await wait_until_async(lambda: sum(holding.granted.is_set() for holding in waiting) == 2, "two more run")
        status = read_status(client, TAG)
        assert (status.slots, status.slots_used, status.overridden) == (3, 3, ("slots",))
        assert set_limits(client, TAG, slots=None)["slots"] == 1
        for holding in (*held, *waiting):
            await (holding.end() if holding.granted.is_set() else holding.cancel())
        with pytest.raises(UsageError, match="slots"):
            set_limits(client, TAG, slots=0)
        with pytest.raises(UsageError, match="unknown limit"):
            set_limits(client, TAG, sluts=1)


async def test_limits_set_by_hand_survive_lost_memory(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=5) as (one, two):
        set_limits(client, TAG, slots=3)
        held = [await hold(one), await hold(two)]
        client.flushall()
        held.append(await hold(two))
        status = read_status(client, TAG)
        assert (status.slots, status.slots_used, status.starts_used) == (3, 3, 3)
        for holding in held:
            await holding.end()


async def test_the_first_processes_limits_stay_in_force(
    valkey: Valkey, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with admissions(valkey.url, 1, slots=2) as (one,):
        with caplog.at_level(logging.WARNING):
            async with admissions(valkey.url, 1, slots=9) as (two,):
                assert (await two.status()).slots == 2
        assert "limits stay in force" in caplog.text
        await (await hold(one)).end()


async def test_a_rolling_change_of_limits_ends_with_the_last_old_process(valkey: Valkey, client: redis.Redis) -> None:
    new = Admission(valkey.url, TAG, Limits(slots=9, lease_s=1.5), name="new")
    async with admissions(valkey.url, 2, slots=2, lease_s=1.5):
        await new.start()
        assert read_status(client, TAG).slots == 2
    await wait_until_async(lambda: read_status(client, TAG).slots == 9, "the new limits are in force")
    held = [await hold(new) for _ in range(9)]
    for holding in held:
        await holding.end()
    await new.aclose()


async def test_a_process_that_is_alone_brings_the_limits(valkey: Valkey) -> None:
    async with admissions(valkey.url, 1, slots=2) as (one,):
        assert (await one.status()).slots == 2
    async with admissions(valkey.url, 1, slots=9) as (alone,):
        assert (await alone.status()).slots == 9


async def test_tokens_in_the_window_are_estimated_then_replaced_by_usage(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, tokens=100, starts=None, window_s=60) as (one,):
        first = await hold(one, tokens=80)
        second = Holding(one, tokens=80)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "the second waits for tokens")
        await first.end(tokens_used=10)
        await asyncio.wait_for(second.granted.wait(), 60)
        assert read_status(client, TAG).tokens_used == 90
        await second.end(tokens_used=20)
        await wait_until_async(lambda: read_status(client, TAG).tokens_used == 30, "it is settled")
        assert client.exists(KEYS["starts"]) == 0  # a limit that is not set keeps no log


async def test_the_budget_is_held_then_spent_then_exhausted(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, budget=100) as (one, two):
        first = await hold(one, tokens=60)
        second = Holding(two, tokens=60)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "the second's hold does not fit")
        await first.end(tokens_used=30)
        await asyncio.wait_for(second.granted.wait(), 60)
        await second.end(tokens_used=50)
        await wait_until_async(lambda: read_status(client, TAG).budget_spent == 80, "it is spent")
        for admission in (one, two):
            with pytest.raises(BudgetExhausted):
                async with admission.slot(tokens=60):
                    pass
        await (await hold(one, tokens=20)).end(tokens_used=5)


async def test_status_shows_holders_and_waiters(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=2) as (one, two):
        held = [await hold(one), await hold(two)]
        waiting = [Holding(two), Holding(two, "interactive")]
        await wait_until_async(lambda: sum(read_status(client, TAG).waiting.values()) == 2, "two wait")
        status = read_status(client, TAG)
        assert {worker.name: worker.held for worker in status.workers} == {"a0": 1, "a1": 1}
        assert status.waiting == {"interactive": 1, "batch": 1}
        assert (status.slots_used, status.starts_used, status.rebuilding) == (2, 2, False)
        assert known_tags(client) == [TAG]
        for holding in waiting:
            await holding.cancel()
        for holding in held:
            await holding.end()
    assert read_status(client, TAG).workers == ()


async def test_a_step_of_the_clock_neither_stops_nor_admits_too_many(valkey: Valkey, client: redis.Redis) -> None:
    """A step of Redis's clock is imitated by the opposite step of what the admission adds to it."""
    async with admissions(valkey.url, 1, slots=2, starts=10) as (one,):
        held = await hold(one)
        for step_ms in (-3_600_000, 3_600_000):
            client.hincrby(KEYS["state"], "skew", step_ms)
            await (await hold(one)).end()
            status = read_status(client, TAG)
            assert not held.lease.lost
            assert status.slots_used >= 1
        assert read_status(client, TAG).starts_used == 3
        await held.end()


async def test_a_slot_needs_a_started_admission() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        Admission("redis://127.0.0.1:1", TAG, Limits()).slot()


async def test_making_leases_longer_ends_no_request(valkey: Valkey) -> None:
    client = marked_clean(valkey)
    async with admissions(valkey.url, 1, slots=8, starts=None, lease_s=3.0, cooldown_s=0.5) as (one,):
        holding = await hold(one)
        set_limits(client, TAG, lease_s=30)
        await wait_until_async(lambda: holding.lease.deadline - boot_time() > 20, "it was renewed for the longer time")
        assert not holding.lease.lost
        await holding.end()
