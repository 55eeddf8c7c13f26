"""Waiting for a result while Redis is away: the wait ends with the result, or with the caller's own timeout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult, GroupResult

from brimful import AsyncFleet, Fleet, errors
from brimful.celery import App, app_for, configuration
from brimful.names import TASK_SAMPLE
from brimful.state.redis_url import sync_redis_client
from brimful.state.result_consumer import PatientConsumer
from brimful_worker.local.server.valkey import Valkey
from support.proxy import Proxy
from support.waiting import wait_until_async

DONE = {"choices": [{"index": 0, "text": "done", "finish_reason": "stop"}]}


@pytest.fixture
async def way(valkey: Valkey) -> AsyncIterator[Proxy]:
    """The callers' way to Redis."""
    async with Proxy(valkey.port) as proxy:
        yield proxy


def finish(valkey: Valkey, *ids: str) -> None:
    """Store results as a worker does, past the proxy."""
    with sync_redis_client(valkey.url) as redis:
        for id in ids:
            meta = json.dumps({"status": "SUCCESS", "result": DONE, "children": [], "task_id": id})
            redis.set(f"celery-task-meta-{id}", meta, ex=600)
            redis.publish(f"celery-task-meta-{id}", meta)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Celery's consumer, every wait below would end after two failed attempts to reconnect."""

    def impatient(*arguments: Any) -> Celery:
        app = app_for(*arguments)
        policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0.05, "interval_max": 0.05}
        options = {**app.conf.result_backend_transport_options, "retry_policy": policy}
        app.conf.result_backend_transport_options = options
        app.backend.retry_policy = {**app.backend.retry_policy, **policy}
        return app

    monkeypatch.setattr("brimful.client.base.app_for", impatient)


def away(way: Proxy) -> None:
    way.refuse = True
    way.cut()


async def attempts(way: Proxy) -> None:
    """Until callers have tried in vain to connect a few times."""
    before = way.refused
    await wait_until_async(lambda: way.refused >= before + 4, "attempts to reconnect")


def get(handles: list[Any]) -> list[Any]:
    return [handle.get(timeout=60) for handle in handles]


def join_native(handles: list[Any]) -> list[Any]:
    return list(GroupResult("group", handles, app=handles[0].app).join_native(timeout=60))


@pytest.mark.parametrize("outage", ["before the wait", "during the wait"])
@pytest.mark.parametrize("wait", [get, join_native])
async def test_a_result_stored_during_an_outage_is_read_after_it(
    valkey: Valkey, way: Proxy, wait: Callable[[list[Any]], list[Any]], outage: str
) -> None:
    with Fleet(way.url) as fleet:
        handles = await asyncio.to_thread(lambda: [fleet.submit(f"p{place}", max_tokens=2) for place in range(3)])
        ids = [handle.id for handle in handles]
        if outage == "before the wait":
            away(way)
        waiting = asyncio.create_task(asyncio.to_thread(wait, handles))
        if outage == "during the wait":
            await wait_until_async(lambda: subscribers(valkey, ids) == 3, "the caller to wait")
            away(way)
        await attempts(way)
        finish(valkey, *ids)
        way.refuse = False
        assert await waiting == [DONE] * 3


def subscribers(valkey: Valkey, ids: list[str]) -> int:
    with sync_redis_client(valkey.url) as redis:
        return sum(count for _, count in redis.pubsub_numsub(*(f"celery-task-meta-{id}" for id in ids)))


@pytest.mark.parametrize("kind", [Fleet, AsyncFleet])
async def test_a_sample_is_waited_for_through_an_outage(valkey: Valkey, way: Proxy, kind: Any) -> None:
    fleet = kind(way.url)

    async def sample() -> Any:
        if isinstance(fleet, AsyncFleet):
            return await fleet.sample("hi", max_tokens=2)
        return await asyncio.to_thread(fleet.sample, "hi", max_tokens=2)

    sent = asyncio.Event()
    way.before = (b"GET\r\n$53\r\ncelery-task-meta-", sent.set)  # the result is looked for: GET or MGET
    waiting = asyncio.create_task(sample())
    await asyncio.wait_for(sent.wait(), 60)  # an outage before it would end the call
    with sync_redis_client(valkey.url) as redis:
        message = redis.lindex("interactive", 0)
    id = json.loads(message)["headers"]["id"]
    if kind is Fleet:
        await wait_until_async(lambda: subscribers(valkey, [id]) == 1, "the caller to wait")
    away(way)
    await attempts(way)
    finish(valkey, id)
    way.refuse = False
    assert await waiting == DONE
    await fleet.aclose() if isinstance(fleet, AsyncFleet) else fleet.close()


async def test_the_callers_timeout_holds_during_an_outage(way: Proxy) -> None:
    with Fleet(way.url) as fleet:
        handle = await asyncio.to_thread(fleet.submit, "hi", max_tokens=2)
        away(way)
        for _ in range(2):
            with pytest.raises(CeleryTimeout):
                await asyncio.to_thread(handle.get, timeout=0.3)


async def test_a_wait_begun_during_an_outage_ends_with_the_result(valkey: Valkey, way: Proxy) -> None:
    """Also where another handle of the same process waited before."""
    with Fleet(way.url) as fleet:
        first = await asyncio.to_thread(fleet.submit, "hi", max_tokens=2)
        away(way)
        waiting = [asyncio.create_task(asyncio.to_thread(first.get, timeout=60))]
        await attempts(way)
        second = AsyncResult("second", app=first.app)
        waiting.append(asyncio.create_task(asyncio.to_thread(second.get, timeout=60)))
        await attempts(way)
        way.refuse = False
        await wait_until_async(lambda: subscribers(valkey, [first.id, second.id]) == 2, "both to be subscribed again")
        finish(valkey, first.id, second.id)
        assert await asyncio.gather(*waiting) == [DONE] * 2


async def test_a_connection_that_falls_silent_is_noticed(
    valkey: Valkey, way: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatientConsumer, "read_again_s", 0.1)
    with Fleet(way.url) as fleet:
        handle = await asyncio.to_thread(fleet.submit, "hi", max_tokens=2)
        waiting = asyncio.create_task(asyncio.to_thread(handle.get, timeout=60))
        await wait_until_async(lambda: subscribers(valkey, [handle.id]) == 1, "the caller to wait")
        way.mute_subscribed = True
        finish(valkey, handle.id)
        assert await waiting == DONE


async def test_the_server_itself_is_killed_and_comes_back(valkey: Valkey) -> None:
    with Fleet(valkey.url) as fleet:
        handle = await asyncio.to_thread(fleet.submit, "hi", max_tokens=2)
        waiting = asyncio.create_task(asyncio.to_thread(handle.get, timeout=60))
        await wait_until_async(lambda: subscribers(valkey, [handle.id]) == 1, "the caller to wait")
        await asyncio.to_thread(valkey.kill)
        with pytest.raises(CeleryTimeout):
            await asyncio.to_thread(AsyncResult("other", app=handle.app).get, timeout=1)
        await asyncio.to_thread(valkey.start)
        finish(valkey, handle.id)
        assert await waiting == DONE


async def test_a_wrong_password_is_not_waited_out(valkey: Valkey) -> None:
    with Fleet(valkey.url) as fleet, sync_redis_client(valkey.url) as redis:
        handle = await asyncio.to_thread(fleet.submit, "hi", max_tokens=2)
        redis.config_set("requirepass", "other")
        redis.execute_command("AUTH", "other")
        redis.client_kill_filter(_type="pubsub")
        redis.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(errors.RedisUnreachable, match="BRIMFUL_REDIS_URL"):
            await asyncio.to_thread(handle.get, timeout=60)


STRANGERS = {
    "result_backend_always_retry": True,
    "result_backend_transport_options": {"retry_policy": {"max_retries": None, "interval_max": 2}},
}
"""What docs/promises.md recommends."""


async def test_an_app_that_is_not_ours_waits_with_the_settings_of_the_docs(valkey: Valkey, way: Proxy) -> None:
    with Celery("service", broker=way.url, backend=way.url, set_as_current=False) as app:
        app.conf.update(STRANGERS)
        assert app.backend.retry_policy["max_retries"] is None
        handle = await asyncio.to_thread(app.send_task, TASK_SAMPLE, ["hi"], {"max_tokens": 2}, queue="batch")
        waiting = asyncio.create_task(asyncio.to_thread(handle.get, timeout=60))
        await wait_until_async(lambda: subscribers(valkey, [handle.id]) == 1, "the caller to wait")
        away(way)
        await attempts(way)
        finish(valkey, handle.id)
        way.refuse = False
        assert await waiting == DONE


def test_brimfuls_own_app_waits_that_way_too(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIMFUL_REDIS_URL", valkey.url)
    own = App("own", set_as_current=False)
    own.add_defaults(configuration)
    assert isinstance(own.backend.result_consumer, PatientConsumer)
