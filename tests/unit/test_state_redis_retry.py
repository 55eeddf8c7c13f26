"""What is asked of Redis again and again ends when its task is cancelled, whatever redis-py makes of that."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from redis.exceptions import ConnectionError

from brimful.state.redis_retry import retry_until_available


@pytest.mark.parametrize("away", [False, True])
async def test_a_cancellation_that_was_lost_on_the_way_is_heeded(away: bool) -> None:
    calls, asked = 0, asyncio.Event()

    async def loses_it() -> None:
        nonlocal calls
        calls += 1
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if away:
            raise ConnectionError

    async def forever() -> None:
        while True:
            await retry_until_available(loses_it)

    task = asyncio.create_task(forever())
    await asked.wait()
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert calls == 1


async def test_who_cleans_up_after_a_cancellation_may_still_ask() -> None:
    async def cleans_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await retry_until_available(answers)
        raise AssertionError

    async def answers() -> str:
        await asyncio.sleep(0)
        return "withdrawn"

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "withdrawn"
