"""How the provider answers, as a worker writes it to Redis."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

from redis.asyncio import Redis

from brimful.outcome import Cause
from brimful.state.keys import health_key
from brimful.state.provider_health import KEPT_S, ProviderHealth, parse_health
from brimful.state.redis_url import redis_client
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.sampling.health import HealthReporter
from support.waiting import wait_until_async

REFUSED = Classification(Kind.KEY_REFUSED, cause=Cause.KEY_REFUSED, message="HTTP 401", status=401)


async def test_each_state_is_written_with_its_last_answer(valkey: Valkey) -> None:
    now, tag = 1000.0, "one"
    reporter = HealthReporter(clock=lambda: now)
    async with redis_client(valkey.url) as client:

        async def written() -> ProviderHealth | None:
            return parse_health(await client.hgetall(health_key(tag)))

        async def is_written(state: str, at: float) -> bool:
            found = await written()
            return found is not None and (found.state, found.at) == (state, at)

        async def shows(state: str) -> None:
            await wait_until_async(lambda: is_written(state, now), f"{state} to be written", 60)

        publishing = asyncio.create_task(reporter.publish(client, lambda: tag))
        reporter.observe(Classification(Kind.SUCCESS, status=200))
        await shows("ok")
        assert await client.ttl(health_key(tag)) > KEPT_S - 3600
        now = 1001.0
        reporter.observe(REFUSED)
        await shows("key_refused")
        found = await written()
        assert found is not None
        assert (found.status, found.message, found.since) == (401, "HTTP 401", 1001.0)
        assert found.last == {"ok": 1000.0, "key_refused": 1001.0}
        now = 1002.0
        reporter.observe(Classification(Kind.BUDGET, message="no tokens", status=402))
        reporter.observe(Classification(Kind.THROTTLED, message="HTTP 429", status=429))
        now = 1003.0
        reporter.observe(Classification(Kind.TRANSIENT, message="HTTP 500", status=500))
        now = 1004.0
        reporter.observe(Classification(Kind.TRANSIENT, message="HTTP 503", status=503))
        await shows("failing")
        found = await written()
        assert found is not None
        assert (found.message, found.since) == ("HTTP 500", 1003.0), "the first in a row"
        assert (found.last["quota"], found.last["throttled"]) == (1002.0, 1002.0)
        tag = "two"
        reporter.forget()
        assert await written() is None
        reporter.observe(Classification(Kind.SUCCESS, status=200))
        await shows("ok")
        found = await written()
        assert found is not None
        assert found.last == {"ok": 1004.0}
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing


class Writes:
    """What a reporter's task writes, counted by how often it asks for the key's tag."""

    def __init__(self, reporter: HealthReporter, client: Redis, every_s: float) -> None:
        self.count = 0
        self.task = asyncio.create_task(reporter.publish(client, self._tag, every_s=every_s))

    def _tag(self) -> str:
        self.count += 1
        return "one"


async def test_only_another_state_is_written_at_once_and_nothing_without_news(valkey: Valkey) -> None:
    quiet, steady, turning = (HealthReporter() for _ in range(3))
    ok = Classification(Kind.SUCCESS, status=200)
    states = itertools.cycle([ok, Classification(Kind.TRANSIENT, status=500)])
    quiet.observe(ok)
    async with redis_client(valkey.url) as client:
        waits, rarely, often = (
            Writes(quiet, client, 0.6),
            Writes(steady, client, 3600.0),
            Writes(turning, client, 3600.0),
        )

        def has_turned() -> bool:
            steady.observe(ok)
            turning.observe(next(states))
            return often.count >= 4

        await wait_until_async(has_turned, "each change of state to be written", 60)
        assert (waits.count, rarely.count) == (1, 1)
        for writes in (waits, rarely, often):
            writes.task.cancel()
            with suppress(asyncio.CancelledError):
                await writes.task
