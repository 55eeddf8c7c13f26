"""States and results of tasks, stored through the worker's event loop: as Celery's own backend stores them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
from celery import Celery, states

from brimful_worker.local.server.valkey import Valkey
from brimful_worker.pool.loop import LoopThread
from brimful_worker.pool.result_store import SUCCEEDED, ResultStore
from brimful_worker.singles.pipeline import SharedPipeline


class Stored:
    """A backend whose results go through a loop of their own."""

    def __init__(self, valkey: Valkey) -> None:
        app = Celery("results", backend=valkey.url, set_as_current=False)
        app.conf.update(result_expires=1800, result_backend_thread_safe=True)
        self.backend: Any = app.backend
        self.loop = LoopThread()
        self.loop.start()
        self.pipeline = self.loop.submit(self._open(valkey.url)).result(10)
        self.store = ResultStore(app, self.loop.loop, self.pipeline.add)
        self.store.open()

    @staticmethod
    async def _open(url: str) -> SharedPipeline:
        pipeline = SharedPipeline(url, "results")
        pipeline.start()
        return pipeline

    def close(self) -> None:
        self.store.close()
        self.loop.submit(self.pipeline.aclose()).result(10)
        self.loop.stop(1.0)

    def ask(self, *command: Any) -> Any:
        answered: Future[Any] = Future()
        self.loop.loop.call_soon_threadsafe(self.pipeline.add, command, answered)
        return answered.result(10)


@pytest.fixture
def stored(valkey: Valkey) -> Iterator[Stored]:
    stored = Stored(valkey)
    yield stored
    stored.close()


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")
def test_a_result_is_stored_published_and_kept_as_celery_does(stored: Stored) -> None:
    client, key = stored.backend.client, stored.backend.get_key_for_task("one")
    with client.pubsub() as channel:
        channel.subscribe(key)
        channel.get_message(timeout=10)
        stored.backend.store_result("one", {"pid": 5}, states.STARTED)
        stored.backend.store_result("one", {"text": "é"}, states.SUCCESS)
        published = [channel.get_message(timeout=10)["data"] for _ in range(2)]
    assert [json.loads(value)["status"] for value in published] == [states.STARTED, states.SUCCESS]
    assert client.get(key) == published[1]
    assert published[1].decode().startswith(SUCCEEDED)
    assert 1700 < client.ttl(key) <= 1800
    assert stored.backend.get_result("one") == {"text": "é"}
    stored.store.close()
    stored.backend.store_result("other", {"text": "é"}, states.SUCCESS)
    ours, celerys = (json.loads(client.get(stored.backend.get_key_for_task(id))) for id in ("one", "other"))
    for meta in (ours, celerys):
        del meta["task_id"], meta["date_done"]
    assert ours == celerys


def test_a_success_stays(stored: Stored) -> None:
    stored.backend.store_result("one", "sampled", states.SUCCESS)
    stored.backend.store_result("one", {}, states.STARTED)
    stored.backend.store_result("one", ValueError("late"), states.FAILURE)
    assert stored.backend.get_state("one") == states.SUCCESS
    stored.backend.store_result("two", ValueError("first"), states.FAILURE)
    assert stored.backend.get_state("two") == states.FAILURE


def test_a_task_that_was_revoked_as_it_began_stays_revoked(stored: Stored) -> None:
    stored.backend.mark_as_revoked("one", "terminated")
    stored.backend.store_result("one", {"pid": 5}, states.STARTED)
    stored.ask("PING")
    assert stored.backend.get_state("one") == states.REVOKED
    stored.backend.store_result("one", "sampled all the same", states.SUCCESS)
    assert stored.backend.get_state("one") == states.SUCCESS


def test_results_of_many_threads_are_stored(stored: Stored) -> None:
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda n: stored.backend.store_result(str(n), n, states.SUCCESS), range(200)))
    assert [stored.backend.get_result(str(n)) for n in range(200)] == list(range(200))


def test_an_error_reply_is_that_command_s_alone(stored: Stored) -> None:
    with ThreadPoolExecutor(9) as threads:
        asked = [threads.submit(stored.ask, *command) for command in [("SET", "a", "1"), ("LPUSH", "a", "1")] * 4]
    assert [type(one.exception()) for one in asked] == [type(None), redis.ResponseError] * 4


def test_a_result_waits_for_redis(stored: Stored, valkey: Valkey) -> None:
    stored.backend.always_retry = True
    stored.backend.max_retries = 100
    stored.backend.base_sleep_between_retries_ms = 10
    stored.backend.max_sleep_between_retries_ms = 50
    stored.ask("PING")
    valkey.stop()
    with ThreadPoolExecutor(2) as threads:
        storing = [threads.submit(stored.backend.store_result, id, id, states.SUCCESS) for id in ("one", "two")]
        with pytest.raises(redis.ConnectionError):  # the pipeline has lost its connection
            stored.ask("PING")
        valkey.start()
        for one in storing:
            one.result(30)
    assert [stored.backend.get_result(id) for id in ("one", "two")] == ["one", "two"]


async def test_what_is_asked_while_a_pipeline_is_on_its_way_goes_together(valkey: Valkey) -> None:
    pipeline = SharedPipeline(valkey.url, "together")
    pipeline.start()
    try:
        answers = await asyncio.gather(*(pipeline.ask("ECHO", str(n)) for n in range(50)))
        assert answers == [str(n).encode() for n in range(50)]
        failing = pipeline.ask("GET")
        with pytest.raises(redis.ResponseError):
            await failing
    finally:
        unanswered = pipeline.ask("PING")
        await pipeline.aclose()
    with pytest.raises(redis.ConnectionError):
        await unanswered
