"""Redis answers and refuses writes for a while: a result is kept until it stands, and nothing runs twice."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from brimful.errors import PermanentFailure
from brimful_worker.local.server.valkey import Valkey
from support.messages import item
from support.pool_worker import PoolWorker, client, settled
from support.proxy import Proxy
from support.refusals import REFUSALS, Refusal, out_of_memory
from support.waiting import wait_until

_OPTIONS = ("enable-protected-configs yes", "enable-debug-command yes")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Valkey, Valkey]]:
    """The fleet's server, and one for the tasks' notes, which takes writes all the time."""
    base = tmp_path_factory.mktemp("servers")
    with Valkey(base / "fleet", options=_OPTIONS) as fleet, Valkey(base / "notes") as notes:
        yield fleet, notes


@pytest.fixture(scope="module")
def worker(servers: tuple[Valkey, Valkey], tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolWorker]:
    fleet, notes = servers
    directory = tmp_path_factory.mktemp("worker")
    with PoolWorker(fleet.url, notes=notes.url, visibility_s=4, directory=directory) as worker:
        yield worker.ready()
        assert worker.process.poll() is None, worker.output


@pytest.fixture
def app(servers: tuple[Valkey, Valkey], worker: PoolWorker) -> Iterator[Celery]:
    with client(servers[0].url) as app:
        yield app


@pytest.fixture
def admin(servers: tuple[Valkey, Valkey]) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(servers[0].url, decode_responses=True) as admin:
        yield admin


@pytest.fixture
def notes(servers: tuple[Valkey, Valkey]) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(servers[1].url, decode_responses=True) as notes:
        yield notes


@contextmanager
def refusing(admin: redis.Redis, refuse: Refusal) -> Iterator[None]:
    refuse(admin, True)
    try:
        with pytest.raises(redis.RedisError):
            admin.set("probe", 1)
        yield
    finally:
        refuse(admin, False)


@contextmanager
def loading(admin: redis.Redis) -> Iterator[None]:
    """Redis reads its data from disk, and answers LOADING meanwhile."""
    admin.config_set("loading-process-events-interval-bytes", "1024")
    fillers = {f"filler:{number}": "x" * 100 for number in range(3000)}
    admin.mset(fillers)
    admin.config_set("key-load-delay", "10000")  # microseconds
    with redis.Redis(port=admin.connection_pool.connection_kwargs["port"]) as other:
        reloading = threading.Thread(target=other.execute_command, args=("DEBUG", "RELOAD"))
        reloading.start()
        try:
            wait_until(lambda: admin.info("persistence")["loading"], "Redis to load")
            yield
            assert admin.info("persistence")["loading"], "it loaded all the time"
        finally:
            admin.config_set("key-load-delay", "0")
            reloading.join()
    admin.delete(*fillers)


def lasts(seconds: float) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "the refusal to last")


def all_answered(results: list[Any], admin: redis.Redis, notes: redis.Redis) -> list[str]:
    """The states, once all are stored and acknowledged; each task ran once."""
    wait_until(lambda: all(result.ready() for result in results), "the results", 60)
    wait_until(lambda: settled(admin), "all to be acknowledged", 60)
    assert {notes.llen(f"starts:{result.id}") for result in results} == {1}
    return [result.state for result in results]


@pytest.mark.parametrize("refuse", REFUSALS.values(), ids=REFUSALS)
def test_a_result_refused_by_redis_is_stored_later(
    refuse: Refusal, app: Celery, notes: redis.Redis, admin: redis.Redis
) -> None:
    results = [app.send_task("t.nap", (0.5,)) for _ in range(6)] + [app.send_task("t.fail_late", ("no luck", 0.5))]
    wait_until(lambda: all(notes.llen(f"starts:{result.id}") for result in results), "the tasks to start")
    with refusing(admin, refuse):
        wait_until(lambda: all(notes.llen(f"ends:{result.id}") for result in results), "the bodies to end")
        lasts(2.0)
    assert all_answered(results, admin, notes) == ["SUCCESS"] * 6 + ["FAILURE"]


def test_a_result_is_stored_when_redis_has_loaded(app: Celery, notes: redis.Redis, admin: redis.Redis) -> None:
    results = [app.send_task("t.nap", (0.5,)) for _ in range(6)] + [app.send_task("t.fail_late", ("no luck", 0.5))]
    wait_until(lambda: all(notes.llen(f"starts:{result.id}") for result in results), "the tasks to start")
    with loading(admin):
        wait_until(lambda: all(notes.llen(f"ends:{result.id}") for result in results), "the bodies to end")
        lasts(2.0)
    assert all_answered(results, admin, notes) == ["SUCCESS"] * 6 + ["FAILURE"]


async def test_a_result_is_stored_when_the_cluster_is_up_again(
    servers: tuple[Valkey, Valkey], notes: redis.Redis, admin: redis.Redis, tmp_path: Path
) -> None:
    """A single server has no CLUSTERDOWN: the worker's way to it answers so."""
    fleet, second = servers

    def story(way: Proxy) -> None:
        with (
            client(fleet.url) as app,
            PoolWorker(
                way.url, notes=second.url, name="down", arguments=("-Q", "down"), visibility_s=4, directory=tmp_path
            ) as worker,
        ):
            worker.ready()
            results = [app.send_task("t.nap", (0.5,), queue="down") for _ in range(4)]
            wait_until(lambda: all(notes.llen(f"starts:{result.id}") for result in results), "the tasks to start")
            way.refuse_storing = b"CLUSTERDOWN The cluster is down"
            wait_until(lambda: all(notes.llen(f"ends:{result.id}") for result in results), "the bodies to end")
            wait_until(lambda: way.refused >= 8, "each result to be refused, and again")
            assert not any(result.ready() for result in results)
            assert admin.hlen("unacked") == len(results)
            way.refuse_storing = None
            assert all_answered(results, admin, notes) == ["SUCCESS"] * 4

    async with Proxy(fleet.port) as way:
        await asyncio.to_thread(story, way)


def test_a_message_taken_while_redis_is_out_of_memory_is_not_lost(
    app: Celery, notes: redis.Redis, admin: redis.Redis
) -> None:
    """Redis then lets a worker pop a message, but does not take the note that it did."""
    results = [app.AsyncResult(f"refused-{number}") for number in range(6)]
    with admin.pipeline(transaction=True) as pipe:  # the worker's BRPOP is answered after all of it
        for result in results:
            pipe.lpush("celery", json.dumps(item(result.id, task="t.nap", call=([0.5], {}, {}))))
        pipe.config_set("maxmemory", "1")
        pipe.execute()
    wait_until(lambda: not admin.llen("celery"), "the worker to take them")
    lasts(2.0)
    admin.config_set("maxmemory", "0")
    assert all_answered(results, admin, notes) == ["SUCCESS"] * 6


@pytest.mark.parametrize("setting", ["proto-max-bulk-len", "maxmemory"])
def test_a_result_that_redis_will_never_take_is_a_failure(
    setting: str, app: Celery, notes: redis.Redis, admin: redis.Redis
) -> None:
    before = admin.config_get(setting)[setting]
    admin.config_set(setting, "20mb")
    try:
        results = [app.send_task("t.big", (24_000_000,)), app.send_task("t.nap", (0.01,))]
        assert all_answered(results, admin, notes) == ["FAILURE", "SUCCESS"]
    finally:
        admin.config_set(setting, before)
    with pytest.raises(PermanentFailure, match="too large for Redis: 24,"):
        results[0].get(timeout=60)


def test_a_worker_killed_while_redis_is_out_of_memory_loses_nothing(
    servers: tuple[Valkey, Valkey], tmp_path: Path
) -> None:
    """Each message is in its queue, or noted as delivered: both change in one step."""
    fleet, notes = servers
    with (
        redis.Redis(port=fleet.port, decode_responses=True) as store,
        client(fleet.url) as app,
        PoolWorker(fleet.url, notes=notes.url, name="greedy", arguments=("-Q", "greedy"), directory=tmp_path) as worker,
    ):
        worker.ready()
        before = store.hlen("unacked")
        worker.process.send_signal(signal.SIGSTOP)
        results = [app.send_task("t.nap", [60], queue="greedy") for _ in range(8)]
        out_of_memory(store, True)
        worker.process.send_signal(signal.SIGCONT)
        wait_until(lambda: not store.llen("greedy"), "the worker to take them")
        worker.process.kill()
        worker.process.wait()
        assert store.hlen("unacked") == before + len(results)
        out_of_memory(store, False)
        store.delete("greedy", "unacked", "unacked_index")
        for result in results:
            result.forget()
