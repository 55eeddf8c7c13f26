"""Results in Redis that cannot be read: each ends the waits for it with an error that names the task, and no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
import redis
from celery.result import AsyncResult

from brimful import AsyncFleet, Fleet, errors
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey
from support.waiting import wait_until_async

DONE = {"choices": [{"index": 0, "text": "done", "finish_reason": "stop"}]}
BROKEN = {
    "no JSON": b"\xff{",
    "no object": b"[1]",
    "no status": b'{"result": {}}',
    "no result": b'{"status": "SUCCESS"}',
    "no error": b'{"status": "FAILURE", "result": null}',
    "no exception": b'{"status": "FAILURE", "result": {"exc_module": "os", "exc_type": "system", "exc_message": "x"}}',
}


def store(valkey: Valkey, id: str, meta: bytes) -> None:
    with sync_redis_client(valkey.url) as client:
        client.set(f"celery-task-meta-{id}", meta, ex=600)
        client.publish(f"celery-task-meta-{id}", meta)


def finish(valkey: Valkey, id: str) -> None:
    store(valkey, id, json.dumps({"status": "SUCCESS", "result": DONE, "children": [], "task_id": id}).encode())


def unreadable(id: str) -> str:
    return f"the stored result of task {id} cannot be read .*; send the request again"


def awaited(valkey: Valkey) -> Callable[[], bool]:
    """Whether a poll has asked for the results since."""
    with redis.Redis(port=valkey.port) as client:
        client.config_resetstat()

    def asked() -> bool:
        with redis.Redis(port=valkey.port) as client:
            return "cmdstat_mget" in client.info("commandstats")

    return asked


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_an_unreadable_result_ends_the_awaits_for_it_only(valkey: Valkey, broken: bytes) -> None:
    async with AsyncFleet(valkey.url) as fleet:
        asked = awaited(valkey)
        waiting = {id: asyncio.create_task(fleet.result(id)) for id in ("one", "two")}
        twice = asyncio.create_task(fleet.result("one"))
        await wait_until_async(asked, "a poll")
        store(valkey, "one", broken)
        for each in (waiting["one"], twice):
            with pytest.raises(errors.SampleError, match=unreadable("one")) as caught:
                await asyncio.wait_for(each, 30)
            assert (caught.value.cause, caught.value.request_id) == ("internal", "one")
        finish(valkey, "two")
        assert await asyncio.wait_for(waiting["two"], 30) == DONE


async def test_an_id_that_names_no_key_ends_its_own_await_only(valkey: Valkey) -> None:
    async with AsyncFleet(valkey.url) as fleet:
        asked = awaited(valkey)
        waiting = asyncio.create_task(fleet.result("one"))
        await wait_until_async(asked, "a poll")
        with pytest.raises(UnicodeEncodeError):
            await asyncio.wait_for(fleet.result("\ud800"), 30)
        finish(valkey, "one")
        assert await asyncio.wait_for(waiting, 30) == DONE


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("when", ["before the wait", "during the wait"])
async def test_an_unreadable_result_ends_the_waits_of_handles_for_it_only(
    valkey: Valkey, broken: bytes, when: str
) -> None:
    with Fleet(valkey.url) as fleet:
        one, two = await asyncio.to_thread(lambda: [fleet.submit(text, max_tokens=2) for text in ("one", "two")])
        if when == "before the wait":
            store(valkey, one.id, broken)
        waiting = [asyncio.create_task(asyncio.to_thread(handle.get, timeout=30)) for handle in (two, one)]
        if when == "during the wait":
            with sync_redis_client(valkey.url) as client:
                keys = [f"celery-task-meta-{handle.id}" for handle in (one, two)]
                await wait_until_async(lambda: all(dict(client.pubsub_numsub(*keys)).values()), "both to wait")
            store(valkey, one.id, broken)
        with pytest.raises(errors.SampleError, match=unreadable(one.id)):
            await waiting[1]
        finish(valkey, two.id)
        assert await waiting[0] == DONE


async def test_a_message_that_cannot_be_read_is_not_the_result(valkey: Valkey) -> None:
    with Fleet(valkey.url) as fleet:
        handle = await asyncio.to_thread(fleet.submit, "hi", max_tokens=2)
        waiting = asyncio.create_task(asyncio.to_thread(AsyncResult(handle.id, app=handle.app).get, timeout=30))
        with sync_redis_client(valkey.url) as client:
            key = f"celery-task-meta-{handle.id}"
            await wait_until_async(lambda: all(dict(client.pubsub_numsub(key)).values()), "the caller to wait")
            client.publish(key, b"\xff{")
        finish(valkey, handle.id)
        assert await waiting == DONE
