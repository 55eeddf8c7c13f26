"""Workers far from Redis: the limits hold whether the way takes short or long, and what cannot work is an error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from brimful.errors import UsageError
from brimful.state.redis_url import sync_redis_client
from brimful.state.status import read_status, set_limits
from brimful_worker.admission import Admission, Limits
from brimful_worker.admission.errors import TooFar
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, TAG, admissions, hold, marked_clean
from support.holder import Holder
from support.ledger import Ledger
from support.proxy import Proxy
from support.waiting import wait_until_async

SLOTS, STARTS, WINDOW_S = 6, 10, 1.0
LIMITS: dict[str, Any] = {
    "slots": SLOTS,
    "starts": STARTS,
    "window_s": WINDOW_S,
    "guard_s": 0.4,
    "lease_s": 4,
    "circuit_breaker": 0,
    "slow_start_s": 0,
}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def far(stack: AsyncExitStack, valkey: Valkey, delay_s: tuple[float, float]) -> Proxy:
    """A proxy whose directions delay everything by a random time in this range."""
    proxy = await stack.enter_async_context(Proxy(valkey.port))
    chance = random.Random(7)
    proxy.delay_s = lambda: chance.uniform(*delay_s)
    return proxy


@pytest.mark.parametrize("forgets", [False, True], ids=["memory kept", "memory lost"])
async def test_limits_hold_with_jitter_between_far_and_near(
    valkey: Valkey, stack: AsyncExitStack, *, forgets: bool
) -> None:
    ledger = await stack.enter_async_context(Ledger())
    marked_clean(valkey).close()
    proxies = [await far(stack, valkey, range_s) for range_s in ((0.0, 0.3), (0.05, 0.2))]
    holders = [
        Holder(url, ledger.port, name=f"h{i}", limits=LIMITS, coroutines=8, hold_s=0.1, spread=0.5)
        for i, url in enumerate([*(proxy.url for proxy in proxies), valkey.url])
    ]
    for holder in holders:
        stack.callback(holder.close)
    await asyncio.gather(*[asyncio.to_thread(holder.ready) for holder in holders])
    await wait_until_async(lambda: len(ledger.visits) > 2 * STARTS, "two windows of starts")
    if forgets:
        with sync_redis_client(valkey.url) as client:
            client.flushall()
        await wait_until_async(lambda: len(ledger.visits) > 4 * STARTS, "starts after the loss", 60)
    for name in ("h0", "h1"):
        await wait_until_async(
            lambda name=name: any(visit.process == name for visit in ledger.visits), f"{name} starts something", 30
        )
    await wait_until_async(lambda: len(ledger.visits) > 5 * STARTS, "some windows of starts", 60)
    assert ledger.most_active <= SLOTS
    assert ledger.most_in_window(WINDOW_S) <= STARTS


async def test_starts_go_on_where_a_round_trip_takes_longer_than_the_guard(
    valkey: Valkey, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    marked_clean(valkey).close()
    proxy = await far(stack, valkey, (0.15, 0.15))
    async with admissions(proxy.url, 1, slots=4, starts=4, window_s=1.0) as (one,):
        for _ in range(6):
            holding = await hold(one)
            await holding.end()
        status = await one.status()
    (worker,) = status.workers
    assert 300 <= worker.rtt_ms < 3000  # milliseconds; a busy machine adds to them
    assert worker.lag_ms >= 260
    _, cost = status.late_answers() or ("", "")
    assert f"each start counts {worker.lag_ms} ms longer" in cost
    assert "Redis is far away" in caplog.text


async def test_the_fleet_knows_after_a_loss_of_memory_for_how_long_its_farthest_starts_count(
    valkey: Valkey, stack: AsyncExitStack
) -> None:
    client = marked_clean(valkey)
    stack.callback(client.close)
    proxy = await far(stack, valkey, (0.1, 0.1))
    limits = {"starts": 4, "window_s": 1.0, "lease_s": 4}
    async with admissions(valkey.url, 1, **limits) as (near,), admissions(proxy.url, 1, **limits) as (distant,):
        for _ in range(3):
            await (await hold(distant)).end()
        await wait_until_async(lambda: client.hget(KEYS["state"], "lag_most"), "a lag is known")
        known = client.hget(KEYS["state"], "lag_most")
        await (await hold(near)).end()
        await proxy.__aexit__()
        client.flushall()
        await wait_until_async(lambda: client.hget(KEYS["state"], "lag_most") == known, "the near one has told it")


async def test_a_distant_worker_joins_a_fleet_that_is_idle(valkey: Valkey, stack: AsyncExitStack) -> None:
    """Another worker speaks for it each time it asks, and is silent again when its next command arrives."""
    marked_clean(valkey).close()
    proxy = await far(stack, valkey, (0.2, 0.2))
    async with admissions(valkey.url, 1, starts=None), admissions(proxy.url, 1, starts=None) as (distant,):
        await (await hold(distant)).end()


async def test_a_distance_that_leases_do_not_allow_is_an_error(valkey: Valkey, stack: AsyncExitStack) -> None:
    proxy = await far(stack, valkey, (0.3, 0.3))
    with pytest.raises(TooFar, match=r"leases of 2 s allow .* 500 ms: set leases of at least 4 s \(BRIMFUL_LEASE_S"):
        await Admission(proxy.url, TAG, Limits(lease_s=2)).start(timeout_s=30)


async def test_a_lease_is_not_made_too_short_for_a_worker_that_is_far_away(
    valkey: Valkey, stack: AsyncExitStack
) -> None:
    marked_clean(valkey).close()
    proxy = await far(stack, valkey, (0.15, 0.15))
    async with admissions(proxy.url, 1) as (one,):
        await (await hold(one)).end()
        with sync_redis_client(valkey.url) as client:
            await wait_until_async(lambda: read_status(client, TAG).workers[0].rtt_ms > 250, "the distance is known")
            with pytest.raises(UsageError, match=r"worker a0: Redis answers after \d{3,4} ms, and leases of 1 s allow"):
                set_limits(client, TAG, lease_s=1.0)


def test_the_guard_follows_a_window_unless_it_was_chosen(valkey: Valkey) -> None:
    async def join() -> None:
        async with admissions(valkey.url, 1):
            pass

    asyncio.run(join())
    with sync_redis_client(valkey.url) as client:
        assert set_limits(client, TAG, window_s=1.0)["guard_s"] == pytest.approx(0.21)
        assert set_limits(client, TAG, window_s=10.0)["guard_s"] == pytest.approx(0.3)
        assert set_limits(client, TAG, window_s=10.0, guard_s=0.5)["guard_s"] == pytest.approx(0.5)
        assert set_limits(client, TAG, window_s=20.0)["guard_s"] == pytest.approx(0.5)
