"""Permits: acquired by one task, used by any."""

from __future__ import annotations

import asyncio

import pytest

from brimful_worker.admission import Lease, LeaseLost
from brimful_worker.admission.lease import current_lease
from brimful_worker.limiter import Limiter, Permit
from brimful_worker.local.server.valkey import Valkey
from support.limiters import limiters
from support.waiting import wait_until_async


async def acquire(limiter: Limiter) -> Permit:
    return await limiter.slot(timeout_s=60).acquire()


async def test_requests_are_made_under_the_permit_whose_block_is_entered(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=3) as (limiter,):
        async with limiter as outer:
            first, second = await acquire(limiter), await acquire(limiter)
            assert current_lease.get() is outer, "a permit that is not entered changes nothing"
            async with first as lease:
                assert current_lease.get() is lease
                async with second as inner:
                    assert current_lease.get() is inner
                assert current_lease.get() is lease
            assert current_lease.get() is outer
        assert current_lease.get() is None


async def test_a_permit_is_used_and_released_in_other_tasks(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=2) as (limiter,):

        async def use(permit: Permit) -> Lease | None:
            async with permit:
                return current_lease.get()

        permit = await acquire(limiter)
        assert await asyncio.create_task(use(permit)) is permit.lease
        assert permit.lease.ended

        async def release(permit: Permit) -> None:
            async with limiter as own:
                await permit.release()
                assert current_lease.get() is own, "the task that releases keeps its own"

        await asyncio.create_task(release(await acquire(limiter)))
        assert limiter.held == 0
        with pytest.raises(RuntimeError, match="released"):
            async with permit:
                pytest.fail("it is released")


async def test_a_lost_slot_cancels_the_task_that_uses_it(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=1, lease_s=2.0) as (limiter,):
        permit = await acquire(limiter)
        inside = asyncio.Event()

        async def use() -> None:
            async with permit:
                inside.set()
                await asyncio.Event().wait()

        using = asyncio.create_task(use())
        await inside.wait()
        valkey.stop()
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(using, 60)
        running = asyncio.current_task()
        assert running is not None
        assert not running.cancelling(), "the task that acquired it goes on"


async def test_a_slot_that_is_lost_before_its_permit_is_entered(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=1, lease_s=2.0) as (limiter,):
        permit = await asyncio.create_task(acquire(limiter))
        valkey.stop()
        await wait_until_async(lambda: permit.lease.lost, "it is lost")
        with pytest.raises(LeaseLost):
            async with permit:
                pytest.fail("the slot is somebody else's")
