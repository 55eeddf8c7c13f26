"""brimful's admission and its public peers behind one interface. Each is imported when opened, in two environments.

Every peer is used as its own README shows. A setting differs from the peer's default only where a comment says why.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

SLOTS, STARTS = "slots", "starts"


@dataclass(frozen=True)
class Ask:
    """What one client process asks of a limiter. 0 = no such limit."""

    url: str
    slots: int = 0
    starts: int = 0
    window_s: float = 1.0
    tag: str = "bench"
    """Ours only: limits of several tags on one server do not meet."""
    windows: tuple[tuple[int, float], ...] = ()
    """Several windows at once: starts and seconds of each."""


Slot = Callable[[], AbstractAsyncContextManager[Any]]
Opener = Callable[[Ask], AbstractAsyncContextManager[Slot]]


@asynccontextmanager
async def _brimful(ask: Ask) -> AsyncIterator[Slot]:
    from brimful_worker.admission import Admission, Limits, StaleGrant

    limits = Limits(
        slots=ask.slots or 100_000,
        starts=ask.starts or None,
        window_s=ask.window_s,
        guard_s=0.2 + 0.01 * ask.window_s,  # the default of brimful's settings
        circuit_breaker=0,
    )
    async with Admission(ask.url, ask.tag, limits) as admission:

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            while True:
                async with admission.slot() as lease:
                    with contextlib.suppress(StaleGrant):
                        lease.sent()
                        yield
                        return

        yield slot


@asynccontextmanager
async def _limiter(ask: Ask) -> AsyncIterator[Slot]:
    from brimful_worker.limiter import Limiter, StaleGrant, Window

    single = ((ask.starts, ask.window_s),) if ask.starts else ()
    windows = [Window(starts, seconds) for starts, seconds in ask.windows or single]
    async with contextlib.aclosing(Limiter(ask.url, ask.tag, slots=ask.slots or None, windows=windows)) as limiter:
        await limiter.start()

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            while True:
                async with limiter as lease:
                    with contextlib.suppress(StaleGrant):
                        lease.sent()
                        yield
                        return

        yield slot


@asynccontextmanager
async def _aiolimiter(ask: Ask) -> AsyncIterator[Slot]:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(ask.starts, ask.window_s)
    yield lambda: limiter


@asynccontextmanager
async def _async_redis_rate_limiters(ask: Ask) -> AsyncIterator[Slot]:
    from async_redis_rate_limiters import DistributedSemaphoreManager

    manager = DistributedSemaphoreManager(namespace="bench", backend="redis", redis_url=ask.url)
    yield lambda: manager.get_semaphore("bench", ask.slots)


@asynccontextmanager
async def _asyncio_advanced_semaphores(ask: Ask) -> AsyncIterator[Slot]:
    from asyncio_advanced_semaphores import RedisConfig, RedisSemaphore

    # By default its heartbeat takes 180 s to detect a dead process; below 10 s it warns.
    semaphore = RedisSemaphore(
        name="bench", value=ask.slots, heartbeat_max_interval=10, config=RedisConfig(url=ask.url)
    )
    yield semaphore.cm


@asynccontextmanager
async def _redis_rate_limiters(ask: Ask) -> AsyncIterator[Slot]:
    from limiters import AsyncSemaphore
    from redis.asyncio import Redis

    async with Redis.from_url(ask.url) as client:
        # max_sleep 0 waits without a time limit, as all contenders do here.
        yield lambda: AsyncSemaphore(name="bench", capacity=ask.slots, max_sleep=0, connection=client)


@asynccontextmanager
async def _redis_rate_limiters_bucket(ask: Ask) -> AsyncIterator[Slot]:
    from limiters import AsyncTokenBucket
    from redis.asyncio import Redis

    async with Redis.from_url(ask.url) as client:
        yield lambda: AsyncTokenBucket(
            name="bench",
            capacity=ask.starts,
            refill_amount=ask.starts,
            refill_frequency=ask.window_s,
            max_sleep=0,
            connection=client,
        )


@asynccontextmanager
async def _pyrate_limiter(ask: Ask) -> AsyncIterator[Slot]:
    from pyrate_limiter import Limiter, Rate, RedisBucket
    from redis.asyncio import Redis

    async with Redis.from_url(ask.url) as client:
        rates = ask.windows or ((ask.starts, ask.window_s),)
        bucket = await RedisBucket.init([Rate(most, int(seconds * 1000)) for most, seconds in rates], client, "bench")
        limiter = Limiter(bucket)

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            # Its Redis bucket keeps one entry per name: equal names would overwrite each other.
            await limiter.try_acquire_async(uuid.uuid4().hex)
            yield

        try:
            yield slot
        finally:
            limiter.close()


def _throttled(algorithm: str) -> Opener:
    @asynccontextmanager
    async def opener(ask: Ask) -> AsyncIterator[Slot]:
        from datetime import timedelta

        from throttled.asyncio import Throttled, rate_limiter, store

        throttle = Throttled(
            key="bench",
            using=algorithm,
            quota=rate_limiter.per_duration(timedelta(seconds=ask.window_s), ask.starts, burst=ask.starts),
            store=store.RedisStore(server=ask.url),
            timeout=3600,
        )

        yield lambda: throttle

    return opener


@dataclass(frozen=True)
class Entry:
    name: str
    limits: tuple[str, ...]
    open: Opener
    ours: bool = False
    several: bool = False
    """It keeps several windows at once."""
    processes: int | None = None
    """It limits this many processes only."""


ENTRIES = (
    Entry("brimful", (SLOTS, STARTS), _brimful, ours=True),
    Entry("async-redis-rate-limiters", (SLOTS,), _async_redis_rate_limiters),
    Entry("asyncio-advanced-semaphores", (SLOTS,), _asyncio_advanced_semaphores),
    Entry("redis-rate-limiters", (SLOTS,), _redis_rate_limiters),
    Entry("redis-rate-limiters (token bucket)", (STARTS,), _redis_rate_limiters_bucket),
    Entry("pyrate-limiter", (STARTS,), _pyrate_limiter, several=True),
    Entry("throttled-py (sliding window)", (STARTS,), _throttled("sliding_window")),
    Entry("throttled-py (token bucket)", (STARTS,), _throttled("token_bucket")),
)
LIMITER = Entry("brimful's limiter", (SLOTS, STARTS), _limiter, ours=True, several=True)
AIOLIMITER = Entry("aiolimiter (one process)", (STARTS,), _aiolimiter, processes=1)
BOTTLENECK = Entry("Bottleneck", (SLOTS, STARTS), _limiter, several=True)
"""Its client is not in Python: ``bottleneck_client.js``."""
BY_NAME = {entry.name: entry for entry in (*ENTRIES, LIMITER, AIOLIMITER)}
